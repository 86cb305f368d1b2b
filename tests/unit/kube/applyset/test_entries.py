"""Inventory entries: their encoding, and entries before and after apply and prune."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import (
    MAX_BYTES,
    Entry,
    after_apply,
    after_prune,
    before_apply,
    before_prune,
    by_ref,
    is_applied,
    is_unchanged,
    kept_aliases,
    pack,
    seen_in,
    unpack,
)
from governor.kube.applyset.manifests import Desired
from governor.kube.applyset.results import SETTLED, SUCCEEDED, ObjectResult, Outcome, PruneOutcome, PruneResult, Seen
from governor.kube.applyset.settings import is_name, is_namespace
from governor.kube.objects import ApiResource, ObjectRef
from governor.values.paths import Path

REF = ObjectRef("", "ConfigMap", "shop", "a")
OTHER = ObjectRef("", "ConfigMap", "shop", "b")
KIND = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
OLD, NEW = "sha256:01", "sha256:02"
BROKEN = GovernorError(Kind.UNAVAILABLE, "x", "x")

names = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,30}[a-z0-9])?", fullmatch=True),
    st.text(min_size=1, max_size=20).filter(is_name),
    st.sampled_from(["system:node:x", "v1.example.com", "ü"]),
)
namespaces = st.one_of(st.just(""), st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True))
refs = st.builds(ObjectRef, st.sampled_from(["", "apps", "dapr.io"]), st.sampled_from(["A", "B"]), namespaces, names)
digests = st.one_of(st.just(""), st.binary(min_size=32, max_size=32).map(lambda raw: f"sha256:{raw.hex()}"))
states = st.builds(Seen, st.sampled_from(["", "1234"]), st.integers(0, 99), st.sampled_from(["", "0123456789abcdef"]))
inventories = st.lists(st.builds(Entry, refs, st.one_of(st.just(""), st.uuids().map(str)), digests, states)).map(by_ref)


@given(inventories)
def test_unpack_returns_what_pack_encoded(entries: dict[ObjectRef, Entry]) -> None:
    assert unpack([pack(entries)]) == entries


@given(inventories)
def test_equal_entries_give_equal_texts(entries: dict[ObjectRef, Entry]) -> None:
    assert pack(dict(reversed(entries.items()))) == pack(entries)


def many(count: int, *, applied: bool) -> dict[ObjectRef, Entry]:
    seen = Seen("123456789", 3, "0123456789abcdef")
    return by_ref(
        Entry(
            ObjectRef("apps", "Deployment", f"namespace-{number % 50}", f"an-object-with-a-usual-name-{number}"),
            "01234567-0123-0123-0123-0123456789ab" if applied else "",
            f"sha256:{number:064x}" if applied else "",
            seen if applied else Seen(),
        )
        for number in range(count)
    )


def test_a_set_several_times_as_large_as_any_known_module_fits() -> None:
    """The largest modules have about 1,500 objects; a set that fits before it is applied fits afterwards too."""
    assert len(pack(many(1500, applied=True))) < MAX_BYTES / 4
    assert pack(many(5000, applied=False))
    assert pack(many(5000, applied=True))


def test_a_set_that_does_not_fit_is_rejected_before_it_is_applied() -> None:
    with pytest.raises(GovernorError) as caught:
        pack(many(8000, applied=False))
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "set-too-large")
    assert "divide the objects among several sets" in caught.value.message


def test_rows_of_format_v1_have_no_state() -> None:
    (entry,) = unpack(['[["", "ConfigMap", "shop", [["a", "1", ""]]]]']).values()
    assert entry == Entry(REF, "1")


WITH_STATUS = ApiResource(
    "apps", "v1", "Deployment", "deployments", namespaced=True, subresources=frozenset({"status"})
)
METADATA = {"resourceVersion": "7", "generation": 2, "labels": {"a": "b"}}


@pytest.mark.parametrize(
    ("now", "unchanged"),
    [
        ({}, True),
        ({"resourceVersion": "8"}, True),
        ({"resourceVersion": "8", "generation": 3}, False),
        ({"resourceVersion": "8", "labels": {}}, False),
        ({"resourceVersion": "8", "annotations": {"x": "y"}}, False),
        ({"resourceVersion": "8", "finalizers": ["x"]}, False),
    ],
)
def test_only_a_change_of_the_status_leaves_an_object_unchanged(now: dict[str, Any], unchanged: bool) -> None:
    seen = seen_in({"metadata": METADATA}, WITH_STATUS)
    assert is_unchanged(seen, seen_in({"metadata": METADATA | now}, WITH_STATUS)) is unchanged
    assert not is_unchanged(Seen(), seen_in({"metadata": METADATA | now}, WITH_STATUS))


@pytest.mark.parametrize(
    ("metadata", "resource"),
    [
        ({"resourceVersion": "7", "annotations": {"copy": "of a password"}}, WITH_STATUS),
        ({"resourceVersion": "7", "generation": 1}, msgspec.structs.replace(WITH_STATUS, subresources=frozenset())),
    ],
    ids=["without generation", "without status"],
)
def test_otherwise_only_the_resource_version_counts(metadata: dict[str, Any], resource: ApiResource) -> None:
    seen = seen_in({"metadata": metadata}, resource)
    assert seen == Seen("7")
    assert is_unchanged(seen, seen_in({"metadata": metadata}, resource))
    assert not is_unchanged(seen, seen_in({"metadata": metadata | {"resourceVersion": "8"}}, resource))


def test_an_object_is_compared_again_if_other_fields_are_ignored() -> None:
    rules: list[tuple[Path, ...]] = [(), (("spec", "a"),), (("spec", "b"),)]
    states = [seen_in({"metadata": METADATA}, WITH_STATUS, ignored) for ignored in rules]
    assert [[is_unchanged(seen, now) for now in states] for seen in states] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


@pytest.mark.parametrize(
    "text",
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
def test_invalid_texts_are_rejected(text: str) -> None:
    with pytest.raises(GovernorError) as caught:
        unpack([text])
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, "inventory-damaged")


@given(st.recursive(st.one_of(st.none(), st.text(), st.integers()), st.lists, max_leaves=20))
def test_arbitrary_json_is_decoded_or_rejected_as_damaged(tree: Any) -> None:
    code = ""
    try:
        unpack([json.dumps(tree)])
    except GovernorError as error:
        code = error.code
    assert code in ("", "inventory-damaged")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "a\0b", "a" * 254])
def test_a_name_must_be_one_path_segment(name: str) -> None:
    assert not is_name(name)
    assert not is_namespace(name)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 63])
def test_a_dns_label_is_a_namespace(name: str) -> None:
    assert is_namespace(name)
    assert is_name(name)


def desired(digest: str = NEW) -> Desired:
    return Desired(REF, KIND, {}, digest)


def live_object(uid: str) -> Any:
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
def test_only_a_known_object_with_an_equal_manifest_is_applied(known: Entry, digest: str, applied: bool) -> None:
    assert is_applied(desired(digest), {REF: known}) is applied
    assert not is_applied(desired(digest), {})


@pytest.mark.parametrize(
    ("known", "live", "intent"),
    [
        (None, None, Entry(REF)),
        (Entry(REF), None, Entry(REF)),
        (Entry(REF, "1", OLD), live_object("1"), Entry(REF, "1")),
        (Entry(REF, "1", NEW), live_object("1"), Entry(REF, "1", NEW)),
        (Entry(REF, "1", OLD), live_object("2"), Entry(REF, "2")),
        (Entry(REF, "1", NEW), live_object("2"), Entry(REF, "2")),
        (Entry(REF, "1", OLD), None, Entry(REF)),
        (Entry(REF, "1", OLD), BROKEN, Entry(REF, "1")),
    ],
)
def test_entries_before_apply_contain_only_certain_facts(known: Entry | None, live: Any, intent: Entry) -> None:
    entries = {OTHER: Entry(OTHER, "9", OLD)} | ({REF: known} if known else {})
    assert before_apply(entries, [desired()], {REF: live}) == {OTHER: Entry(OTHER, "9", OLD), REF: intent}


@given(st.sampled_from(Outcome), st.sampled_from(["", "1"]))
def test_after_apply_only_successes_have_a_digest(outcome: Outcome, uid: str) -> None:
    result = ObjectResult(REF, outcome, uid="7" if outcome in SUCCEEDED else "")
    after = after_apply({REF: Entry(REF, uid)}, [desired()], {REF: result}, {REF})
    assert after == {REF: Entry(REF, "7", NEW) if outcome in SUCCEEDED else Entry(REF, uid)}


def test_a_failed_full_apply_clears_the_digest() -> None:
    entries = {REF: Entry(REF, "1", NEW)}
    assert after_apply(entries, [desired()], {REF: ObjectResult(REF, Outcome.FAILED)}, {REF}) == {REF: Entry(REF, "1")}
    assert after_apply(entries, [desired()], {REF: ObjectResult(REF, Outcome.SKIPPED)}, {REF}) == entries


@given(st.sampled_from(Outcome))
def test_a_new_object_that_was_not_created_leaves_the_inventory(outcome: Outcome) -> None:
    after = after_apply({REF: Entry(REF)}, [desired()], {REF: ObjectResult(REF, outcome)}, ())
    assert (REF in after) == (outcome not in {Outcome.REFUSED, Outcome.SKIPPED})


@given(st.sampled_from(PruneOutcome))
def test_unsettled_objects_stay_in_the_inventory(outcome: PruneOutcome) -> None:
    entries = {REF: Entry(REF, "1"), OTHER: Entry(OTHER, "2")}
    after = after_prune(entries, [PruneResult(REF, outcome)])
    assert (REF not in after) is (outcome in SETTLED)
    assert OTHER in after


def test_deleted_objects_stay_until_their_namespace_was_tried() -> None:
    namespace = ObjectRef("", "Namespace", "", "shop")
    entries = {REF: Entry(REF, "1"), namespace: Entry(namespace, "2")}
    for tried, kept in ((PruneOutcome.SKIPPED, {REF, namespace}), (PruneOutcome.HELD, {namespace})):
        results = [PruneResult(REF, PruneOutcome.REMOVED), PruneResult(namespace, tried)]
        assert after_prune(entries, results).keys() == kept


def test_an_object_served_by_two_groups_is_recognised_by_its_uid() -> None:
    entries = {REF: Entry(REF, "1"), OTHER: Entry(OTHER, "1")}
    assert [result.ref for result in kept_aliases(entries, {REF})] == [OTHER]
    assert kept_aliases(entries, set()) == ()
    assert kept_aliases({REF: Entry(REF), OTHER: Entry(OTHER)}, {REF}) == ()


def test_before_prune_digests_are_cleared() -> None:
    entries = {REF: Entry(REF, "1", OLD), OTHER: Entry(OTHER, "2", OLD)}
    assert before_prune(entries, {OTHER}) == {REF: Entry(REF, "1"), OTHER: Entry(OTHER, "2", OLD)}
