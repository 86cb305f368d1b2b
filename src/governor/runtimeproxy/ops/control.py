"""Messages of the control socket, shared by its server and the commands.

| GET | response |
|---|---|
| ``/v1/pods`` | ``PodList`` |
| ``/v1/pods/NAMESPACE/NAME`` | ``PodExplanation`` |
| ``/v1/calls`` with the fields of a ``CallFilter`` | a ``TapLine`` of JSON per call, until the client disconnects |

| POST | response |
|---|---|
| ``/v1/upgrade`` | ``Upgraded``, when the successor serves |

Errors are returned as ``ErrorBody``. Values of environment variables are never included.
"""

import datetime
import fnmatch
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.changes import MaskedChange

PODS: Final = "/v1/pods"
CALLS: Final = "/v1/calls"
UPGRADE: Final = "/v1/upgrade"


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pod and container that a call concerns, as far as known."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    sandbox_id: str = ""
    container: str = ""
    container_id: str = ""

    def matches(self, text: str) -> bool:
        """Return whether a text is the pod's name, ``namespace/name``, uid, or a prefix of its sandbox id."""
        names = {self.pod, f"{self.namespace}/{self.pod}", self.uid} if self.pod or self.uid else set()
        return text in names or (bool(text) and self.sandbox_id.startswith(text))


class PluginCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of a plugin: its duration, and its error if it failed."""

    plugin: str
    hook: str
    seconds: float
    error: str = ""


class Trail(msgspec.Struct, frozen=True, omit_defaults=True):
    """The plugins' part in one call."""

    time: datetime.datetime
    call: str
    container: str = ""
    asked: tuple[PluginCall, ...] = ()
    changes: tuple[MaskedChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    """Changes of fields that the call does not have."""
    observed: tuple[MaskedChange, ...] = ()
    """Changes that plugins in mode ``observe`` would have made."""
    left_out: int = 0
    """Number of changes beyond the limits of ``changes`` and ``observed``."""
    unasked: str = ""
    """Why no plugin could be called."""
    refusal: str = ""
    """The status message with which the proxy rejected the call."""

    @property
    def failed(self) -> bool:
        """Return whether a plugin failed or could not be called."""
        return bool(self.unasked) or any(each.error for each in self.asked)


class TapCall(msgspec.Struct, frozen=True, omit_defaults=True, tag="call", tag_field="type"):
    """A call that has ended, as ``tap`` shows it."""

    time: datetime.datetime
    """Start of the call; its end if it started before the tap was opened."""
    path: str
    outcome: str
    status: str = ""
    """Name of its gRPC status; empty if it had none."""
    seconds: float | None = None
    subject: Subject = Subject()
    held: bool = False
    trail: Trail | None = None

    @property
    def method(self) -> str:
        """Return the method name without its service."""
        return self.path.rpartition("/")[2]

    @property
    def is_error(self) -> bool:
        """Return whether the call or one of its plugins failed."""
        return self.status != "OK" or (self.trail is not None and self.trail.failed)


class TapDropped(msgspec.Struct, frozen=True, tag="lost", tag_field="type"):
    """Number of calls dropped because the reader was too slow."""

    count: int


class TapOpened(msgspec.Struct, frozen=True, tag="opened", tag_field="type"):
    """First line of a tap; ``retired`` copied connections were asked to reconnect so that they are relayed."""

    retired: int


TapLine: TypeAlias = TapOpened | TapCall | TapDropped


class CallFilter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Filter of the calls that a tap shows."""

    pod: str = ""
    method: str = ""
    """A method name, with ``*`` as wildcard; case is ignored."""
    held: bool = False
    errors: bool = False

    def selects(self, call: TapCall) -> bool:
        """Return whether a call passes the filter."""
        return (
            (not self.pod or call.subject.matches(self.pod))
            and (not self.method or fnmatch.fnmatchcase(call.method.lower(), self.method.lower()))
            and (not self.held or call.held)
            and (not self.errors or call.is_error)
        )


class PodSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A known pod; without sandboxes it never ran or is gone."""

    namespace: str
    name: str
    uids: tuple[str, ...] = ()
    sandboxes: tuple[str, ...] = ()


class PodList(msgspec.Struct, frozen=True):
    """All known pods."""

    kept: bool
    """Whether the proxy keeps records, which it does with plugins; otherwise the runtime was queried for this list."""
    pods: tuple[PodSummary, ...]


class ContainerExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container as the runtime received it."""

    id: str
    name: str
    attempt: int = 0
    annotations: Mapping[str, str] = {}
    resources: Mapping[str, Any] = {}
    environment: tuple[str, ...] = ()
    """Names only."""


class SandboxExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sandbox as the runtime received it."""

    id: str
    uid: str
    attempt: int = 0
    runtime_handler: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    cgroup_parent: str = ""
    resources: Mapping[str, Any] = {}
    overhead: Mapping[str, Any] = {}
    containers: tuple[ContainerExplanation, ...] = ()


class PluginEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether and how a plugin is called at a hook, or why not."""

    plugin: str
    asked: bool
    why: str = ""
    """Why it is not called, or why its circuit is open."""
    pods: str = ""
    """Which pods it selects; only set by ``lint``."""
    order: float = 0
    timeout_s: float = 0
    policy: str = ""
    mode: str = "enforce"
    """``observe`` if its changes are recorded and not made."""


class HookExplanation(msgspec.Struct, frozen=True):
    """All plugins at one hook; those that are called come first, in order."""

    hook: str
    call: str
    plugins: tuple[PluginEntry, ...]


class PodExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that the proxy has on one pod."""

    namespace: str
    name: str
    kept: bool
    """Whether the proxy keeps records, which it does with plugins; otherwise the runtime was queried for this pod."""
    unasked: str = ""
    """Why the runtime could not be queried for a pod without a recorded sandbox."""
    sandboxes: tuple[SandboxExplanation, ...] = ()
    skipped: str = ""
    """Why no plugin is called for the pod."""
    labels_that_matter: tuple[str, ...] = ()
    hooks: tuple[HookExplanation, ...] = ()
    trails: tuple[Trail, ...] = ()
    """The latest notable calls, oldest first."""
    problems: tuple[str, ...] = ()
    """Problems in plugin files."""


class Upgraded(msgspec.Struct, frozen=True):
    """The processes of an upgrade; the replaced one exits when its calls have ended."""

    replaced: int
    pid: int
    version: str
    """Version of the new proxy."""


class ErrorBody(msgspec.Struct, frozen=True):
    """An error response."""

    kind: Kind
    code: str
    message: str

    def error(self) -> GovernorError:
        """Return the error to raise in the client."""
        return GovernorError(self.kind, self.code, self.message)
