"""What the inventory says before and after objects are written or removed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset.bookkeeping import doomed, forgotten, intended, is_applied, recorded, same_objects
from governor.kube.applyset.entries import Entry
from governor.kube.applyset.manifests import Wanted
from governor.kube.applyset.results import FORGOTTEN, GOOD, ObjectResult, Outcome, Removal, RemovalResult
from governor.kube.objects import ApiResource, ObjectRef
from tests.unit.values.strategies import brief

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
