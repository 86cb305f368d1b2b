"""Reload rules: whether a running sidecar adopts a changed resource, by kind and by the sidecar's version.

Whether one process reloads at all is better observed than looked up here: up to 1.17 its Configuration must enable hot
reload, and from 1.18 on it may disable it.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

from governor.values.trees import Manifest

Version: TypeAlias = tuple[int, ...]


class Reload(enum.StrEnum):
    """What a sidecar of the supported version needs before it uses a change."""

    LIVE = "live"
    """Nothing: it loads the change while it runs."""
    RESTART = "restart"
    """A restart: only a process started after the change uses it."""


class Uptake(enum.StrEnum):
    """How a running sidecar takes a change."""

    LIVE = "live"
    """It loads the change while it runs."""
    IN_PLACE = "in-place"
    """It restarts within its process, on its own."""
    START = "start"
    """It does not: only a sidecar that starts later loads it."""


RELOAD: Final[Mapping[str, Reload]] = {
    "Component": Reload.LIVE,
    "Configuration": Reload.RESTART,
    "HTTPEndpoint": Reload.RESTART,
    "MCPServer": Reload.LIVE,
    "Resiliency": Reload.RESTART,
    "Subscription": Reload.LIVE,
    "WorkflowAccessPolicy": Reload.LIVE,
}
"""The behaviour of the newest version."""

_LIVE_SINCE: Final[Mapping[str, Version]] = {
    "Component": (1, 13),
    "MCPServer": (1, 18),
    "Subscription": (1, 14),
    "WorkflowAccessPolicy": (1, 18),
}
_DEFAULT_SINCE: Final = (1, 18)
_LISTED_SINCE: Final[Mapping[str, Version]] = {
    "MCPServer": (1, 18),
    "Resiliency": (1, 18),
    "WorkflowAccessPolicy": (1, 18),
}
IN_PLACE_KINDS: Final = frozenset({"Configuration", "HTTPEndpoint", "Resiliency"})
"""Kinds for which a sidecar that has hot reload restarts within its process, or does not reload them."""
_IN_PLACE_SINCE: Final = (1, 18)
_ACTOR_STATE_STORE: Final = "actorstatestore"
_ACTOR_STATE_STORE_SINCE: Final = (1, 18, 3)
_FAULTY: Final = frozenset({(1, 18, 0), (1, 18, 1)})


def parse(version: str) -> Version | None:
    """Return the numbers of a version such as ``1.16.0`` or ``v1.18.0-rc.1``; None for a private build."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(number or 0) for number in found.groups()) if found else None


def reload_obstacle(kind: str, version: str) -> str:
    """Return why a sidecar of this version cannot load a change of this kind while it runs, or ``""``."""
    since, parsed = _LIVE_SINCE.get(kind), parse(version)
    if since is None or (parsed is not None and parsed < since):
        return f"Dapr {version} loads a changed {kind} only at startup"
    return ""


def uptake(kind: str, version: str, *contents: Manifest | None) -> Uptake:
    """Return how a sidecar that has hot reload takes a change; ``contents`` are those before and after it.

    Versions of private builds count as new.
    """
    parsed = parse(version)
    if kind in IN_PLACE_KINDS:
        return Uptake.IN_PLACE if parsed is None or parsed >= _IN_PLACE_SINCE else Uptake.START
    if reload_obstacle(kind, version):
        return Uptake.START
    is_too_old = parsed is not None and parsed < _ACTOR_STATE_STORE_SINCE
    return Uptake.START if is_too_old and any(map(_marks_actor_state_store, contents)) else Uptake.LIVE


def _marks_actor_state_store(manifest: Manifest | None) -> bool:
    """Return whether a Component is marked as the actor state store; like Dapr, by the field and not by its value."""
    if manifest is None or manifest["kind"] != "Component" or not str(manifest["spec"]["type"]).startswith("state."):
        return False
    fields = manifest["spec"].get("metadata") or ()
    return any(str(field.get("name")).lower() == _ACTOR_STATE_STORE for field in fields)


def why_not_reloading(version: str) -> str:
    """Return why a sidecar of this version may load changes only at startup, or ``""`` if it reloads by default."""
    parsed = parse(version)
    if parsed is None or parsed >= _DEFAULT_SINCE:
        return ""
    oldest = min(_LIVE_SINCE.values())
    exception = "" if parsed < oldest else " unless its Configuration enables HotReload"
    return f"Dapr {version} loads changes only at startup{exception}"


def lists_kind(kind: str, version: str) -> bool:
    """Whether a sidecar of this version lists resources of this kind in its metadata."""
    parsed = parse(version)
    return parsed is None or parsed >= _LISTED_SINCE.get(kind, (0,))


def known_issue(version: str) -> str:
    """Return a warning about a reload bug of this version, or ``""``."""
    if parse(version) not in _FAULTY:
        return ""
    return (
        f"Dapr {version} is known to stop workflow sidecars and to restart needlessly on changes; use 1.18.2 or newer"
    )
