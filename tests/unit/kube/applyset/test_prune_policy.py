"""What may be removed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.kube.applyset.entries import Entry
from governor.kube.applyset.prune_policy import Content, held, judge, others, out_of_bounds
from governor.kube.applyset.results import Removal
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import Object, ObjectRef
from tests.unit.values.strategies import brief

SETTINGS = Settings("ours", "x.example", keep={"keep": "yes"})
OWNER = Owner("me", "home", "inventory")
REF = ObjectRef("", "ConfigMap", "shop", "a")
APPLIED = {"manager": "ours", "operation": "Apply"}
MINE = {"x.example/owner": "me"}


def live(uid: str = "1", **metadata: Any) -> Object:
    return {"kind": "ConfigMap", "metadata": {"name": "a", "uid": uid, **metadata}}


@pytest.mark.parametrize(
    ("uid", "there", "outcome"),
    [
        ("1", None, Removal.ABSENT),
        ("", None, Removal.ABSENT),
        ("1", live(labels=MINE), Removal.REMOVED),
        ("", live(labels=MINE), Removal.REMOVED),
        ("1", live("2", labels=MINE), Removal.FOREIGN),
        ("1", live("2"), Removal.FOREIGN),
        ("1", live(), Removal.FOREIGN),
        ("", live(), Removal.FOREIGN),
        ("1", live(labels={"x.example/owner": "you"}, managedFields=[APPLIED]), Removal.FOREIGN),
        ("1", live(managedFields=[APPLIED]), Removal.RELEASED),
        ("", live(managedFields=[APPLIED]), Removal.RELEASED),
        ("1", live(managedFields=[{"manager": "ours", "operation": "Update"}]), Removal.FOREIGN),
        ("1", live(labels=MINE, annotations={"keep": "yes"}), Removal.KEPT),
        ("1", live(labels=MINE, annotations={"keep": "no"}), Removal.REMOVED),
        ("1", live("2", labels=MINE, annotations={"keep": "yes"}), Removal.FOREIGN),
        ("1", live(labels=MINE, deletionTimestamp="now", finalizers=["f"]), Removal.TERMINATING),
        ("1", live(labels=None, annotations=None), Removal.FOREIGN),
    ],
)
def test_only_what_carries_our_label_and_our_uid_is_removed(uid: str, there: Object | None, outcome: Removal) -> None:
    assert judge(Entry(REF, uid), there, OWNER, SETTINGS).outcome is outcome


@brief
@given(
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["1", "2"]),
    st.sampled_from(["", "me", "you"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_no_mixture_of_circumstances_removes_what_is_not_ours(
    uid: str, there: str, owner: str, applied: bool, kept: bool, going: bool
) -> None:
    metadata: dict[str, Any] = {"labels": {"x.example/owner": owner} if owner else {}}
    metadata |= {"managedFields": [APPLIED]} if applied else {}
    metadata |= {"annotations": {"keep": "yes"}} if kept else {}
    metadata |= {"deletionTimestamp": "now"} if going else {}
    outcome = judge(Entry(REF, uid), live(there, **metadata), OWNER, SETTINGS).outcome
    ours = owner == "me" and uid in ("", there) and not kept
    assert (outcome in (Removal.REMOVED, Removal.TERMINATING)) is ours


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
def test_bounds_hold_for_removal_too(namespace: str, allowed: frozenset[str] | None, outside: bool) -> None:
    settings = Settings("ours", "x.example", allowed_namespaces=allowed)
    assert out_of_bounds(ObjectRef("", "ConfigMap", namespace, "a"), settings) is outside


def content(kind: str, name: str, uid: str, *owners: str, group: str = "", terminating: bool = False) -> Content:
    return Content(ObjectRef(group, kind, "shop", name), uid, frozenset(owners), terminating)


OURS = {ObjectRef("apps", "Deployment", "shop", "d"): "d", ObjectRef("", "Service", "shop", "s"): "s"}


@pytest.mark.parametrize(
    "made",
    [
        content("ServiceAccount", "default", "1"),
        content("ConfigMap", "kube-root-ca.crt", "1"),
        content("Event", "x", "1"),
        content("Event", "x", "1", group="events.k8s.io"),
        content("Deployment", "d", "d", group="apps"),
        content("ReplicaSet", "d-1", "1", "d", group="apps"),
        content("EndpointSlice", "s-1", "1", "s", group="discovery.k8s.io"),
        content("Endpoints", "s", "1"),
        content("Pod", "theirs", "1", terminating=True),
    ],
)
def test_what_is_ours_or_made_for_everybody_holds_nothing(made: Content) -> None:
    assert others([made], OURS) == ()


@pytest.mark.parametrize(
    "theirs",
    [
        content("ServiceAccount", "robot", "1"),
        content("ConfigMap", "a", "1"),
        content("Secret", "default", "1"),
        content("Deployment", "d", "another", group="apps"),
        content("ReplicaSet", "x", "1", "stranger", group="apps"),
        content("Pod", "two-owners", "1", "d", "stranger"),
        content("Endpoints", "other", "1"),
        content("Service", "s", "another"),
        content("Lease", "leader", "1", group="coordination.k8s.io"),
        content("PersistentVolumeClaim", "data", "1"),
    ],
)
def test_anything_else_holds(theirs: Content) -> None:
    assert others([theirs], OURS) == (theirs.ref,)


def test_what_is_made_by_what_we_made_is_ours_however_deep() -> None:
    chain = [content("Pod", "p", "3", "2"), content("ReplicaSet", "r", "2", "d"), content("Log", "l", "4", "3")]
    assert others(chain, OURS) == ()
    assert [ref.name for ref in others(chain, {})] == ["l", "p", "r"]


def test_two_that_own_each_other_are_not_ours() -> None:
    circle = [content("A", "a", "1", "2"), content("A", "b", "2", "1")]
    assert len(others(circle, OURS)) == 2


def test_examples_are_few() -> None:
    result = held(REF, tuple(ObjectRef("", "Pod", "shop", str(number)) for number in range(9)))
    assert len(result.holds) == 5
    assert result.reason.endswith("and 4 more")
