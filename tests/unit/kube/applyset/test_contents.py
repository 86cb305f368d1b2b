"""Which contents hold a namespace."""

import pytest

from governor.kube.applyset.contents import Content, foreign_contents, held, owners_to_find, without_collected
from governor.kube.applyset.settings import TOLERATED_CONTENTS
from governor.kube.objects import ObjectRef

REF = ObjectRef("", "Namespace", "", "shop")


def make_content(
    kind: str, name: str, uid: str, *owners: str, group: str = "", terminating: bool = False, marker: str = ""
) -> Content:
    markers = frozenset({marker} if marker else ())
    return Content(
        ObjectRef(group, kind, "shop", name), uid, frozenset(owners), markers=markers, terminating=terminating
    )


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
        make_content("Lease", "leader", "1", group="coordination.k8s.io"),
        make_content("ConfigMap", "istio-ca-root-cert", "1"),
        make_content("ConfigMap", "roots", "1", marker="trust.cert-manager.io/bundle"),
        make_content("NetworkPolicy", "deny", "1", group="networking.k8s.io", marker="generate.kyverno.io/policy-name"),
        make_content("Secret", "builder-dockercfg-x7", "1", marker="kubernetes.io/service-account.name"),
        make_content("RoleBinding", "system:deployers", "1", group="rbac.authorization.k8s.io"),
    ],
)
def test_own_and_default_objects_do_not_hold_a_namespace(content: Content) -> None:
    assert foreign_contents([content], OURS, TOLERATED_CONTENTS) == ()


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
        make_content("Secret", "builder-password", "1"),
        make_content("Secret", "robot-token", "1", marker="kubernetes.io/service-account.name"),
        make_content("RoleBinding", "admin", "1", group="rbac.authorization.k8s.io"),
        make_content("ConfigMap", "istio-ca-root-cert", "1", group="another.example"),
        make_content("PersistentVolumeClaim", "data", "1"),
    ],
)
def test_all_other_objects_hold_a_namespace(foreign: Content) -> None:
    assert foreign_contents([foreign], OURS, TOLERATED_CONTENTS) == (foreign.ref,)


def test_dependents_at_any_depth_are_ours() -> None:
    chain = [
        make_content("Pod", "p", "3", "2"),
        make_content("ReplicaSet", "r", "2", "d"),
        make_content("Log", "l", "4", "3"),
    ]
    assert foreign_contents(chain, OURS, ()) == ()
    assert [ref.name for ref in foreign_contents(chain, {}, ())] == ["l", "p", "r"]


def test_the_uid_of_an_absent_object_does_not_stand_for_another_object() -> None:
    forged = {ObjectRef("", "ConfigMap", "shop", "absent"): "theirs"}
    theirs = [make_content("Deployment", "d", "theirs", group="apps"), make_content("Pod", "p", "1", "theirs")]
    assert len(foreign_contents(theirs, forged, ())) == 2


def test_objects_that_own_each_other_are_not_ours() -> None:
    cycle = [make_content("A", "a", "1", "2"), make_content("A", "b", "2", "1")]
    assert len(foreign_contents(cycle, OURS, ())) == 2


def test_only_five_examples_are_listed() -> None:
    result = held(REF, tuple(ObjectRef("", "Pod", "shop", str(number)) for number in range(9)))
    assert len(result.blockers) == 5
    assert result.reason.endswith("and 4 more")


SETS = ("apps", "ReplicaSet")
KINDS = {("", "Pod"), SETS}


def pod(*owners: str, kinds: frozenset[tuple[str, str]] = frozenset({SETS})) -> Content:
    return Content(ObjectRef("", "Pod", "shop", "p"), "p", frozenset(owners), kinds)


def test_an_object_none_of_whose_owners_exists_is_collected() -> None:
    contents = [pod("gone")]
    assert owners_to_find(contents, KINDS) == {SETS}
    assert without_collected(contents, [], {SETS}) == []


@pytest.mark.parametrize(
    "contents",
    [
        [pod()],
        [pod("r", "gone"), make_content("ReplicaSet", "r", "r", group="apps")],
        [pod("node", kinds=frozenset({("", "Node")}))],
        [pod("r", "node", kinds=frozenset({SETS, ("", "Node")}))],
    ],
    ids=["without owner", "one owner exists", "owner outside of namespaces", "one owner outside of namespaces"],
)
def test_an_object_that_may_have_an_owner_is_not_collected(contents: list[Content]) -> None:
    assert without_collected(contents, [], owners_to_find(contents, KINDS)) == contents


def test_an_owner_that_was_created_between_the_lists_keeps_its_dependents() -> None:
    later = [make_content("ReplicaSet", "r", "r", group="apps")]
    assert without_collected([pod("r")], later, {SETS}) == [pod("r")]
