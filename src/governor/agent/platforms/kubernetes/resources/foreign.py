"""Components of other owners in the runtime's namespaces: the agent does not write them, but its sidecars load them.

A sidecar counts initialisations by type, so one that reloads together with a delivered Component makes the counter
worthless; and one that reads from a delivered secret store keeps the old secrets until a restart. Pure.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.resources.additions import last_change
from governor.agent.verification.resources import named_stores
from governor.domain.dapr.kinds import in_scope
from governor.kube.objects import Object

_SETTLING: Final = timedelta(seconds=10)
"""How long a sidecar may take to initialise a changed Component."""


class ForeignComponent(msgspec.Struct, frozen=True):
    """A Component of another owner: what identifies its content, and which sidecars load it.

    ``stores`` are the secret stores that it names. ``changed`` is when any client last changed it, by the clock of the
    API server.
    """

    namespace: str
    name: str
    version: str
    type: str
    changed: datetime
    scopes: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()

    def is_loaded_by(self, namespace: str, app_id: str) -> bool:
        """Return whether the sidecar of an application loads it."""
        return namespace == self.namespace and in_scope({"scopes": self.scopes}, app_id)


def foreign_component(live: Object) -> ForeignComponent:
    """Return what the agent needs to know of a Component; its values are not kept."""
    metadata = live["metadata"]
    return ForeignComponent(
        metadata["namespace"],
        metadata["name"],
        f"{metadata['uid']}/{metadata['generation']}",
        str((live.get("spec") or {}).get("type", "")),
        last_change(live),
        frozenset(live.get("scopes") or ()),
        named_stores(live),
    )


def reloaded(
    before: Iterable[ForeignComponent], now: Iterable[ForeignComponent], written: datetime | None
) -> Iterator[ForeignComponent]:
    """Yield the Components that sidecars may have initialised since ``before`` was read, as they were before and now.

    One that was changed shortly before the agent's own write counts too: a sidecar takes a while to initialise it.
    """
    known, present = set(before), set(now)
    yield from known ^ present
    if written is not None:
        yield from (each for each in known & present if each.changed >= written - _SETTLING)
