"""What an endpoint is: a row of the table in ``routes``, the call that reaches its handler, and the answer."""

import enum
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from governor.domain.roles import Role
from governor.errors import GovernorError, Kind, invalid
from governor.server.identity.principals import Principal
from governor.server.services import Services
from governor.server.watch.hub import Watcher
from governor.wire.rest import PREFIX

JSON: Final = "application/json"
YAML: Final = "application/yaml"
EVENTS: Final = "text/event-stream"
BODY_BYTES: Final = 16 * 1024 * 1024


class Access(enum.StrEnum):
    """Who may call an endpoint. ``SELF`` is the runtime that the path names, and nobody else."""

    PUBLIC = "public"
    SELF = "self"
    VIEWER_OR_SELF = "viewer or self"
    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"
    LEGACY = "viewer or self, anybody with --legacy-open"


_ROLES: Final[dict[Access, frozenset[Role]]] = {
    Access.PUBLIC: frozenset(),
    Access.SELF: frozenset(),
    Access.VIEWER_OR_SELF: frozenset(Role),
    Access.VIEWER: frozenset(Role),
    Access.EDITOR: frozenset({Role.EDITOR, Role.ADMIN}),
    Access.ADMIN: frozenset({Role.ADMIN}),
    Access.LEGACY: frozenset(Role),
}


def check_access(access: Access, principal: Principal, runtime: str | None) -> None:
    """Refuse a principal that this endpoint is not for; says nothing about what is there."""
    if principal.runtime is not None:
        # The old API's list is for everybody, and a runtime finds only itself in it.
        is_own = principal.runtime == runtime or (access is Access.LEGACY and runtime is None)
        if access not in (Access.SELF, Access.VIEWER_OR_SELF, Access.LEGACY) or not is_own:
            message = "a runtime's credential is for the runtime itself and for nothing else"
            raise GovernorError(Kind.DENIED, "not-yours", message)
    elif principal.role not in _ROLES[access]:
        needed = "the credential of the runtime itself" if access is Access.SELF else f"the role {access} or higher"
        raise GovernorError(Kind.DENIED, "role-insufficient", f"this needs {needed}")


class Call(NamedTuple):
    """One request, authenticated and read."""

    services: Services
    principal: Principal
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None

    def number(self, name: str) -> int | None:
        """A query parameter that is a whole number, None when it is absent."""
        text = self.query.get(name)
        return None if text is None else whole_number(text, f"query parameter {name}")

    def flag(self, name: str) -> bool:
        """A query parameter that is true or false, false when it is absent."""
        text = self.query.get(name, "false")
        if text not in ("true", "false"):
            raise invalid("not-a-flag", f"query parameter {name} must be true or false")
        return text == "true"


class Answer(NamedTuple):
    """A body that becomes JSON unless it is bytes, or nothing."""

    body: Any = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = JSON


class Events(NamedTuple):
    """An answer that is a stream: ``topic`` wakes it, ``produce`` gives the next event or nothing new."""

    topic: str
    produce: "Callable[[], Awaitable[Produced]]"
    pause_s: float = 0.0
    watcher: Watcher | None = None


class Produced(NamedTuple):
    """What a stream sends now; the last one ends it."""

    chunk: bytes = b""
    last: bool = False


Handler: TypeAlias = Callable[[Call], Awaitable[Answer | Events]]


class Query(NamedTuple):
    """A query parameter, for the OpenAPI document and for refusing others."""

    name: str
    description: str
    type: str = "string"


class Endpoint(NamedTuple):
    """One row of the table."""

    method: str
    path: str
    handler: Handler
    access: Access
    summary: str
    body: Any = None
    answer: Any = None
    events: tuple[str, ...] = ()
    query: tuple[Query, ...] = ()
    yaml: bool = False
    status: int = 200
    prefix: str = PREFIX

    @property
    def route(self) -> str:
        """The whole path below the server's address."""
        return self.prefix + self.path


def whole_number(text: str, what: str) -> int:
    """Read a number from a path or a query."""
    try:
        return msgspec.convert(text, int, strict=False)
    except msgspec.ValidationError as error:
        raise invalid("not-a-number", f"{what} must be a whole number, not {text!r}") from error


def not_found(what: str) -> GovernorError:
    """The error for something that is not there."""
    return GovernorError(Kind.NOT_FOUND, "not-found", f"there is no {what}")
