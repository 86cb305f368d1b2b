"""The objects of all releases of the chart in one cluster, as a watch of the benchmark receives them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from bench.reconciler.background import in_background
from governor.kube.client import Client
from governor.kube.objects import ApiResource
from governor.kube.reflector import Added, Changed, Entry, Event, Metadata, Reflector, Removed, Unreadable, View
from governor.process.clock import SystemClock
from governor.reconciler.core_kinds import CONFIG_MAPS, SECRETS
from toolchain.repository import REPOSITORY

CHART: Final = REPOSITORY / "bench" / "reconciler" / "seven-objects"
NAMESPACE: Final = "bench"
"""Namespace of the objects of all our releases."""
OBJECTS: Final = 7
"""Objects of one release."""
KINDS: Final = (
    CONFIG_MAPS,
    SECRETS,
    ApiResource("", "v1", "Service", "services", namespaced=True),
    ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True),
    ApiResource("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True),
    ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True),
)
"""Kinds of the chart's objects; there are two ConfigMaps."""
SYNCED_WITHIN_S: Final = 60.0
SELECTOR: Final = f"app.kubernetes.io/name={CHART.name}"


class _Labels(msgspec.Struct, frozen=True, gc=False):
    release: str = msgspec.field(name="app.kubernetes.io/instance", default="")
    revision: str = msgspec.field(name="bench/revision", default="")


class _ChartMetadata(Metadata, frozen=True):
    labels: _Labels = _Labels()


class ChartObject(View, frozen=True):
    """Release and revision of an object."""

    metadata: _ChartMetadata


class Tally:
    """Number of objects of each release that have each revision."""

    def __init__(self) -> None:
        self._counts: Counter[_Labels] = Counter()

    def receive(self, event: Event[ChartObject]) -> None:
        """Count an event."""
        if isinstance(event, Changed | Removed):
            self._add(event.old, -1)
        if isinstance(event, Added | Changed):
            self._add(event.new, 1)

    def _add(self, entry: Entry[ChartObject], number: int) -> None:
        if not isinstance(entry, Unreadable):
            self._counts[entry.metadata.labels] += number

    def complete(self, revision: str) -> frozenset[str]:
        """Return the releases of which all objects have a revision."""
        found = (key for key, count in self._counts.items() if count == OBJECTS)
        return frozenset(key.release for key in found if key.revision == revision)

    def total(self, revision: str) -> int:
        """Return the number of objects that have a revision."""
        return sum(count for key, count in self._counts.items() if key.revision == revision)

    def __len__(self) -> int:
        return sum(self._counts.values())


@asynccontextmanager
async def watched(client: Client, namespace: str) -> AsyncIterator[Tally]:
    """Watch the objects of the chart in a namespace for the duration of a block; only their metadata are sent."""
    tally = Tally()
    reflectors = [
        Reflector(
            client,
            kind,
            ChartObject,
            clock=SystemClock(),
            on_event=tally.receive,
            namespace=namespace,
            labels=SELECTOR,
            metadata_only=True,
        )
        for kind in KINDS
    ]
    async with in_background(*(each.run() for each in reflectors)):
        async with asyncio.timeout(SYNCED_WITHIN_S):
            for each in reflectors:
                await each.synced()
        yield tally
