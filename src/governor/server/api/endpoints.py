"""Endpoints: a row of the table in ``routes``, the call passed to its handler, and the response."""

import enum
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from governor.domain.roles import Role
from governor.errors import GovernorError, Kind, invalid
from governor.server.identity.known_credentials import Principal
from governor.server.services import Services
from governor.server.watch.hub import Feed, Watcher
from governor.wire.rest import PREFIX

JSON: Final = "application/json"
YAML: Final = "application/yaml"
PLAIN: Final = "text/plain"
PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
TEXT: Final[Mapping[str, Any]] = {"type": "string"}
FLAG: Final[Mapping[str, Any]] = {"type": "boolean"}
INTEGER: Final[Mapping[str, Any]] = {"type": "integer", "format": "int64"}


class Access(enum.StrEnum):
    """Required access of an endpoint. ``SELF`` is only the runtime named in the path."""

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
    """Raise if the principal may not call the endpoint; the error does not reveal whether the resource exists."""
    if principal.runtime is not None:
        # The legacy list is open to runtimes too; it shows a runtime only itself.
        is_own = principal.runtime == runtime or (access is Access.LEGACY and runtime is None)
        if access not in (Access.SELF, Access.VIEWER_OR_SELF, Access.LEGACY) or not is_own:
            message = "a runtime's credential allows access only to the runtime itself"
            raise GovernorError(Kind.DENIED, "not-yours", message)
    elif principal.role not in _ROLES[access]:
        needed = "the credential of the runtime itself" if access is Access.SELF else f"the role {access} or higher"
        raise GovernorError(Kind.DENIED, "role-insufficient", f"this needs {needed}")


class Call(NamedTuple):
    """One authenticated and decoded request."""

    services: Services
    principal: Principal
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None

    def number(self, name: str) -> int | None:
        """Return a query parameter as an integer, or None if absent."""
        text = self.query.get(name)
        return None if text is None else parse_integer(text, f"query parameter {name}")

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter, False if absent."""
        text = self.query.get(name, "false")
        if text not in ("true", "false"):
            raise invalid("not-a-flag", f"query parameter {name} must be true or false")
        return text == "true"


class Response(NamedTuple):
    """A response; the body is encoded as JSON unless it is bytes or None."""

    body: Any = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = JSON


class Events(NamedTuple):
    """A response that is an event stream: each wake-up of ``topic`` calls ``produce``.

    Through the ``feed`` deliveries are sent without a wake-up. ``following`` is entered while the stream is open.
    """

    topic: str
    produce: "Callable[[], Awaitable[Produced]]"
    pause_s: float = 0.0
    watcher: Watcher | None = None
    headers: tuple[tuple[str, str], ...] = ()
    feed: Feed | None = None
    following: AbstractContextManager[None] = nullcontext()


class Produced(NamedTuple):
    """The next chunk of a stream, empty if nothing changed; ``last`` ends the stream."""

    chunk: bytes = b""
    last: bool = False


Handler: TypeAlias = Callable[[Call], Awaitable[Response | Events] | Response]
"""Returns the response at once if the endpoint is immediate."""


class Query(NamedTuple):
    """A query parameter, for validation and for the OpenAPI document."""

    name: str
    description: str
    schema: Mapping[str, Any] = TEXT


class Endpoint(NamedTuple):
    """One row of the endpoint table."""

    method: str
    path: str
    handler: Handler
    access: Access
    summary: str
    body: Any = None
    response: Any = None
    events: tuple[str, ...] = ()
    query: tuple[Query, ...] = ()
    yaml: bool = False
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    prefix: str = PREFIX
    max_body_bytes: int = MAX_BODY_BYTES
    plain_404: bool = False
    """Whether a missing object is answered with plain text, as the proof of concept does."""
    immediate: bool = False
    """Whether the handler never waits and its response has no body: it may be called without a task."""

    @property
    def route(self) -> str:
        """Return the full path with its prefix."""
        return self.prefix + self.path


def parse_integer(text: str, what: str) -> int:
    """Parse an integer from a path or query parameter."""
    try:
        return msgspec.convert(text, int, strict=False)
    except msgspec.ValidationError as error:
        raise invalid("not-a-number", f"{what} must be an integer, not {text!r}") from error


def not_found(what: str) -> GovernorError:
    """Return the error for a missing resource."""
    return GovernorError(Kind.NOT_FOUND, "not-found", f"there is no {what}")
