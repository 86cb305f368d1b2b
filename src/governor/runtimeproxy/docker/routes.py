"""The routes of the Docker Engine API that concern single containers, by method and path. Pure.

A target is read as dockerd reads it: percent-decoded, with any API version or none. A name may contain any character.
"""

import enum
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import msgspec

_VERSION: Final = re.compile(r"/v[0-9.]+(?=/)")
_AUTHORITY: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_ACTION: Final = re.compile(r"/containers/(.+)/([a-z]+)", re.DOTALL)
_REMOVAL: Final = re.compile(r"/containers/(.+)", re.DOTALL)
_EXEC_START: Final = re.compile(r"/exec/.+/start", re.DOTALL)
_KILLING: Final = frozenset({"", "9", "KILL", "SIGKILL"})


class Operation(enum.StrEnum):
    """What a request does with one container, as far as the proxy distinguishes it."""

    CREATE = "create"
    START = "start"
    STOP = "stop"
    KILL = "kill"
    RESTART = "restart"
    UPDATE = "update"
    REMOVE = "remove"
    OTHER = "other"


_HOOKED_ACTIONS: Final = {
    str(each): each for each in (Operation.START, Operation.STOP, Operation.KILL, Operation.RESTART, Operation.UPDATE)
}


class Route(msgspec.Struct, frozen=True):
    """A request's method and target, parsed."""

    method: str
    path: str
    """Decoded, without the API version."""
    query: Mapping[str, str] = {}
    """The first value of each parameter, which is the one that dockerd uses."""
    operation: Operation = Operation.OTHER
    container: str = ""
    """Name, id or prefix of an id; of a container that is created its name, if given."""

    @property
    def is_hijacked(self) -> bool:
        """Return whether the connection may become a byte stream without an upgrade, after a 200 response."""
        if self.method != "POST":
            return False
        matched = _ACTION.fullmatch(self.path)
        is_attach = matched is not None and matched[2] == "attach"
        return is_attach or _EXEC_START.fullmatch(self.path) is not None

    @property
    def is_watch(self) -> bool:
        """Return whether the response is a watch: it never ends, and its clients watch again by themselves."""
        return self.method == "GET" and self.path == "/events"

    @property
    def is_prune(self) -> bool:
        """Return whether containers are removed that the request does not name."""
        return self.method == "POST" and self.path == "/containers/prune"

    @property
    def summary(self) -> str:
        """Return method and path for logs; the query may contain secrets."""
        return f"{self.method} {self.path}"


def route_of(method: str, target: bytes) -> Route:
    """Return the route of a request."""
    path, query = _split(target)
    operation, container = _operation(method, path, query)
    return Route(method, path, query, operation, container)


def _split(target: bytes) -> tuple[str, dict[str, str]]:
    authority = _AUTHORITY.match(target)
    target = target[authority.end() :] if authority else target
    path, _, query = target.decode(errors="surrogateescape").partition("?")
    found: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        found.setdefault(key, value)
    path = unquote(path, errors="surrogateescape")
    version = _VERSION.match(path)
    return path[version.end() :] if version else path, found


def _operation(method: str, path: str, query: Mapping[str, str]) -> tuple[Operation, str]:
    if method == "DELETE" and (removal := _REMOVAL.fullmatch(path)):
        return Operation.REMOVE, removal[1]
    if method != "POST":
        return Operation.OTHER, _named(path)
    if path == "/containers/create":
        return Operation.CREATE, query.get("name", "")
    action = _ACTION.fullmatch(path)
    operation = _HOOKED_ACTIONS.get(action[2], Operation.OTHER) if action else Operation.OTHER
    if operation is Operation.KILL and query.get("signal", "").upper() not in _KILLING:
        return Operation.OTHER, _named(path)
    return operation, _named(path)


def _named(path: str) -> str:
    """Return the container in a path, or ``""``."""
    action = _ACTION.fullmatch(path)
    return action[1] if action else ""
