"""Apply sets, manifests and a recording client for tests of ``governor.kube.applyset`` on a real API server."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from governor.errors import GovernorError, Kind
from governor.kube.applyset import (
    ApplyReport,
    ApplySet,
    Claim,
    DriftMode,
    DriftReport,
    Outcome,
    Owner,
    PruneOutcome,
    PruneReport,
    Repair,
    Settings,
)
from governor.kube.applyset.results import SETTLED
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access
from governor.kube.objects import ApiResource, Object
from governor.process.clock import Clock
from testbed.waiting import until

MANAGER = "set-manager"
PREFIX = "applyset.example"
LABEL = f"{PREFIX}/owner"
INVENTORY = "inventory"

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
SECRETS = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)
DEFINITIONS = ApiResource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)


class RecordingClient(Client):
    """A client that records its requests and lets a test intercept them."""

    __slots__ = ("intercept", "sent")

    def __init__(self, transport: Transport, access: Access, limits: Limits | None = None) -> None:
        super().__init__(transport, access, limits or Limits())
        self.sent: list[Request] = []
        self.intercept: Callable[[Request, Callable[[Request], Awaitable[bytes]]], Awaitable[bytes]] | None = None

    async def send(self, request: Request) -> bytes:
        self.sent.append(request)
        return await (self.intercept(request, super().send) if self.intercept else super().send(request))

    @property
    def writes(self) -> list[str]:
        return [str(request) for request in self.sent if request.method != "GET"]


def make_set(
    client: Client,
    namespace: str,
    *,
    owner: str = "",
    name: str = INVENTORY,
    clock: Clock | None = None,
    claim: Claim | None = None,
    records: Client | None = None,
    **settings: Any,
) -> ApplySet:
    """Return the apply set of a test, with the namespace as its owner id and the place of its inventory."""
    defaults: dict[str, Any] = {"manager": MANAGER, "label_prefix": PREFIX, "default_namespace": namespace}
    place = Owner(owner or namespace, namespace, name)
    return ApplySet(client, place, Settings(**(defaults | settings)), clock, claim, records=records)


async def apply(objects: ApplySet, manifests: Iterable[Any]) -> ApplyReport:
    """Converge and return the results of the desired objects."""
    return (await objects.converge(manifests)).apply


async def drift(
    objects: ApplySet, manifests: Iterable[Any], mode: DriftMode = DriftMode.ENFORCE, repairs: Iterable[Repair] = ()
) -> DriftReport:
    """Converge and return the drift that was found."""
    return (await objects.converge(manifests, drift=mode, repairs=repairs)).drift


async def prune(objects: ApplySet, manifests: Iterable[Any], *, allow_empty: bool = False) -> PruneReport:
    """Converge and return the results of the objects that are no longer desired."""
    return (await objects.converge(manifests, allow_empty=allow_empty)).prune


async def delete_until_gone(objects: ApplySet) -> None:
    """Delete the set, again until no deletion is in progress any more."""

    async def complete() -> bool:
        report = await objects.delete_all()
        outcomes = report.counts().keys() - SETTLED
        assert outcomes <= {PruneOutcome.TERMINATING, PruneOutcome.SKIPPED}, report
        return report.complete

    await until(complete)


def config_map(name: str, namespace: str = "", **data: str) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def namespace_of(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def deployment(name: str, replicas: int = 1, **more: Any) -> Object:
    pod = {"containers": [{"name": "main", "image": "example/one", "args": ["a"]}]}
    labels = {"app": name}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {**spec, "template": template, **more},
    }


def definition(kind: str, group: str, *, scope: str = "Namespaced") -> Object:
    """Return a CustomResourceDefinition that accepts any fields."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
    }


def custom(kind: str, group: str, name: str, **spec: Any) -> Object:
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def kind_of(manifest: Object) -> ApiResource:
    """Return the kind that a CustomResourceDefinition defines."""
    spec = manifest["spec"]
    names = spec["names"]
    return ApiResource(spec["group"], "v1", names["kind"], names["plural"], spec["scope"] == "Namespaced")


def outcomes(report: ApplyReport) -> dict[str, Outcome]:
    return {result.ref.name: result.outcome for result in report.results}


def prune_outcomes(report: PruneReport) -> dict[str, str]:
    return {result.ref.name: result.outcome.value for result in report.results}


async def exists(
    client: Client, resource: ApiResource, name: str, namespace: str = "", *, terminating: bool = False
) -> bool:
    """Return whether the object exists; a terminating one counts only with ``terminating``."""
    try:
        live = await client.get(resource, name, namespace)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return False
    return terminating or not live["metadata"].get("deletionTimestamp")


async def delete_definition(client: Client, name: str) -> None:
    """Delete a CustomResourceDefinition and wait until it is gone."""
    await client.delete(DEFINITIONS, name)

    async def gone() -> bool:
        return not await exists(client, DEFINITIONS, name, terminating=True)

    await until(gone)


async def error_of(call: Awaitable[Any]) -> GovernorError:
    """Return the error that the call raises."""
    try:
        await call
    except GovernorError as error:
        return error
    raise AssertionError("the call raised no error")
