"""Checks before anything is written."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset.manifests import Wanted, check, defined_kinds, expand, kinds_in
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import ApiResource, Object
from tests.unit.values.strategies import brief, scalars, trees_of

CONFIG_MAP = ApiResource("", "v1", "ConfigMap", "configmaps", True, frozenset({"patch"}))
NAMESPACE = ApiResource("", "v1", "Namespace", "namespaces", False, frozenset({"patch"}))
REVIEW = ApiResource("authorization.k8s.io", "v1", "SubjectAccessReview", "reviews", False, frozenset({"create"}))
SERVED = {(kind.group, kind.version, kind.kind): kind for kind in (CONFIG_MAP, NAMESPACE, REVIEW)}
OWNER = Owner("me", "home", "inventory")
SETTINGS = Settings("ours", "x.example", default_namespace="shop")


def manifest(kind: str = "ConfigMap", api_version: str = "v1", **metadata: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", **metadata}}


def checked(*manifests: Any, settings: Settings = SETTINGS) -> tuple[Wanted, ...]:
    return check(expand(manifests), SERVED, OWNER, settings, lambda ref: ref.name == "inventory")


def problems(*manifests: Any, settings: Settings = SETTINGS) -> list[str]:
    with pytest.raises(GovernorError) as caught:
        checked(*manifests, settings=settings)
    assert caught.value.kind is Kind.INVALID
    return [str(detail) for detail in caught.value.details]


def definition(**spec: Any) -> Object:
    names = {"kind": "Thing", "plural": "things"}
    versions = [
        {"name": "v1", "served": True, "storage": False},
        {"name": "v2", "served": True, "storage": True},
        {"name": "v0", "served": False, "storage": False},
    ]
    whole = {"group": "x.example", "scope": "Namespaced", "names": names, "versions": versions, **spec}
    return manifest("CustomResourceDefinition", "apiextensions.k8s.io/v1") | {"spec": whole}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kind": "A", "metadata": {"name": "a"}}, "apiVersion: is missing"),
        ({"apiVersion": "v1", "metadata": {"name": "a"}}, "kind: is missing"),
        ({"apiVersion": 1, "kind": "A", "metadata": {"name": "a"}}, "apiVersion: is missing or no text"),
        ({"apiVersion": "v1", "kind": "A"}, "metadata: is missing"),
        ({"apiVersion": "v1", "kind": "A", "metadata": {}}, "metadata.name: is missing"),
        (None, "manifest 1: is no map"),
        ([], "manifest 1: is no map"),
        (manifest(generateName="a-"), "metadata.generateName: is refused"),
        (manifest(name=".."), "'..' cannot be the name"),
        (manifest(namespace="a/b"), "'a/b' cannot be the name of a namespace"),
        (manifest(namespace=7), "7 cannot be the name of a namespace"),
        (manifest(labels=[]), None),
        (manifest(labels=["a"]), "metadata.labels: is no map"),
        (manifest(uid="1"), "metadata.uid: is set by the server"),
        (manifest(resourceVersion="1"), "metadata.resourceVersion: is set by the server"),
        (manifest(managedFields=[{}]), "metadata.managedFields: is set by the server"),
        (manifest("Unknown"), "the cluster does not serve Unknown in v1"),
        (manifest("ConfigMap", "v2"), "the cluster does not serve ConfigMap in v2"),
        (manifest("Namespace", namespace="shop"), "a Namespace belongs to no namespace"),
        (manifest("SubjectAccessReview", "authorization.k8s.io/v1"), "cannot be applied"),
        (manifest(name="inventory"), "the set's own inventory"),
        (manifest("Namespace", name="home"), "holds the set's own inventory"),
        (manifest(labels={"x.example/owner": "you"}), "is written by the set itself"),
        (manifest(creationTimestamp=None), None),
        (manifest("Namespace", namespace=""), None),
    ],
)
def test_each_manifest_is_checked(wrong: Any, told: str | None) -> None:
    if told is None:
        assert len(checked(wrong)) == 1
    else:
        (problem,) = problems(wrong)
        assert told in problem


def test_all_problems_come_at_once_and_say_where() -> None:
    found = problems(manifest(), {"kind": "List", "items": [manifest("Unknown", name="b"), 5]}, manifest(), None)
    assert found == [
        "manifest 2, item 1 (Unknown b): the cluster does not serve Unknown in v1",
        "manifest 2, item 2: is no map",
        "manifest 4: is no map",
        "ConfigMap shop/a: is there 2 times",
    ]


def test_namespaces_are_filled_in_and_the_given_manifest_is_not_changed() -> None:
    given_one = manifest(creationTimestamp=None)
    (wanted,) = checked(given_one)
    assert wanted.ref.namespace == "shop"
    assert wanted.manifest["metadata"] == {"name": "a", "namespace": "shop"}
    assert given_one == manifest(creationTimestamp=None)
    (problem,) = problems(manifest(), settings=Settings("ours", "x.example"))
    assert "metadata.namespace: is missing, and there is no default" in problem


def test_bounds_exclude_other_namespaces_and_what_belongs_to_none() -> None:
    settings = Settings("ours", "x.example", default_namespace="shop", allowed_namespaces=frozenset({"shop"}))
    assert len(checked(manifest(), settings=settings)) == 1
    assert len(problems(manifest(namespace="other"), manifest("Namespace"), settings=settings)) == 2


def test_lists_of_every_kind_are_expanded() -> None:
    inner = {"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "c"}}]}
    plain = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [manifest(name="b"), inner]}
    assert [each.ref.name for each in checked(manifest(), plain)] == ["a", "b", "c"]
    # A kind that is only called so is none.
    assert len(expand([manifest("AllowList", "x.example/v1") | {"items": []}])) == 1


def test_definitions_bring_their_kinds() -> None:
    thing = manifest("Thing", "x.example/v2")
    old = manifest("Thing", "x.example/v1", name="b")
    served = SERVED | {
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"): ApiResource(
            "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False
        )
    }
    manifests = expand([thing, old, definition()])
    assert kinds_in(manifests) == {("apiextensions.k8s.io", "v1", "CustomResourceDefinition")}
    wanted = check(manifests, served, OWNER, SETTINGS, lambda _: False)
    assert [each.defined_here for each in wanted] == [True, True, False]
    assert wanted[0].resource == ApiResource("x.example", "v2", "Thing", "things", namespaced=True)


@pytest.mark.parametrize("broken", [{"versions": None}, {"names": {}}, {"group": 5}, {"scope": None}])
def test_a_broken_definition_brings_nothing(broken: dict[str, Any]) -> None:
    assert defined_kinds([definition(**broken)]) == {}


def test_digests_tell_manifests_apart_and_secrets_have_none() -> None:
    first, second, same = checked(manifest(), manifest(name="b"), manifest(name="c"))
    assert len({first.digest, second.digest, same.digest}) == 3
    assert checked(manifest())[0].digest == first.digest
    secret = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
    wanted = check(expand([manifest("Secret")]), {("", "v1", "Secret"): secret}, OWNER, SETTINGS, lambda _: False)
    assert wanted[0].digest == ""


@brief
@given(st.lists(st.one_of(trees_of(scalars), st.just(manifest("Thing", "x.example/v1"))), max_size=3))
def test_no_tree_makes_the_check_itself_fail(trees: list[Any]) -> None:
    numbered = expand(trees)
    kinds_in(numbered)
    if not numbered:
        assert check(numbered, {}, OWNER, SETTINGS, lambda _: False) == ()
        return
    with pytest.raises(GovernorError) as caught:
        check(numbered, {}, OWNER, SETTINGS, lambda _: False)
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(
    ("owner", "namespace", "name"),
    [(bad, "home", "inventory") for bad in ("", "a b", "-a", "a" * 64, "a/b")]
    + [("me", "..", "inventory"), ("me", "home", ".."), ("me", "", "inventory"), ("me", "home", "")],
)
def test_an_owner_without_proper_names_is_refused(owner: str, namespace: str, name: str) -> None:
    with pytest.raises(GovernorError) as caught:
        Owner(owner, namespace, name)
    assert caught.value.kind is Kind.INVALID
