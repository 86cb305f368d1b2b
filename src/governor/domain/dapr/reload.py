"""How a running sidecar takes a changed resource: by kind, and by the sidecar's version.

Whether a certain process reloads at all is better asked of the process than of this table: up to 1.17 its
Configuration must ask for it, and from 1.18 on it may forbid it.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final, TypeAlias

Version: TypeAlias = tuple[int, ...]


class Reload(enum.StrEnum):
    """What must happen before a sidecar of the supported version can be using a change."""

    LIVE = "live"
    """It loads the change while it runs."""
    RESTART = "restart"
    """Only a runtime started after the change uses it, whoever starts it."""


RELOAD: Final[Mapping[str, Reload]] = {
    "Component": Reload.LIVE,
    "Configuration": Reload.RESTART,
    "HTTPEndpoint": Reload.RESTART,
    "MCPServer": Reload.LIVE,
    "Resiliency": Reload.RESTART,
    "Subscription": Reload.LIVE,
    "WorkflowAccessPolicy": Reload.LIVE,
}
"""The newest version's behaviour."""

_LIVE_SINCE: Final[Mapping[str, Version]] = {
    "Component": (1, 13),
    "MCPServer": (1, 18),
    "Subscription": (1, 14),
    "WorkflowAccessPolicy": (1, 18),
}
_UNASKED_SINCE: Final = (1, 18)
_LISTED_SINCE: Final[Mapping[str, Version]] = {
    "MCPServer": (1, 18),
    "Resiliency": (1, 18),
    "WorkflowAccessPolicy": (1, 18),
}
_CAUTION: Final = frozenset({(1, 18, 0), (1, 18, 1)})


def parse(version: str) -> Version | None:
    """The numbers of a version such as ``1.16.0`` or ``v1.18.0-rc.1``; None for one of a private build."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(number or 0) for number in found.groups()) if found else None


def reload_obstacle(kind: str, version: str) -> str:
    """Why a sidecar of this version cannot take a change of this kind while it runs, or nothing."""
    since, parsed = _LIVE_SINCE.get(kind), parse(version)
    if since is None or (parsed is not None and parsed < since):
        return f"Dapr {version} takes a changed {kind} only when it starts"
    return ""


def why_unwatched(version: str) -> str:
    """Why a sidecar of this version may be found not to look for changes."""
    parsed = parse(version)
    if parsed is None or parsed >= _UNASKED_SINCE:
        return "the sidecar does not watch the resources directory"
    oldest = min(_LIVE_SINCE.values())
    asked = "" if parsed < oldest else " unless its Configuration enables HotReload"
    return f"Dapr {version} takes changes only when it starts{asked}"


def lists_kind(kind: str, version: str) -> bool:
    """Whether a sidecar of this version shows resources of this kind in its metadata."""
    parsed = parse(version)
    return parsed is None or parsed >= _LISTED_SINCE.get(kind, (0,))


def known_issue(version: str) -> str:
    """What a person should know of reloading in this version, or nothing."""
    if parse(version) not in _CAUTION:
        return ""
    return f"Dapr {version} is known to end workflow sidecars and to restart needlessly on changes: use 1.18.2 or newer"
