"""One call while it is held: its request, its deadline, and the results of its hooks."""

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from governor.errors import Kind
from governor.runtimeproxy.grpc.deadlines import reserve_s
from governor.runtimeproxy.grpc.unary import Metadata
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import Change, Conflict
from governor.runtimeproxy.hooks.requests import Request
from governor.runtimeproxy.ops.control import PluginCall, Subject, Trail
from governor.runtimeproxy.store.records import ContainerRecord
from governor.wire.hooks.points import Hook

_NO_SUBJECT: Final = Subject()
_TRAIL_CHARS: Final = 200
_TRAIL_CHANGES: Final = 64


class Rejected(Exception):  # noqa: N818 - a response, not a defect
    """Ends a call with a status from the proxy instead of the runtime's response."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Applied(msgspec.Struct, frozen=True):
    """A request as the runtime gets it, and the plugins' changes to it."""

    request: Request
    """What is needed when the runtime has responded."""
    body: bytes | None
    """The new body, if there are changes."""
    created: Callable[[], ContainerRecord] | None
    """Returns the record of a container that is created: called when the request was sent."""
    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...] = ()
    unused: tuple[Change, ...] = ()
    observed: tuple[Change, ...] = ()


class Cancellable(Protocol):
    """Work on a held call."""

    def cancel(self) -> object:
        """End it without a result."""


class Held:
    """State of one held call; the dispatcher fills it in."""

    __slots__ = (
        "_plugin_calls",
        "_started_s",
        "body",
        "call",
        "changes",
        "conflicts",
        "created",
        "encoding",
        "is_cancelled",
        "is_response_read",
        "metadata",
        "not_called",
        "observed",
        "rejection",
        "request",
        "started",
        "subject",
        "succeeded",
        "timeout_s",
        "unrecorded",
        "unused",
        "work",
    )

    def __init__(self, call: Call, timeout_s: float | None = None, encoding: str = "", metadata: Metadata = ()) -> None:
        self.call = call
        self.request: Request | None = None
        """None until the body is decoded."""
        self.body: bytes | None = None
        """Replaces the body for the runtime, if set."""
        self.created: ContainerRecord | None = None
        """The record of a container that is created."""
        self.timeout_s = timeout_s
        self.encoding = encoding
        self.metadata = metadata
        """The trace context of the call, for plugins."""
        self.subject = _NO_SUBJECT
        self.changes: tuple[Change, ...] = ()
        """The plugins' changes, set once the call is certain to continue."""
        self.conflicts: tuple[Conflict, ...] = ()
        self.unused: tuple[Change, ...] = ()
        self.observed: tuple[Change, ...] = ()
        """What plugins in mode ``observe`` would have changed."""
        self.not_called = ""
        """Why no plugin could be called."""
        self.rejection = ""
        self.is_response_read = False
        self.unrecorded: tuple[Kind | None, bytes, str] | None = None
        """The runtime's error, or body and encoding of its response, if it is recorded when the call has ended."""
        self.succeeded = False
        """Whether the runtime responded with OK."""
        self.work: Cancellable | None = None
        """What is going on, if it can be cancelled."""
        self.is_cancelled = False
        self.started = time.time()
        self._started_s = asyncio.get_running_loop().time()
        self._plugin_calls: list[PluginCall] = []

    def cancel(self) -> None:
        """Cancel what is going on."""
        self.is_cancelled = True
        if self.work is not None:
            self.work.cancel()

    def apply(self, applied: Applied) -> None:
        """Set the plugins' changes."""
        self.request, self.body = applied.request, applied.body
        self.changes, self.conflicts, self.unused = applied.changes, applied.conflicts, applied.unused
        self.observed = applied.observed

    def left_s(self, max_reserve_s: float) -> float | None:
        """Return the time left for plugins, or None without a deadline."""
        if self.timeout_s is None:
            return None
        elapsed_s = asyncio.get_running_loop().time() - self._started_s
        return self.timeout_s - elapsed_s - reserve_s(self.timeout_s, max_reserve_s)

    def add_plugin_call(self, plugin: str, hook: Hook, seconds: float, error: str) -> None:
        """Add a finished plugin call to the trail."""
        self._plugin_calls.append(PluginCall(plugin, str(hook), seconds, error[:_TRAIL_CHARS]))

    @property
    def is_notable(self) -> bool:
        """Return whether a plugin changed anything or failed."""
        return bool(
            self.changes
            or self.conflicts
            or self.unused
            or self.observed
            or self.rejection
            or self.not_called
            or any(each.error for each in self._plugin_calls)
        )

    def trail(self) -> Trail:
        """Return the plugins' part in this call so far, bounded in size."""
        return Trail(
            time=datetime.datetime.fromtimestamp(self.started, datetime.UTC),
            call=str(self.call),
            container=self.subject.container,
            asked=tuple(self._plugin_calls),
            changes=tuple([each.masked(_TRAIL_CHARS) for each in self.changes[:_TRAIL_CHANGES]]),
            conflicts=_texts(self.conflicts),
            unused=_texts(self.unused),
            observed=tuple([each.masked(_TRAIL_CHARS) for each in self.observed[:_TRAIL_CHANGES]]),
            left_out=len(self.changes[_TRAIL_CHANGES:]) + len(self.observed[_TRAIL_CHANGES:]),
            unasked=self.not_called[: 2 * _TRAIL_CHARS],
            refusal=self.rejection[: 2 * _TRAIL_CHARS],
        )


def _texts(items: Sequence[object]) -> tuple[str, ...]:
    if not items:
        return ()
    texts = tuple(str(each)[: 2 * _TRAIL_CHARS] for each in items[:_TRAIL_CHANGES])
    left_out = len(items) - len(texts)
    return (*texts, f"and {left_out} more") if left_out else texts
