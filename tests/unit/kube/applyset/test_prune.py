"""Which objects may be pruned."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.applyset.entries import Entry
from governor.kube.applyset.prune import decide, is_out_of_scope
from governor.kube.applyset.results import PruneOutcome
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object, ObjectRef

SETTINGS = Settings("ours", "x.example", keep_annotations={"keep": "yes"})
OWNER = Owner("me", "home", "inventory")
REF = ObjectRef("", "ConfigMap", "shop", "a")
APPLIED = {"manager": "ours", "operation": "Apply"}
MINE = {"x.example/owner": "me"}


def live(uid: str = "1", **metadata: Any) -> Object:
    return {"kind": "ConfigMap", "metadata": {"name": "a", "uid": uid, **metadata}}


@pytest.mark.parametrize(
    ("uid", "existing", "outcome"),
    [
        ("1", None, PruneOutcome.ABSENT),
        ("", None, PruneOutcome.ABSENT),
        ("1", live(labels=MINE), PruneOutcome.REMOVED),
        ("", live(labels=MINE), PruneOutcome.REMOVED),
        ("1", live("2", labels=MINE), PruneOutcome.FOREIGN),
        ("1", live("2"), PruneOutcome.FOREIGN),
        ("1", live(), PruneOutcome.FOREIGN),
        ("", live(), PruneOutcome.FOREIGN),
        ("1", live(labels={"x.example/owner": "you"}, managedFields=[APPLIED]), PruneOutcome.FOREIGN),
        ("1", live(managedFields=[APPLIED]), PruneOutcome.RELEASED),
        ("", live(managedFields=[APPLIED]), PruneOutcome.RELEASED),
        ("1", live(managedFields=[{"manager": "ours", "operation": "Update"}]), PruneOutcome.FOREIGN),
        ("1", live(labels=MINE, annotations={"keep": "yes"}), PruneOutcome.KEPT),
        ("1", live(labels=MINE, annotations={"keep": "no"}), PruneOutcome.REMOVED),
        ("1", live("2", labels=MINE, annotations={"keep": "yes"}), PruneOutcome.FOREIGN),
        ("1", live(labels=MINE, deletionTimestamp="now", finalizers=["f"]), PruneOutcome.TERMINATING),
        ("1", live(labels=None, annotations=None), PruneOutcome.FOREIGN),
    ],
)
def test_only_objects_with_our_label_and_uid_are_removed(
    uid: str, existing: Object | None, outcome: PruneOutcome
) -> None:
    assert decide(Entry(REF, uid), existing, OWNER, SETTINGS).outcome is outcome


def test_an_inherited_object_is_not_removed_before_it_is_taken_over() -> None:
    settings = Settings("ours", "x.example", inherited_owners=frozenset({"gone"}), refuse_foreign=True)
    inherited = live(labels={"x.example/owner": "gone"}, managedFields=[APPLIED])
    assert decide(Entry(REF, "1"), inherited, OWNER, settings).outcome is PruneOutcome.FOREIGN


@given(
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["1", "2"]),
    st.sampled_from(["", "me", "you"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_no_combination_removes_an_object_that_is_not_ours(
    uid: str, live_uid: str, owner: str, applied: bool, kept: bool, terminating: bool
) -> None:
    metadata: dict[str, Any] = {"labels": {"x.example/owner": owner} if owner else {}}
    metadata |= {"managedFields": [APPLIED]} if applied else {}
    metadata |= {"annotations": {"keep": "yes"}} if kept else {}
    metadata |= {"deletionTimestamp": "now"} if terminating else {}
    outcome = decide(Entry(REF, uid), live(live_uid, **metadata), OWNER, SETTINGS).outcome
    ours = owner == "me" and uid in ("", live_uid) and not kept
    assert (outcome in (PruneOutcome.REMOVED, PruneOutcome.TERMINATING)) is ours


@pytest.mark.parametrize(
    ("namespace", "allowed", "outside"),
    [
        ("shop", None, False),
        ("", None, False),
        ("shop", frozenset({"shop"}), False),
        ("shop", frozenset({"other"}), True),
        ("shop", frozenset[str](), True),
        ("", frozenset({"shop"}), True),
    ],
)
def test_allowed_namespaces_apply_to_pruning_too(namespace: str, allowed: frozenset[str] | None, outside: bool) -> None:
    settings = Settings("ours", "x.example", allowed_namespaces=allowed)
    assert is_out_of_scope(ObjectRef("", "ConfigMap", namespace, "a"), settings) is outside
