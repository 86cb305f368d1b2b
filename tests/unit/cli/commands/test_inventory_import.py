"""The Profile that an inventory becomes."""

from typing import Any

import pytest

from governor.cli.commands.inventory_import import import_inventory
from governor.domain.documents import Profile, ResourceRef, read_document
from governor.domain.inventories import FoundResource, Inventory
from governor.errors import GovernorError, Kind

KUBECTL, HELM = "kubectl-client-side-apply", "helm"
REFERENCE = {"secretKeyRef": {"name": "redis", "key": "password"}}
INLINE = {"value": "***"}


def found(name: str, password: dict[str, Any], owner: str = "", *managers: str) -> FoundResource:
    manifest = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": name, "namespace": "orders"},
        "spec": {"type": "state.redis", "version": "v1", "metadata": [{"name": "redisPassword", **password}]},
    }
    ref = ResourceRef("Component", "orders", name)
    return FoundResource(ref, owner, managers or (KUBECTL,), None if owner else manifest)


def test_what_no_runtime_owns_becomes_a_profile_for_this_runtime() -> None:
    resources = (found("a", REFERENCE), found("b", REFERENCE, "", HELM), found("own", REFERENCE, "eu-1"))
    imported = import_inventory("eu-1", Inventory(("orders",), resources=resources))
    profile = read_document(imported.document)
    assert isinstance(profile, Profile)
    assert (profile.metadata.name, profile.spec.selector.runtime) == ("imported-eu-1", "eu-1")
    assert [each["metadata"]["name"] for each in profile.spec.resources] == ["a", "b"]
    assert imported.warnings == ()
    assert "--set 'adoptedManagers={helm,kubectl-client-side-apply}'" in imported.notes[-1]


def test_a_resource_with_an_inline_sensitive_value_is_left_out_with_the_command_that_moves_it() -> None:
    resources = (found("a", REFERENCE), found("b", INLINE))
    [warning] = import_inventory("eu-1", Inventory(("orders",), resources=resources)).warnings
    assert "Component/orders/b is left out: spec.metadata[redisPassword].value" in warning
    assert "kubectl create secret generic b --namespace orders --from-literal=redisPassword=VALUE" in warning


def test_names_that_an_agent_has_sent_are_quoted_in_the_command() -> None:
    resources = (found("a", REFERENCE), found("b; id", INLINE))
    [warning] = import_inventory("eu-1", Inventory(("orders",), resources=resources)).warnings
    assert "kubectl create secret generic 'b; id' --namespace orders " in warning


def test_a_resource_of_another_runtime_and_a_limited_inventory_are_named() -> None:
    resources = (found("a", REFERENCE), found("theirs", REFERENCE, "us-1"))
    theirs, more = import_inventory("eu-1", Inventory(("orders",), resources=resources, left_out=3)).warnings
    assert theirs == "Component/orders/theirs is left out: it belongs to runtime 'us-1'"
    assert more.startswith("3 resources are missing")


def test_nothing_to_import_is_an_error_that_says_why() -> None:
    with pytest.raises(GovernorError, match="Component/orders/b is left out") as raised:
        import_inventory("eu-1", Inventory(("orders",), resources=(found("b", INLINE),)))
    assert raised.value.kind is Kind.PRECONDITION
