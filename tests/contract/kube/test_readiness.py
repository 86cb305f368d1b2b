"""Readiness covers all kinds of a real API server and the statuses that it sets itself."""

import pytest

from governor.kube.client import Client
from governor.kube.readiness.state import State
from tests.contract.kube.readiness_bed import KNOWN, Cluster, served_kinds


async def test_each_default_kind_is_known(client: Client) -> None:
    served = {
        (group, kind) for group, kind in await served_kinds(client) if "." not in group or group.endswith(".k8s.io")
    }
    assert sorted(served - KNOWN) == [], "neither in RULES_BY_KIND nor in ALWAYS_READY"
    assert len(served) > 50


@pytest.fixture
async def bare(client: Client, namespace: str) -> Cluster:
    """The shared server, without controllers."""
    return Cluster(client, namespace)


async def test_a_definition_is_ready_when_its_kind_is_served_and_failed_when_its_names_are_taken(
    bare: Cluster, namespace: str
) -> None:
    group = f"{namespace}.example.com"

    async def define(plural: str) -> str:
        names = {"plural": plural, "singular": plural, "kind": "Widget", "listKind": f"{plural}List"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1", "served": True, "storage": True, "schema": schema}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
        await bare.create("apiextensions.k8s.io", "CustomResourceDefinition", f"{plural}.{group}", {"spec": spec})
        return f"{plural}.{group}"

    first, second = await define("widgets"), await define("gadgets")
    definition = ("apiextensions.k8s.io", "CustomResourceDefinition")
    await bare.reaches(*definition, first, State.READY, "InitialNamesAccepted")
    readiness = await bare.reaches(*definition, second, State.FAILED, "KindConflict")
    assert '"Widget" is already in use' in readiness.message


async def test_an_aggregated_api_without_its_service_is_not_ready(bare: Cluster, namespace: str) -> None:
    spec = {
        "group": f"{namespace}.example.com",
        "version": "v1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"namespace": namespace, "name": "absent"},
    }
    name = f"v1.{namespace}.example.com"
    await bare.create("apiregistration.k8s.io", "APIService", name, {"spec": spec})
    try:
        readiness = await bare.reaches(
            "apiregistration.k8s.io", "APIService", name, State.PROGRESSING, "ServiceNotFound"
        )
        assert namespace in readiness.message
    finally:
        await bare.delete("apiregistration.k8s.io", "APIService", name)


async def test_a_terminating_object_reports_its_finalizers(bare: Cluster) -> None:
    await bare.create("", "ConfigMap", "held", {}, finalizers=["example.com/hold"])
    await bare.delete("", "ConfigMap", "held")
    readiness = await bare.readiness_of("", "ConfigMap", "held")
    assert (readiness.state, readiness.reason) == (State.TERMINATING, "Finalizers")
    assert "example.com/hold" in readiness.message
