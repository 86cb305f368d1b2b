"""Which objects may be pruned."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.applyset.entries import Entry
from governor.kube.applyset.prune_policy import Content, decide, foreign_contents, held, is_out_of_scope
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


def make_content(kind: str, name: str, uid: str, *owners: str, group: str = "", terminating: bool = False) -> Content:
    return Content(ObjectRef(group, kind, "shop", name), uid, frozenset(owners), terminating)


OURS = {ObjectRef("apps", "Deployment", "shop", "d"): "d", ObjectRef("", "Service", "shop", "s"): "s"}


@pytest.mark.parametrize(
    "content",
    [
        make_content("ServiceAccount", "default", "1"),
        make_content("ConfigMap", "kube-root-ca.crt", "1"),
        make_content("Event", "x", "1"),
        make_content("Event", "x", "1", group="events.k8s.io"),
        make_content("Deployment", "d", "d", group="apps"),
        make_content("ReplicaSet", "d-1", "1", "d", group="apps"),
        make_content("EndpointSlice", "s-1", "1", "s", group="discovery.k8s.io"),
        make_content("Endpoints", "s", "1"),
        make_content("Pod", "theirs", "1", terminating=True),
    ],
)
def test_own_and_default_objects_do_not_hold_a_namespace(content: Content) -> None:
    assert foreign_contents([content], OURS) == ()


@pytest.mark.parametrize(
    "foreign",
    [
        make_content("ServiceAccount", "robot", "1"),
        make_content("ConfigMap", "a", "1"),
        make_content("Secret", "default", "1"),
        make_content("Deployment", "d", "another", group="apps"),
        make_content("ReplicaSet", "x", "1", "foreign", group="apps"),
        make_content("Pod", "two-owners", "1", "d", "foreign"),
        make_content("Endpoints", "other", "1"),
        make_content("Service", "s", "another"),
        make_content("Lease", "leader", "1", group="coordination.k8s.io"),
        make_content("PersistentVolumeClaim", "data", "1"),
    ],
)
def test_all_other_objects_hold_a_namespace(foreign: Content) -> None:
    assert foreign_contents([foreign], OURS) == (foreign.ref,)


def test_dependents_at_any_depth_are_ours() -> None:
    chain = [
        make_content("Pod", "p", "3", "2"),
        make_content("ReplicaSet", "r", "2", "d"),
        make_content("Log", "l", "4", "3"),
    ]
    assert foreign_contents(chain, OURS) == ()
    assert [ref.name for ref in foreign_contents(chain, {})] == ["l", "p", "r"]


def test_objects_that_own_each_other_are_not_ours() -> None:
    cycle = [make_content("A", "a", "1", "2"), make_content("A", "b", "2", "1")]
    assert len(foreign_contents(cycle, OURS)) == 2


def test_only_five_examples_are_listed() -> None:
    result = held(REF, tuple(ObjectRef("", "Pod", "shop", str(number)) for number in range(9)))
    assert len(result.blockers) == 5
    assert result.reason.endswith("and 4 more")
