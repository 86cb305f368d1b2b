"""What the commands ask of a hub: the objects of one namespace, as text."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Transport
from governor.kube.config.kubeconfig import load_or_in_cluster
from governor.kube.objects import ApiResource, Object
from governor.process.clock import SystemClock
from governor.reconciler import previews
from governor.reconciler.commands import Hub
from governor.reconciler.descriptions import cluster_text, module_text, modules_table
from governor.reconciler.differences import DryRun, difference_text, dry_run
from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.installation import INSTALLATION
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.kinds.module_instance import (
    CLUSTER_LABEL,
    MODULE_INSTANCE,
    ROLLBACK,
    InstanceMetadata,
    ModuleInstance,
    instance_name,
)
from governor.reconciler.previews import resolved
from governor.reconciler.release.objects import Place
from governor.reconciler.render.request import Capabilities
from governor.reconciler.resolution.documents import read_documents
from governor.reconciler.setup import installation
from governor.reconciler.states.rollback import goal_of
from governor.reconciler.targets import Targets
from governor.values.printing import Format, machine_text

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def install(hub: Hub, *, create_namespace: bool) -> list[str]:
    """Prepare the hub and return what was done."""
    return _call(
        hub,
        lambda client: installation.install(client, hub.namespace, SystemClock(), create_namespace=create_namespace),
    )


def list_modules(hub: Hub, cluster: str, output: Format) -> str:
    """Return the ModuleInstances of a cluster, or of all; an empty table is an empty text."""
    labels = f"{CLUSTER_LABEL}={cluster}" if cluster else ""

    async def fetch(client: Client) -> tuple[list[Object], list[Object]]:
        found = [each async for each in client.list(MODULE_INSTANCE.resource, hub.namespace, labels=labels)]
        clusters = [each async for each in client.list(CLUSTER.resource, hub.namespace)] if output == "table" else []
        return found, [each for each in clusters if cluster in ("", each["metadata"]["name"])]

    found, clusters = _call(hub, fetch)
    if output != "table":
        return machine_text(found, output)
    instances = [_read(each, ModuleInstance) for each in found]
    return modules_table(instances, _now(), [_read(each, Cluster) for each in clusters])


def describe_module(hub: Hub, name: str, cluster: str, output: Format) -> str:
    """Return the description of a module on a cluster."""
    found = _call(hub, lambda client: _instance(client, hub.namespace, name, cluster))
    if output != "table":
        return machine_text(found, output)
    return module_text(_read(found, ModuleInstance), _now())


def describe_cluster(hub: Hub, name: str, output: Format) -> str:
    """Return the description of a cluster."""
    found = _get(hub, CLUSTER.resource, name)
    if output != "table":
        return machine_text(found, output)
    return cluster_text(_read(found, Cluster), _now())


def diff_module(
    hub: Hub, name: str, cluster: str, output: Format, *, texts: Mapping[str, str], with_manifest: bool
) -> tuple[str, bool]:
    """Return how a module in its cluster differs from what is rendered now, and whether anything does.

    With documents in ``texts``, from what would be rendered if the hub had them.
    """

    async def compare() -> DryRun:
        async with _on_cluster(hub, name, cluster, texts) as found:
            place = Place(found.target, hub.namespace, "", "", SystemClock())
            return await dry_run(found.hub, place, found.instance, found.module)

    found = asyncio.run(compare())
    return _dry_run_text(found, output, with_manifest=with_manifest), bool(found.differences)


def _dry_run_text(found: DryRun, output: Format, *, with_manifest: bool) -> str:
    if output != "table":
        return machine_text(found if with_manifest else found.differences, output)
    text = difference_text(found.differences)
    return f"{found.manifest}---\n{text}" if with_manifest else text


def rollback_module(hub: Hub, name: str, cluster: str, *, undo: bool) -> str:
    """Request the rollback of a module, or withdraw the request, and return what happens."""

    async def annotate(client: Client) -> str:
        resource, of = MODULE_INSTANCE.resource, instance_name(name, cluster)
        instance = _read(await _instance(client, hub.namespace, name, cluster), ModuleInstance)
        goal = goal_of(instance)
        if goal is None and not undo:
            message = f"{name} was never ready on {cluster} with another spec: there is nothing to roll back to"
            raise GovernorError(Kind.PRECONDITION, "rollback", message)
        value = None if undo else str(instance.metadata.generation)
        change = {"metadata": {"annotations": {ROLLBACK: value}}}
        await client.patch(resource, of, hub.namespace, change, manager="governor-cli")
        if undo or goal is None:
            return f"{name} on {cluster} is no longer rolled back on request"
        return f"{name} on {cluster} is rolled back from {instance.spec.version} to {goal.version}"

    return _call(hub, annotate)


def render_module(hub: Hub, name: str, cluster: str) -> tuple[str, list[str]]:
    """Return what a module on a cluster consists of as YAML without secrets, and the names of unknown hooks."""

    async def render() -> tuple[str, list[str]]:
        async with _on_cluster(hub, name, cluster) as found:
            return await _rendered(await previews.from_hub(found.hub, found.target, found.instance, found.module))

    return asyncio.run(render())


def render_files(
    texts: Mapping[str, str], name: str, cluster: str, kube_version: str, api_versions: tuple[str, ...]
) -> tuple[str, list[str]]:
    """Return the same for a module that documents define."""
    capabilities = Capabilities(kube_version, api_versions or None)
    return asyncio.run(_rendered(previews.from_documents(texts, name, cluster, capabilities)))


async def _rendered(preview: previews.Preview) -> tuple[str, list[str]]:
    rendered = await previews.render(preview)
    return previews.text_of(rendered, preview), [str(each) for each in rendered.unknown_hooks]


class _OnCluster(NamedTuple):
    """A module on a cluster: its objects in the hub, and the clients of both clusters."""

    hub: Client
    target: Client
    instance: ModuleInstance
    module: Module


@asynccontextmanager
async def _on_cluster(
    hub: Hub, name: str, cluster: str, texts: Mapping[str, str] | None = None
) -> AsyncIterator[_OnCluster]:
    async with _connected(hub) as (client, targets):
        of = _read(await client.get(CLUSTER.resource, cluster, hub.namespace), Cluster)
        target = await targets.client(of, "")
        if texts:
            instance, module = await _changed(client, hub.namespace, name, cluster, texts)
        else:
            instance = _read(await _instance(client, hub.namespace, name, cluster), ModuleInstance)
            of_version = module_object_name(instance.spec.module, instance.spec.version)
            module = _read(await client.get(MODULE.resource, of_version, hub.namespace), Module)
        yield _OnCluster(client, target, instance, module)


async def _instance(client: Client, namespace: str, name: str, cluster: str) -> Object:
    """Return the ModuleInstance of a module; NOT_FOUND with what the Cluster says of the module."""
    try:
        return await client.get(MODULE_INSTANCE.resource, instance_name(name, cluster), namespace)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        status = _read(await client.get(CLUSTER.resource, cluster, namespace), Cluster).status
        why = next((each.message for each in status.modules if each.module == name), "")
        message = why or "no Installation asks for it; `governor module list` shows what exists"
        raise GovernorError(Kind.NOT_FOUND, "module", f"module {name} is not on {cluster}: {message}") from error


async def _changed(
    client: Client, namespace: str, name: str, cluster: str, texts: Mapping[str, str]
) -> tuple[ModuleInstance, Module]:
    """Return a module on a cluster as if the hub had the documents in ``texts``."""
    present = [
        _read(each, definition.view)
        for definition in (CLUSTER, MODULE, CHANNEL, INSTALLATION, MODULE_INSTANCE)
        async for each in client.list(definition.resource, namespace)
    ]
    documents = read_documents(texts, present)
    spec, module = resolved(documents, name, cluster)
    known = documents.catalogue.instance(spec.module, cluster)
    metadata = InstanceMetadata(instance_name(spec.module, cluster), namespace)
    instance = known if isinstance(known, ModuleInstance) else ModuleInstance(metadata=metadata, spec=spec)
    return msgspec.structs.replace(instance, spec=spec), module


@asynccontextmanager
async def _connected(hub: Hub) -> AsyncIterator[tuple[Client, Targets]]:
    """Provide a client of the hub's cluster, and the clients of the clusters that it manages."""
    access = load_or_in_cluster(hub.kubeconfig, hub.context)
    async with Transport() as transport:
        client = Client(transport, access)
        yield client, Targets(transport, client, access, Limits())


def _call(hub: Hub, function: Callable[[Client], Awaitable[T]]) -> T:
    """Run one function with a client of the hub's cluster and return its result."""

    async def call() -> T:
        async with _connected(hub) as (client, _):
            return await function(client)

    return asyncio.run(call())


def _get(hub: Hub, resource: ApiResource, name: str) -> Object:
    return _call(hub, lambda client: client.get(resource, name, hub.namespace))


def _read(found: Object, view: type[S]) -> S:
    try:
        return msgspec.convert(found, view)
    except msgspec.ValidationError as error:
        name = found["metadata"]["name"]
        message = f"{found['kind']} {name} cannot be read: {error}; it may be of a newer version: use -o yaml"
        raise GovernorError(Kind.UNIMPLEMENTED, "unreadable-object", message) from error


def _now() -> datetime:
    return datetime.now(UTC)
