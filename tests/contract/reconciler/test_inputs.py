"""The first steps of a ModuleInstance on a real API server: holds, pauses, and values from Secrets and ConfigMaps."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest

from governor.kube.objects import Object
from governor.process.telemetry.instruments import Registry
from tests.contract.kube.applyset.bed import CONFIG_MAPS, SECRETS
from tests.contract.kube.controller.bed import events_of
from tests.contract.reconciler.bed import LOCAL, RESOURCES, HubBed, reason, state

SECRET_TEXT = "hunter2"


@pytest.fixture
async def reconciled(hub: HubBed) -> AsyncIterator[Registry]:
    """A running reconciler with the module ``orders`` on the cluster ``local``."""
    async with hub.reconciling() as registry:
        await hub.apply("Cluster", "local", LOCAL)
        await hub.add_module("orders")
        yield registry


def secret(name: str, namespace: str, text: str, key: str = "values.yaml") -> Object:
    data = {key: base64.b64encode(text.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": data}


async def put_secret(hub: HubBed, text: str, name: str = "s", key: str = "values.yaml") -> None:
    await hub.client.apply(SECRETS, secret(name, hub.namespace, text, key), manager="user", force=True)


def shows_reason(expected: str) -> Any:
    return lambda each: each.get("status", {}).get("reason") == expected


@pytest.mark.usefixtures("reconciled")
async def test_a_missing_source_of_values_is_an_error_until_it_is_there(hub: HubBed) -> None:
    sources = [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c", "key": "k"}}]
    await hub.install("orders", "orders", valuesFrom=sources)
    found = await hub.shows("ModuleInstance", "orders.local", shows_reason("ValuesMissing"))
    assert found["status"]["message"] == "there is no Secret s, which valuesFrom names: create it"
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    await put_secret(hub, "a: 1", key="other")
    message = "the Secret s has no key values.yaml, which valuesFrom names: add it"
    await hub.shows("ModuleInstance", "orders.local", lambda each: each["status"]["message"] == message)
    await put_secret(hub, "a: 1")
    message = "there is no ConfigMap c, which valuesFrom names: create it"
    await hub.shows("ModuleInstance", "orders.local", lambda each: each["status"]["message"] == message)
    metadata = {"name": "c", "namespace": hub.namespace}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "b: yes\n"}}
    await hub.client.create(CONFIG_MAPS, config_map, manager="user")
    done = await hub.shows("ModuleInstance", "orders.local", shows_reason("Ready"))
    assert state(done) == "Ready"
    await hub.client.delete(CONFIG_MAPS, "c", hub.namespace)
    await hub.shows("ModuleInstance", "orders.local", shows_reason("ValuesMissing"))


@pytest.mark.usefixtures("reconciled")
@pytest.mark.parametrize(
    "text", [f"a: [{SECRET_TEXT}", f"- {SECRET_TEXT}", f"a: {SECRET_TEXT}\n---\nb: 2", SECRET_TEXT]
)
async def test_values_that_are_not_a_map_are_an_error_that_quotes_nothing_of_them(hub: HubBed, text: str) -> None:
    await put_secret(hub, text)
    await hub.install("orders", "orders", valuesFrom=[{"secretRef": {"name": "s"}}])
    found = await hub.shows("ModuleInstance", "orders.local", shows_reason("ValuesInvalid"))
    assert SECRET_TEXT not in str(found)
    assert SECRET_TEXT not in str(await events_of(hub.client, "orders.local", hub.namespace))
    await put_secret(hub, f"password: {SECRET_TEXT}")
    done = await hub.shows("ModuleInstance", "orders.local", shows_reason("Ready"))
    assert SECRET_TEXT not in str(done)
    await put_secret(hub, "")
    await hub.install("orders", "orders", valuesFrom=[{"secretRef": {"name": "s"}}], values={"more": 1})
    done = await hub.shows("ModuleInstance", "orders.local", lambda each: each["spec"].get("values"))
    observed = done["metadata"]["generation"]
    found = await hub.shows(
        "ModuleInstance", "orders.local", lambda each: each["status"]["observedGeneration"] >= observed
    )
    assert reason(found) == "Resolved"


@pytest.mark.usefixtures("reconciled")
async def test_a_kubeconfig_of_a_cluster_cannot_be_read_as_values(hub: HubBed) -> None:
    await put_secret(hub, "a: 1", "eu")
    await hub.apply("Cluster", "eu", {"access": {"kubeconfigSecret": {"name": "eu", "key": "values.yaml"}}})
    await hub.install("orders", "orders", valuesFrom=[{"secretRef": {"name": "eu"}}])
    found = await hub.shows("ModuleInstance", "orders.local", shows_reason("SecretForbidden"))
    assert found["status"]["message"] == "Secret eu has the kubeconfig of Cluster eu: values cannot read it"


@pytest.mark.usefixtures("reconciled")
async def test_a_paused_cluster_pauses_its_modules_and_a_lost_module_stops_them(hub: HubBed) -> None:
    await hub.install("orders", "orders")
    await hub.shows("ModuleInstance", "orders.local", shows_reason("Ready"))
    await hub.apply("Cluster", "local", LOCAL | {"paused": True})
    await hub.shows("ModuleInstance", "orders.local", shows_reason("Paused"))
    await hub.shows("Cluster", "local", lambda each: each["status"]["message"].startswith("paused: "))
    await hub.apply("Cluster", "local", LOCAL | {"paused": False})
    await hub.shows("ModuleInstance", "orders.local", shows_reason("Ready"))
    await hub.client.delete(RESOURCES["Module"], "orders-1.0.0", hub.namespace)
    found = await hub.shows("ModuleInstance", "orders.local", shows_reason("ModuleMissing"))
    assert state(found) == "Warning"
