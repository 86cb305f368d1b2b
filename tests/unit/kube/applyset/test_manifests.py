"""Validation of manifests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset.manifests import (
    Desired,
    defined_kinds,
    expand,
    kinds_to_discover,
    validate,
    with_digest_key,
)
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.objects import ApiResource, Object
from governor.values.digest import digest
from tests.unit.values.strategies import scalars, trees_of

CONFIG_MAP = ApiResource("", "v1", "ConfigMap", "configmaps", True, frozenset({"patch"}))
NAMESPACE = ApiResource("", "v1", "Namespace", "namespaces", False, frozenset({"patch"}))
REVIEW = ApiResource("authorization.k8s.io", "v1", "SubjectAccessReview", "reviews", False, frozenset({"create"}))
SERVED = {(kind.group, kind.version, kind.kind): kind for kind in (CONFIG_MAP, NAMESPACE, REVIEW)}
OWNER = Owner("me", "home", "inventory")
SETTINGS = Settings("ours", "x.example", default_namespace="shop")


def manifest(kind: str = "ConfigMap", api_version: str = "v1", **metadata: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", **metadata}}


def validated(*manifests: Any, settings: Settings = SETTINGS) -> tuple[Desired, ...]:
    return validate(expand(manifests), SERVED, OWNER, settings)


def problems(*manifests: Any, settings: Settings = SETTINGS) -> list[str]:
    with pytest.raises(GovernorError) as caught:
        validated(*manifests, settings=settings)
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
    ("invalid", "message"),
    [
        ({"kind": "A", "metadata": {"name": "a"}}, "apiVersion: is missing"),
        ({"apiVersion": "v1", "metadata": {"name": "a"}}, "kind: is missing"),
        ({"apiVersion": 1, "kind": "A", "metadata": {"name": "a"}}, "apiVersion: is missing or not a string"),
        ({"apiVersion": "v1", "kind": "A"}, "metadata: is missing"),
        ({"apiVersion": "v1", "kind": "A", "metadata": {}}, "metadata.name: is missing"),
        (None, "manifest 1: is not a map"),
        ([], "manifest 1: is not a map"),
        (manifest(generateName="a-"), "metadata.generateName: is not supported"),
        (manifest(name=".."), "'..' is not a valid object name"),
        (manifest(namespace="a/b"), "'a/b' is not a valid namespace name"),
        (manifest(namespace=7), "7 is not a valid namespace name"),
        (manifest(labels=[]), None),
        (manifest(labels=["a"]), "metadata.labels: is not a map"),
        (manifest(uid="1"), "metadata.uid: is set by the server"),
        (manifest(resourceVersion="1"), "metadata.resourceVersion: is set by the server"),
        (manifest(managedFields=[{}]), "metadata.managedFields: is set by the server"),
        (manifest("Unknown"), "the cluster does not serve Unknown in v1"),
        (manifest("ConfigMap", "v2"), "the cluster does not serve ConfigMap in v2"),
        (manifest("Namespace", namespace="shop"), "Namespace is cluster-scoped"),
        (manifest("SubjectAccessReview", "authorization.k8s.io/v1"), "cannot be applied"),
        (manifest(name="inventory", namespace="home"), "the set's own inventory"),
        (manifest("Namespace", name="home"), "contains the set's own inventory"),
        (manifest(labels={"x.example/owner": "you"}), "is set by the apply set"),
        (manifest(annotations={"x.example/digest-key": "k"}), "is set by the apply set"),
        (manifest(creationTimestamp=None), None),
        (manifest("Namespace", namespace=""), None),
    ],
)
def test_invalid_manifests_are_rejected(invalid: Any, message: str | None) -> None:
    if message is None:
        assert len(validated(invalid)) == 1
    else:
        (problem,) = problems(invalid)
        assert message in problem


def test_all_problems_are_reported_at_once_with_their_positions() -> None:
    found = problems(manifest(), {"kind": "List", "items": [manifest("Unknown", name="b"), 5]}, manifest(), None)
    assert found == [
        "manifest 2, item 1 (Unknown b): the cluster does not serve Unknown in v1",
        "manifest 2, item 2: is not a map",
        "manifest 4: is not a map",
        "ConfigMap shop/a: is defined 2 times",
    ]


def test_the_default_namespace_is_set_on_a_copy() -> None:
    original = manifest(creationTimestamp=None)
    (desired,) = validated(original)
    assert desired.ref.namespace == "shop"
    assert desired.manifest["metadata"] == {"name": "a", "namespace": "shop"}
    assert original == manifest(creationTimestamp=None)
    (problem,) = problems(manifest(), settings=Settings("ours", "x.example"))
    assert "metadata.namespace: is missing, and Settings.default_namespace is not set" in problem


def test_allowed_namespaces_exclude_others_and_cluster_scoped_kinds() -> None:
    settings = Settings("ours", "x.example", default_namespace="shop", allowed_namespaces=frozenset({"shop"}))
    assert len(validated(manifest(), settings=settings)) == 1
    assert len(problems(manifest(namespace="other"), manifest("Namespace"), settings=settings)) == 2


def test_typed_and_untyped_lists_are_expanded() -> None:
    inner = {"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "c"}}]}
    plain = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [manifest(name="b"), inner]}
    assert [each.ref.name for each in validated(manifest(), plain)] == ["a", "b", "c"]
    # A custom kind may end in List.
    assert len(expand([manifest("AllowList", "x.example/v1") | {"items": []}])) == 1


def test_definitions_provide_their_kinds() -> None:
    thing = manifest("Thing", "x.example/v2")
    old = manifest("Thing", "x.example/v1", name="b")
    served = SERVED | {
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"): ApiResource(
            "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False
        )
    }
    manifests = expand([thing, old, definition()])
    assert kinds_to_discover(manifests) == {("apiextensions.k8s.io", "v1", "CustomResourceDefinition")}
    desired = validate(manifests, served, OWNER, SETTINGS)
    assert [each.defined_in_set for each in desired] == [True, True, False]
    assert desired[0].resource == ApiResource("x.example", "v2", "Thing", "things", namespaced=True)


@pytest.mark.parametrize("broken", [{"versions": None}, {"names": {}}, {"group": 5}, {"scope": None}])
def test_an_invalid_definition_provides_no_kinds(broken: dict[str, Any]) -> None:
    assert defined_kinds([definition(**broken)]) == {}


def test_digests_differ_per_manifest_and_those_of_secrets_per_key() -> None:
    first, second, same = validated(manifest(), manifest(name="b"), manifest(name="c"))
    assert len({first.digest, second.digest, same.digest}) == 3
    assert validated(manifest())[0].digest == first.digest
    secret = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
    desired = validate(expand([manifest("Secret")]), {("", "v1", "Secret"): secret}, OWNER, SETTINGS)
    assert desired[0].digest == ""
    keyed = [with_digest_key(desired[0], key, SETTINGS) for key in ("one", "one", "two")]
    assert keyed[0] == keyed[1]
    assert len({each.digest for each in keyed} | {digest(desired[0].manifest)}) == 3
    assert keyed[2].manifest["metadata"]["annotations"] == {"x.example/digest-key": "two"}
    assert "annotations" not in desired[0].manifest["metadata"]


@given(st.lists(st.one_of(trees_of(scalars), st.just(manifest("Thing", "x.example/v1"))), max_size=3))
def test_validation_never_fails_with_another_error(trees: list[Any]) -> None:
    located = expand(trees)
    kinds_to_discover(located)
    if not located:
        assert validate(located, {}, OWNER, SETTINGS) == ()
        return
    with pytest.raises(GovernorError) as caught:
        validate(located, {}, OWNER, SETTINGS)
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(
    ("owner", "namespace", "name"),
    [(bad, "home", "inventory") for bad in ("", "a b", "-a", "a" * 64, "a/b")]
    + [("me", "..", "inventory"), ("me", "home", ".."), ("me", "", "inventory"), ("me", "home", "")],
)
def test_an_owner_with_invalid_names_is_rejected(owner: str, namespace: str, name: str) -> None:
    with pytest.raises(GovernorError) as caught:
        Owner(owner, namespace, name)
    assert caught.value.kind is Kind.INVALID
