"""Inventories as text: they come back as they were, in pieces that fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import (
    PIECE_BYTES,
    Entry,
    doomed,
    entries_of,
    forgotten,
    intended,
    is_applied,
    pack,
    recorded,
    same_objects,
    unpack,
)
from governor.kube.applyset.manifests import Wanted
from governor.kube.applyset.results import FORGOTTEN, GOOD, ObjectResult, Outcome, Removal, RemovalResult
from governor.kube.applyset.settings import is_name, is_namespace
from governor.kube.objects import ApiResource, ObjectRef
from tests.unit.values.strategies import brief

names = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,30}[a-z0-9])?", fullmatch=True),
    st.text(min_size=1, max_size=20).filter(is_name),
    st.sampled_from(["system:node:x", "v1.example.com", "ü"]),
)
spaces = st.one_of(st.just(""), st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True))
refs = st.builds(ObjectRef, st.sampled_from(["", "apps", "dapr.io"]), st.sampled_from(["A", "B"]), spaces, names)
digests = st.one_of(st.just(""), st.binary(min_size=32, max_size=32).map(lambda raw: f"sha256:{raw.hex()}"))
inventories = st.lists(st.builds(Entry, refs, st.one_of(st.just(""), st.uuids().map(str)), digests)).map(entries_of)


@brief
@given(inventories, st.integers(min_value=1, max_value=2000))
def test_entries_come_back_as_they_were(entries: dict[ObjectRef, Entry], piece_bytes: int) -> None:
    pieces = pack(entries, piece_bytes)
    assert unpack(pieces) == entries
    assert pieces


@brief
@given(inventories, st.integers(min_value=400, max_value=2000))
def test_no_piece_is_larger_than_it_may_be(entries: dict[ObjectRef, Entry], piece_bytes: int) -> None:
    assert max(len(piece.encode()) for piece in pack(entries, piece_bytes)) <= piece_bytes


@brief
@given(inventories)
def test_equal_entries_give_equal_texts(entries: dict[ObjectRef, Entry]) -> None:
    assert pack(dict(reversed(entries.items()))) == pack(entries)


def test_ten_thousand_objects_are_a_few_pieces() -> None:
    entries = entries_of(
        Entry(
            ObjectRef("apps", "Deployment", f"namespace-{number % 50}", f"an-object-with-a-usual-name-{number}"),
            "01234567-0123-0123-0123-0123456789ab",
            f"sha256:{number:064x}",
        )
        for number in range(10_000)
    )
    pieces = pack(entries)
    assert 2 <= len(pieces) <= 4
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert unpack(pieces) == entries


@pytest.mark.parametrize(
    "piece",
    [
        "",
        "{}",
        "[1]",
        '[["", "ConfigMap", "a"]]',
        '[["", "ConfigMap", "a", [["b", "c"]]]]',
        '[["", "ConfigMap", "a", [["b", "", "not base64!"]]]]',
        '[["", "ConfigMap", "a", [["..", "", ""]]]]',
        '[["", "ConfigMap", "..", [["b", "", ""]]]]',
        '[["", "", "a", [["b", "", ""]]]]',
        '[["", "ConfigMap", "a", [["b", "", ""], ["b", "", ""]]]]',
    ],
)
def test_anything_else_is_refused(piece: str) -> None:
    with pytest.raises(GovernorError) as caught:
        unpack([piece])
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "inventory-damaged")


@brief
@given(st.recursive(st.one_of(st.none(), st.text(), st.integers()), st.lists, max_leaves=20))
def test_no_text_makes_it_fail_in_another_way(tree: Any) -> None:
    code = ""
    try:
        unpack([json.dumps(tree)])
    except GovernorError as error:
        code = error.code
    assert code in ("", "inventory-damaged")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "a\0b", "a" * 254])
def test_what_cannot_be_part_of_a_path_is_no_name(name: str) -> None:
    assert not is_name(name)
    assert not is_namespace(name)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 63])
def test_a_dns_label_is_a_namespace(name: str) -> None:
    assert is_namespace(name)
    assert is_name(name)


REF = ObjectRef("", "ConfigMap", "shop", "a")
OTHER = ObjectRef("", "ConfigMap", "shop", "b")
KIND = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
OLD, NEW = "sha256:01", "sha256:02"
BROKEN = GovernorError(Kind.UNAVAILABLE, "x", "x")


def wanted(digest: str = NEW) -> Wanted:
    return Wanted(REF, KIND, {}, digest)


def seen(uid: str) -> Any:
    return {"metadata": {"uid": uid}}


@pytest.mark.parametrize(
    ("known", "digest", "applied"),
    [
        (Entry(REF, "1", NEW), NEW, True),
        (Entry(REF, "1", OLD), NEW, False),
        (Entry(REF, "", NEW), NEW, False),
        (Entry(REF, "1", ""), NEW, False),
        (Entry(REF, "1", ""), "", False),
    ],
)
def test_only_a_known_object_with_the_same_manifest_needs_no_apply(known: Entry, digest: str, applied: bool) -> None:
    assert is_applied(wanted(digest), {REF: known}) is applied
    assert not is_applied(wanted(digest), {})


@pytest.mark.parametrize(
    ("known", "live", "intent"),
    [
        (None, None, Entry(REF)),
        (Entry(REF), None, Entry(REF)),
        (Entry(REF, "1", OLD), seen("1"), Entry(REF, "1")),
        (Entry(REF, "1", NEW), seen("1"), Entry(REF, "1", NEW)),
        (Entry(REF, "1", OLD), seen("2"), Entry(REF, "2")),
        (Entry(REF, "1", OLD), None, Entry(REF)),
        (Entry(REF, "1", OLD), BROKEN, Entry(REF, "1")),
    ],
)
def test_before_an_apply_the_record_claims_no_more_than_is_known(known: Entry | None, live: Any, intent: Entry) -> None:
    entries = {OTHER: Entry(OTHER, "9", OLD)} | ({REF: known} if known else {})
    assert intended(entries, [wanted()], {REF: live}) == {OTHER: Entry(OTHER, "9", OLD), REF: intent}


@brief
@given(st.sampled_from(Outcome), st.sampled_from(["", "1"]))
def test_after_an_apply_only_successes_have_a_digest(outcome: Outcome, uid: str) -> None:
    result = ObjectResult(REF, outcome, uid="7" if outcome in GOOD else "")
    after = recorded({REF: Entry(REF, uid)}, [wanted()], {REF: result})
    assert after == {REF: Entry(REF, "7", NEW) if outcome in GOOD else Entry(REF, uid)}


def test_a_failed_full_apply_makes_the_digest_unsure() -> None:
    entries = {REF: Entry(REF, "1", NEW)}
    assert recorded(entries, [wanted()], {REF: ObjectResult(REF, Outcome.FAILED)}) == {REF: Entry(REF, "1")}
    assert recorded(entries, [wanted()], {REF: ObjectResult(REF, Outcome.SKIPPED)}) == entries


@brief
@given(st.sampled_from(Removal))
def test_what_stays_to_be_removed_stays_in_the_record(outcome: Removal) -> None:
    entries = {REF: Entry(REF, "1"), OTHER: Entry(OTHER, "2")}
    after = forgotten(entries, [RemovalResult(REF, outcome)])
    assert (REF not in after) is (outcome in FORGOTTEN)
    assert OTHER in after


def test_one_object_under_two_names_is_not_taken_for_two() -> None:
    entries = {REF: Entry(REF, "1"), OTHER: Entry(OTHER, "1")}
    assert [result.ref for result in same_objects(entries, {REF})] == [OTHER]
    assert same_objects(entries, set()) == ()
    assert same_objects({REF: Entry(REF), OTHER: Entry(OTHER)}, {REF}) == ()


def test_before_a_removal_its_digest_goes() -> None:
    entries = {REF: Entry(REF, "1", OLD), OTHER: Entry(OTHER, "2", OLD)}
    assert doomed(entries, {OTHER}) == {REF: Entry(REF, "1"), OTHER: Entry(OTHER, "2", OLD)}
