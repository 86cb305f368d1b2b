"""Dapr's kinds, as generated from its sources."""

from typing import Any

import pytest

from governor.domain.dapr.kinds import is_secret_store, kind_of, kinds, schema_of
from governor.domain.dapr.reload import RELOAD, Reload


def test_every_kind_of_dapr_is_known_with_its_versions() -> None:
    served = {name: kind.api_versions for name, kind in kinds().items()}
    assert served == {
        "Component": ("dapr.io/v1alpha1",),
        "Configuration": ("dapr.io/v1alpha1",),
        "HTTPEndpoint": ("dapr.io/v1alpha1",),
        "MCPServer": ("dapr.io/v1alpha1",),
        "Resiliency": ("dapr.io/v1alpha1",),
        "Subscription": ("dapr.io/v1alpha1", "dapr.io/v2alpha1"),
        "WorkflowAccessPolicy": ("dapr.io/v1alpha1",),
    }


def test_only_a_configuration_cannot_be_scoped() -> None:
    assert [name for name, kind in kinds().items() if not kind.scoped] == ["Configuration"]


def test_every_kind_has_a_reload_rule() -> None:
    assert RELOAD.keys() == kinds().keys()
    live = {name for name, kind in kinds().items() if kind.reload is Reload.LIVE}
    assert live == {"Component", "MCPServer", "Subscription", "WorkflowAccessPolicy"}


@pytest.mark.parametrize(
    "manifest",
    [
        None,
        [],
        "Component",
        {},
        {"kind": "Component"},
        {"kind": ["Component"], "apiVersion": "dapr.io/v1alpha1"},
        {"kind": "Component", "apiVersion": "dapr.io/v2alpha1"},
        {"kind": "Component", "apiVersion": ["dapr.io/v1alpha1"]},
        {"kind": "Installation", "apiVersion": "runtime-governor.dev/v1alpha1"},
    ],
)
def test_a_manifest_that_dapr_does_not_serve_has_no_kind(manifest: Any) -> None:
    assert kind_of(manifest) is None


def test_a_manifest_finds_its_kind() -> None:
    for name, kind in kinds().items():
        for api_version in kind.api_versions:
            assert kind_of({"kind": name, "apiVersion": api_version}) == kind


def test_schemas_contain_only_keywords_that_validation_explains() -> None:
    found: set[str] = set()
    for name, kind in kinds().items():
        for api_version in kind.api_versions:
            found |= keywords(schema_of(name, api_version))
    structure = {"properties", "items", "additionalProperties", "type", "required"}
    ruled = {"$comment", "anyOf", "minProperties", "maxProperties"}
    values = {"const", "enum", "maximum", "minimum", "minItems", "minLength", "uniqueItems"}
    assert found == structure | ruled | values


def keywords(schema: dict[str, Any]) -> set[str]:
    """Return the keywords of a schema and of all schemas inside it, without property names."""
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return set(schema).union(*(keywords(part) for part in inner if isinstance(part, dict)))


@pytest.mark.parametrize(
    ("kind", "component_type", "expected"),
    [
        ("Component", "secretstores.local.file", True),
        ("Component", "secretstores.Local.File", True),
        ("Component", "SecretStores.local.file", False),
        ("Component", "secretstoresx.local", False),
        ("Component", "state.redis", False),
        ("Configuration", "secretstores.local.file", False),
    ],
)
def test_a_secret_store_is_a_component_of_that_category_in_lower_case(
    kind: str, component_type: str, *, expected: bool
) -> None:
    manifest = {"kind": kind, "metadata": {"name": "vault"}, "spec": {"type": component_type}}
    assert is_secret_store(manifest) is expected
