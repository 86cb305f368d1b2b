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
from governor.reconciler.differences import ObjectDifference, difference_text, find_differences
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.kinds.module_instance import CLUSTER_LABEL, MODULE_INSTANCE, ModuleInstance, instance_name
from governor.reconciler.release.objects import Place
from governor.reconciler.render.request import Capabilities
from governor.reconciler.setup import installation
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

    async def fetch(client: Client) -> list[Object]:
        return [each async for each in client.list(MODULE_INSTANCE.resource, hub.namespace, labels=labels)]

    found = _call(hub, fetch)
    if output != "table":
        return machine_text(found, output)
    return modules_table([_read(each, ModuleInstance) for each in found], _now()) if found else ""


def describe_module(hub: Hub, name: str, cluster: str, output: Format) -> str:
    """Return the description of a module on a cluster."""
    found = _get(hub, MODULE_INSTANCE.resource, instance_name(name, cluster))
    if output != "table":
        return machine_text(found, output)
    return module_text(_read(found, ModuleInstance), _now())


def describe_cluster(hub: Hub, name: str, output: Format) -> str:
    """Return the description of a cluster."""
    found = _get(hub, CLUSTER.resource, name)
    if output != "table":
        return machine_text(found, output)
    return cluster_text(_read(found, Cluster), _now())


def diff_module(hub: Hub, name: str, cluster: str, output: Format) -> tuple[str, bool]:
    """Return how a module in its cluster differs from what is rendered now, and whether anything does."""

    async def compare() -> tuple[ObjectDifference, ...]:
        async with _on_cluster(hub, name, cluster) as found:
            place = Place(found.target, hub.namespace, "", "", SystemClock())
            return await find_differences(found.hub, place, found.instance, found.module)

    differences = asyncio.run(compare())
    text = difference_text(differences) if output == "table" else machine_text(differences, output)
    return text, bool(differences)


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
async def _on_cluster(hub: Hub, name: str, cluster: str) -> AsyncIterator[_OnCluster]:
    async with _connected(hub) as (client, targets):
        found = await client.get(MODULE_INSTANCE.resource, instance_name(name, cluster), hub.namespace)
        instance = _read(found, ModuleInstance)
        of_version = module_object_name(instance.spec.module, instance.spec.version)
        module = _read(await client.get(MODULE.resource, of_version, hub.namespace), Module)
        of = _read(await client.get(CLUSTER.resource, cluster, hub.namespace), Cluster)
        yield _OnCluster(client, await targets.client(of, ""), instance, module)


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
