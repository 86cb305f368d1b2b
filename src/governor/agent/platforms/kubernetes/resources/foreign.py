"""Resources of other owners in the runtime's namespaces: the agent does not write them, but its sidecars load them.

A sidecar counts initialisations by type, so a Component that reloads together with a delivered one makes the counter
worthless. So does a resource for which the sidecar restarts within its process. A Component that reads from a delivered
secret store keeps the old secrets until a restart. Pure.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.resources.additions import last_change
from governor.agent.verification.resources import named_stores
from governor.domain.dapr.kinds import in_scope
from governor.domain.dapr.reload import IN_PLACE_KINDS
from governor.kube.objects import Object

COMPONENT: Final = "Component"
CONFIGURATION: Final = "Configuration"
KINDS: Final = frozenset({COMPONENT, *IN_PLACE_KINDS})
"""The kinds of which a change by another owner concerns the counters of a sidecar."""
_SETTLING: Final = timedelta(seconds=10)
"""How long a sidecar may take until it has loaded a changed resource."""


class ForeignResource(msgspec.Struct, frozen=True):
    """A resource of another owner: what identifies its content, and which sidecars load it.

    ``type`` is that of a Component, ``stores`` are the secret stores that it names. ``changed`` is when any client last
    changed it, by the clock of the API server.
    """

    namespace: str
    name: str
    version: str
    type: str
    changed: datetime
    scopes: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()
    kind: str = COMPONENT

    def is_loaded_by(self, namespace: str, app_id: str, configuration: str = "") -> bool:
        """Return whether the sidecar of an application loads it; ``configuration`` is the one that its pod names."""
        if namespace != self.namespace:
            return False
        return self.name == configuration if self.kind == CONFIGURATION else in_scope({"scopes": self.scopes}, app_id)


def foreign_resource(live: Object) -> ForeignResource:
    """Return what the agent needs to know of a resource; its values are not kept."""
    metadata = live["metadata"]
    return ForeignResource(
        metadata["namespace"],
        metadata["name"],
        f"{metadata['uid']}/{metadata['generation']}",
        str((live.get("spec") or {}).get("type", "")) if live["kind"] == COMPONENT else "",
        last_change(live),
        frozenset(live.get("scopes") or ()),
        named_stores(live) if live["kind"] == COMPONENT else frozenset(),
        live["kind"],
    )


def reloaded(
    before: Iterable[ForeignResource], now: Iterable[ForeignResource], written: datetime | None
) -> Iterator[ForeignResource]:
    """Yield the resources that sidecars may have loaded since ``before`` was read, as they were before and now.

    One that was changed shortly before the agent's own write counts too: a sidecar takes a while to load it.
    """
    known, present = set(before), set(now)
    yield from known ^ present
    if written is not None:
        yield from (each for each in known & present if each.changed >= written - _SETTLING)
