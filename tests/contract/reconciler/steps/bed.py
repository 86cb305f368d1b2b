"""A hub that installs charts in its own cluster. No controllers run there: tests write the status of workloads."""

import base64
import datetime
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import pack
from governor.kube.applyset.inventory import FORMAT, checksum
from governor.kube.client import Client, Request, Transport
from governor.kube.objects import ApiResource, Object
from governor.process.clock import SystemClock
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.release.objects import SETTINGS, owner_of
from governor.reconciler.render.request import Renderer
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    SECRETS,
    config_map,
    deployment,
    error_of,
)
from tests.contract.kube.controller.bed import events_of
from tests.contract.reconciler.bed import CHART, LOCAL, WITHIN_S, HubBed, condition

POLICIES = ApiResource(
    "admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False
)
POLICY_BINDINGS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    namespaced=False,
)

WORKER = "governor-reconciler-worker"
"""Name of the Deployment of workers."""


class ShiftedClock(SystemClock):
    """The system's clock, whose timestamps are in the future."""

    def __init__(self, shift_s: float) -> None:
        self._shift = datetime.timedelta(seconds=shift_s)

    def now(self) -> datetime.datetime:
        return super().now() + self._shift


class ModuleBed(HubBed):
    """One hub, and the namespace of its modules' objects."""

    def __init__(
        self,
        plane: ControlPlane,
        client: Client,
        transport: Transport,
        namespace: str,
        directory: Path,
        renderer: Renderer,
    ) -> None:
        super().__init__(plane, client, transport, namespace, directory / "chart-cache", renderer)
        self.space = f"{namespace}-apps"
        self._directory = directory
        self._shift_s = 0.0
        self._running = AsyncExitStack()

    @property
    def group(self) -> str:
        """An API group of this test's own."""
        return f"{self.namespace}.example"

    async def prepare(self) -> None:
        """Create the namespace of the objects, and the Cluster ``local``."""
        await self.create_namespace(self.space)
        await self.apply("Cluster", "local", LOCAL)

    async def create_namespace(self, name: str) -> None:
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.client.create(NAMESPACES, manifest, manager="tests")

    async def start(self) -> None:
        """Start a reconciler."""
        await self._running.enter_async_context(self.reconciling(clock=ShiftedClock(self._shift_s)))

    async def stop(self) -> None:
        """Stop the reconciler."""
        await self._running.aclose()

    async def advance(self, seconds: float) -> None:
        """Start another reconciler so much later. A clock that jumps would only lose the Lease."""
        await self.stop()
        self._shift_s += seconds
        await self.start()

    def write_chart(self, name: str, *, crds: str = "", **templates: str) -> Path:
        """Write a chart with these templates, by their names without extension, and return its directory."""
        directory = self._directory / name
        (directory / "templates").mkdir(parents=True)
        (directory / "Chart.yaml").write_text(f"apiVersion: v2\nname: {name}\nversion: 1.0.0\n")
        for file, text in templates.items():
            (directory / "templates" / f"{file}.yaml").write_text(text)
        if crds:
            (directory / "crds").mkdir()
            (directory / "crds" / "all.yaml").write_text(crds)
        return directory

    async def add(self, module: str, version: str = "1.0.0", chart: Path = CHART, **more: Any) -> None:
        """Create a Module with a chart of this machine; by default the one that renders the objects in its values."""
        source = {"directory": str(chart), "digest": digest_of(chart)}
        await self.add_module(module, version, **({"chart": source, "namespace": self.space} | more))

    async def deploy(self, module: str, version: str = "1.0.0", **more: Any) -> Object:
        """Apply the Installation of a module, and wait until that is Ready."""
        await self.install(module, module, version, **more)
        return await self.becomes(module, "Ready", version=version, **more)

    async def becomes(self, module: str, expected: str, **spec: Any) -> Object:
        """Wait until the ModuleInstance has this state or reason, of its present generation and with this spec."""

        def is_so(found: Object) -> bool:
            status = found.get("status", {})
            is_observed = status.get("observedGeneration") == found["metadata"]["generation"]
            return has(found["spec"], spec) and is_observed and expected in (status["state"], status["reason"])

        return await self.shows("ModuleInstance", f"{module}.local", is_so)

    async def is_applied(self, module: str, **spec: Any) -> Object:
        """Wait until the objects of a module are applied, whether ready or not."""

        def is_so(found: Object) -> bool:
            deployed = condition(found, "Deployed")
            is_observed = deployed.get("observedGeneration") == found["metadata"]["generation"]
            return has(found["spec"], spec) and is_observed and deployed["status"] == "True"

        return await self.shows("ModuleInstance", f"{module}.local", is_so)

    async def find(self, resource: ApiResource, name: str, namespace: str | None = None) -> Object | None:
        """Return an object of a module, or None."""
        place = (self.space if namespace is None else namespace) if resource.namespaced else ""
        try:
            return await self.client.get(resource, name, place)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None

    async def data(self, name: str) -> dict[str, str] | None:
        """Return the data of a ConfigMap of a module, or None if it does not exist."""
        found = await self.find(CONFIG_MAPS, name)
        return None if found is None else found.get("data", {})

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until an asynchronous condition holds."""

        async def holds() -> bool:
            return bool(await condition())

        await until(holds, within_s=WITHIN_S, every_s=0.02)

    async def has_data(self, name: str, expected: Mapping[str, str] | None) -> None:
        """Wait until a ConfigMap of a module has this data, or with None until it is gone."""

        async def is_so() -> bool:
            return await self.data(name) == expected

        await self.until(is_so)

    async def edit(self, name: str, manager: str = "user", **data: str) -> None:
        """Change the data of a ConfigMap of a module as another client."""
        await self.client.patch(CONFIG_MAPS, name, self.space, {"data": data}, manager=manager)

    async def write_status(self, resource: ApiResource, name: str, status: Object) -> None:
        """Write the status of an object of a module as its controller does."""
        place = self.space if resource.namespaced else ""
        await self.client.patch(resource, name, place, {"status": status}, manager="controllers", subresource="status")

    async def ready_deployment(self, name: str, replicas: int) -> None:
        """Write the status of a Deployment whose pods are available, as its controller does."""
        await self.write_status_of_deployment(name, available=replicas)

    async def write_status_of_deployment(self, name: str, *, available: int) -> None:
        """Write the status of a Deployment of which so many pods are available."""

        async def is_written() -> bool:
            found = await self.find(DEPLOYMENTS, name)
            if found is None:
                return False
            counts = dict.fromkeys(("replicas", "updatedReplicas"), found["spec"]["replicas"])
            ready = dict.fromkeys(("readyReplicas", "availableReplicas"), available)
            observed = {"observedGeneration": found["metadata"]["generation"]}
            await self.write_status(DEPLOYMENTS, name, counts | ready | observed)
            return True

        await self.until(is_written)

    async def scale(self, name: str, replicas: int) -> None:
        """Set the replicas of a Deployment as an autoscaler does."""
        await self.client.patch(
            DEPLOYMENTS, name, self.space, {"spec": {"replicas": replicas}}, manager="scaler", subresource="scale"
        )

    async def has_replicas(self, name: str, expected: int) -> None:
        """Wait until a Deployment has this number of replicas in its spec."""

        async def is_so() -> bool:
            found = await self.find(DEPLOYMENTS, name)
            return found is not None and found["spec"]["replicas"] == expected

        await self.until(is_so)

    async def finalize_namespace(self, name: str) -> None:
        """Complete the deletion of a namespace as its controller does; its contents must be gone."""

        async def is_terminating() -> bool:
            found = await self.find(NAMESPACES, name)
            return found is not None and "deletionTimestamp" in found["metadata"]

        await self.until(is_terminating)
        found = await self.find(NAMESPACES, name)
        body = json.dumps({**(found or {}), "spec": {"finalizers": []}}).encode()
        await self.client.send(Request("PUT", f"{NAMESPACES.path('', name)}/finalize", body=body))

    async def refuse(self, name: str) -> None:
        """Let the API server refuse ConfigMaps of this name in the modules' namespace."""
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["configmaps"],
        }
        selector = {"matchLabels": {"kubernetes.io/metadata.name": self.space}}
        policy = {
            "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
            "validations": [{"expression": f"object.metadata.name != '{name}'", "message": "not on my cluster"}],
        }
        metadata = {"name": self.namespace}
        manifest = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": metadata, "spec": policy}
        await self.client.create(POLICIES, manifest, manager="user")
        spec = {"policyName": self.namespace, "validationActions": ["Deny"]}
        binding = {"apiVersion": POLICIES.api_version, "kind": POLICY_BINDINGS.kind, "metadata": metadata, "spec": spec}
        await self.client.create(POLICY_BINDINGS, binding, manager="user")

        async def is_active() -> bool:
            return await self._is_refused(name)

        await self.until(is_active)

    async def _is_refused(self, name: str) -> bool:
        probe = self.client.create(CONFIG_MAPS, config_map(name, self.space), manager="user", dry_run=True)
        with suppress(AssertionError):  # it is accepted
            return "not on my cluster" in str(await error_of(probe))
        return False

    async def accept(self, name: str) -> None:
        """End what ``refuse`` has begun for ConfigMaps of this name."""
        await self.client.delete(POLICY_BINDINGS, self.namespace)

        async def is_over() -> bool:
            return not await self._is_refused(name)

        await self.until(is_over)

    async def write_inventory(self, module: str, claim: str, *, labelled: bool) -> None:
        """Write the inventory of a module with the claim of another hub; without label, unseen by watches."""
        owner = owner_of(module, self.namespace)
        found = await self.find(CONFIG_MAPS, owner.name, self.namespace) or config_map(owner.name, self.namespace)
        labels = {SETTINGS.inventory_label: owner.id} if labelled else {}
        data = {"format": FORMAT, "owner": owner.id, "entries": pack({})} | found.get("data", {}) | {"claim": claim}
        metadata = found["metadata"] | {"labels": labels}
        manifest = found | {"metadata": metadata, "data": data | {"digest": checksum(data)}}
        write = self.client.replace if "uid" in metadata else self.client.create
        await write(CONFIG_MAPS, manifest, manager="elsewhere")

    async def add_cluster(self, name: str, plane: ControlPlane, server: str = "") -> None:
        """Create a Cluster with the administrator's kubeconfig of a control plane, or of a server before it."""
        config = yaml.safe_load(plane.kubeconfig.read_text())
        if server:
            config["clusters"][0]["cluster"]["server"] = server
        data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
        metadata = {"name": name, "namespace": self.namespace}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        await self.client.create(SECRETS, secret, manager="user")
        await self.apply("Cluster", name, {"access": {"kubeconfigSecret": {"name": name}}})

    async def events(self, module: str) -> list[Object]:
        """Return all Events about a ModuleInstance."""
        return await events_of(self.client, f"{module}.local", self.namespace)

    async def reasons(self, module: str) -> list[tuple[str, str]]:
        """Return type and reason of all Events about a ModuleInstance."""
        return [(each["type"], each["reason"]) for each in await self.events(module)]

    async def has_event(self, module: str, event_type: str, reason: str) -> None:
        """Wait for an Event about a ModuleInstance."""

        async def is_recorded() -> bool:
            return (event_type, reason) in await self.reasons(module)

        await self.until(is_recorded)


async def create_workers(bed: ModuleBed) -> None:
    """Create the Deployment of workers, scaled to zero; tests run them in its place."""
    manifest = deployment(WORKER)
    manifest["metadata"]["namespace"] = bed.namespace
    manifest["spec"]["replicas"] = 0
    await bed.client.create(DEPLOYMENTS, manifest, manager="helm")


async def has_workers(bed: ModuleBed, expected: int) -> None:
    """Wait until the Deployment of workers has this number of replicas in its spec."""

    async def is_so() -> bool:
        found = await bed.find(DEPLOYMENTS, WORKER, bed.namespace)
        return found is not None and found["spec"]["replicas"] == expected

    await bed.until(is_so)


def listed(*objects: Object) -> Object:
    """Return the values with which the chart ``objects`` renders these objects."""
    return {"objects": list(objects)}


def has(found: Any, expected: Any) -> bool:
    """Return whether a value has all the fields of another one."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(has(found.get(key), value) for key, value in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(has, found, expected))
    return bool(found == expected)
