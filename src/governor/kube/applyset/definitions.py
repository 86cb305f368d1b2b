"""Waiting until the server serves what a CustomResourceDefinition defines."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.get import look
from governor.kube.applyset.manifests import Wanted, kinds_of_definition
from governor.kube.client import Client, Request
from governor.process.clock import Clock

_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class _Resource(msgspec.Struct, frozen=True):
    name: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...]


_decode: Final = msgspec.json.Decoder(_Resources).decode


async def await_served(client: Client, definition: Wanted, clock: Clock, within_s: float) -> str:
    """Wait until it is established and each version served; why not, or nothing if all are."""
    deadline = clock.monotonic() + within_s
    pause_s = _PAUSE_S
    while why := await _obstacle(client, definition):
        if clock.monotonic() >= deadline:
            return f"its kind is not served after {within_s:g} s: {why}"
        await clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    client.discovery.invalidate()
    return ""


async def _obstacle(client: Client, definition: Wanted) -> str:
    try:
        live = await look(client, definition.resource, definition.ref)
        conditions = _conditions(live or {})
        if conditions.get("Established", {}).get("status") != "True":
            return str(conditions.get("NamesAccepted", {}).get("message") or "it is not established")
        for kind in kinds_of_definition(live):
            # Read from discovery, which everyone may read; listing objects may be forbidden.
            served = _decode(await client.send(Request("GET", f"/apis/{kind.group}/{kind.version}")))
            if kind.plural not in {each.name for each in served.resources}:
                return f"{kind.version} is not served yet"
    except GovernorError as error:
        # Not served yet is a 404; a server that cannot answer now may be able to in a moment.
        if error.kind in {Kind.DENIED, Kind.UNAUTHENTICATED}:
            raise
        return error.message
    return ""


def _conditions(live: Mapping[str, Any]) -> Mapping[str, Any]:
    return {each["type"]: each for each in (live.get("status") or {}).get("conditions") or ()}
