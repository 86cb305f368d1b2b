"""The inventory of the runtime's namespaces: workloads as observed, and all Dapr resources of any manager."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from governor.agent.platforms.kubernetes.plans.affected import live_pods
from governor.agent.platforms.kubernetes.plans.hot_reload import HOT_RELOAD, SidecarFacts
from governor.agent.platforms.kubernetes.resources.live_resources import resource_ref
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Workload
from governor.domain.dapr.kinds import GROUP, kind_of, kinds
from governor.domain.inventories import (
    NAMED_PODS,
    FoundResource,
    FoundWorkload,
    Inventory,
    ReloadingSidecars,
    limited,
    masked_manifest,
)
from governor.kube.applyset.live import find_kinds, managers_of
from governor.kube.client import Client
from governor.kube.objects import Object, ref_of

_PREFLIGHT: Final = "runtime-governor.dev/preflight"
"""The label of copies for a throw-away sidecar, which are no resources of the runtime."""


class NamespaceInventory:
    """Reads the inventory of some namespaces; ``owner_label`` names the runtime that owns an object.

    ``ask`` returns what the sidecars of pods have reported, by instance.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Sequence[str],
        observer: Observer,
        owner_label: str,
        ask: Callable[[Sequence[Pod]], Awaitable[Mapping[str, SidecarFacts]]],
    ) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)
        self._observer = observer
        self._owner_label = owner_label
        self._ask = ask

    async def read(self) -> Inventory:
        """Return the inventory, with one list per kind and namespace."""
        await self._observer.synced()
        found = await dapr_objects(self._client, self._namespaces)
        sidecars = await self._ask([pod for each in self._observer.workloads() for pod in live_pods(each)])
        return inventory_of(self._namespaces, self._observer.workloads(), found, self._owner_label, sidecars)


async def dapr_objects(client: Client, namespaces: Iterable[str]) -> list[Object]:
    """Return all Dapr resources in some namespaces, without the copies for throw-away sidecars."""
    found: list[Object] = []
    served = await find_kinds(client, {(GROUP, "", kind) for kind in kinds()})
    for namespace in namespaces:
        for resource in served.values():
            found += [each async for each in client.list(resource, namespace) if _PREFLIGHT not in _labels(each)]
    return found


def inventory_of(
    namespaces: Sequence[str],
    workloads: Iterable[Workload],
    objects: Iterable[Object],
    owner_label: str,
    sidecars: Mapping[str, SidecarFacts],
) -> Inventory:
    """Return the inventory of what was found; ``sidecars`` is what sidecars have reported, by instance."""
    resources = [_resource(each, owner_label) for each in objects]
    return limited(
        Inventory(
            tuple(namespaces),
            tuple(sorted((_workload(each, sidecars) for each in workloads), key=lambda each: each.workload)),
            tuple(sorted(resources, key=lambda each: each.resource)),
        )
    )


def _workload(workload: Workload, sidecars: Mapping[str, SidecarFacts]) -> FoundWorkload:
    images = {pod.sidecar.image for pod in workload.pods if pod.sidecar}
    app_ids = {pod.app_id for pod in workload.pods} | {workload.app_id}
    return FoundWorkload(
        workload.ref,
        tuple(sorted(app_ids - {""})),
        tuple(sorted({image.rpartition(":")[2] for image in images})),
        len(workload.pods),
        tuple(_reloading(live_pods(workload), sidecars)),
    )


def _reloading(pods: Iterable[Pod], sidecars: Mapping[str, SidecarFacts]) -> Iterator[ReloadingSidecars]:
    """Yield the sidecars that have reported hot reload, by what decides which changes they load."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for pod in pods:
        known = sidecars.get(pod.instance)
        if known is not None and HOT_RELOAD in known.features:
            groups.setdefault((known.version, pod.app_id, pod.configuration), []).append(pod.name)
    for key, names in sorted(groups.items()):
        yield ReloadingSidecars(*key, len(names), tuple(sorted(names)[:NAMED_PODS]))


def _resource(live: Object, owner_label: str) -> FoundResource:
    owner = _labels(live).get(owner_label, "")
    # Without the schema of its version it is not known what is sensitive.
    manifest = None if owner or kind_of(live) is None else masked_manifest(live)
    return FoundResource(resource_ref(ref_of(live)), owner, tuple(sorted(managers_of(live))), manifest)


def _labels(live: Object) -> dict[str, str]:
    return live["metadata"].get("labels") or {}
