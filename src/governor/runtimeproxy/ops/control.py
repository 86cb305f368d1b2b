"""What the proxy tells on its control socket: the nouns that its server and the commands share.

| GET | answer |
|---|---|
| ``/v1/pods`` | ``PodList`` |
| ``/v1/pods/NAMESPACE/NAME`` | ``PodExplanation`` |
| ``/v1/calls`` with the fields of a ``CallFilter`` | a ``Line`` of JSON for each call, until the reader leaves |

Anything else, and what cannot be answered, is a ``Failure``. Values of environment variables are never told.
"""

import datetime
import fnmatch
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.changes import ShownChange

PODS: Final = "/v1/pods"
CALLS: Final = "/v1/calls"


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call is about, as far as it is known."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    sandbox_id: str = ""
    container: str = ""
    container_id: str = ""

    def is_meant(self, text: str) -> bool:
        """Whether a person who writes this means the pod: by its name, ``namespace/name``, uid, or a sandbox's id."""
        names = {self.pod, f"{self.namespace}/{self.pod}", self.uid} if self.pod or self.uid else set()
        return text in names or (bool(text) and self.sandbox_id.startswith(text))


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin that was asked or told, how long it took, and why it failed if so."""

    plugin: str
    hook: str
    seconds: float
    error: str = ""


class Trail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What plugins made of one call."""

    time: datetime.datetime
    call: str
    container: str = ""
    asked: tuple[Asked, ...] = ()
    changes: tuple[ShownChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    """What plugins changed and the call has no place for."""
    left_out: int = 0
    """Changes that are too many to be shown."""
    unasked: str = ""
    """Why nobody could be asked."""
    refusal: str = ""
    """What kubelet was told in the runtime's place."""

    @property
    def failed(self) -> bool:
        """Whether a plugin failed, or none could be asked."""
        return bool(self.unasked) or any(each.error for each in self.asked)

    @property
    def is_remarkable(self) -> bool:
        """Whether anything was changed, or went wrong."""
        return bool(self.changes or self.conflicts or self.unused or self.refusal or self.failed)


class SeenCall(msgspec.Struct, frozen=True, omit_defaults=True, tag="call", tag_field="type"):
    """A call that has ended."""

    time: datetime.datetime
    """When it began; when it ended if nobody looked before."""
    path: str
    outcome: str
    status: str = ""
    """The name of its gRPC status; nothing if it never had one."""
    seconds: float | None = None
    subject: Subject = Subject()
    held: bool = False
    trail: Trail | None = None

    @property
    def method(self) -> str:
        """The method's name without its service."""
        return self.path.rpartition("/")[2]

    @property
    def is_error(self) -> bool:
        """Whether the call failed, or a plugin did."""
        return self.status != "OK" or (self.trail is not None and self.trail.failed)


class LostCalls(msgspec.Struct, frozen=True, tag="lost", tag_field="type"):
    """Calls that are not told because their reader did not keep up."""

    count: int


class TapOpened(msgspec.Struct, frozen=True, tag="opened", tag_field="type"):
    """The first line: from now on calls are told. Connections whose bytes were copied are told to come again."""

    retired: int


Line: TypeAlias = TapOpened | SeenCall | LostCalls


class CallFilter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which calls somebody wants to see."""

    pod: str = ""
    method: str = ""
    """A name, perhaps with ``*``; small and large letters are the same."""
    held: bool = False
    errors: bool = False

    def selects(self, call: SeenCall) -> bool:
        """Whether this call is wanted."""
        return (
            (not self.pod or call.subject.is_meant(self.pod))
            and (not self.method or fnmatch.fnmatchcase(call.method.lower(), self.method.lower()))
            and (not self.held or call.held)
            and (not self.errors or call.is_error)
        )


class PodSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod that is known; without sandboxes it is one that never ran, or is gone."""

    namespace: str
    name: str
    uids: tuple[str, ...] = ()
    sandboxes: tuple[str, ...] = ()


class PodList(msgspec.Struct, frozen=True):
    """All pods that are known."""

    kept: bool
    """Whether the proxy remembers them, as there are plugins; if not, the runtime was asked just now."""
    pods: tuple[PodSummary, ...]


class ContainerExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container as the runtime was finally told of it."""

    id: str
    name: str
    attempt: int = 0
    annotations: Mapping[str, str] = {}
    resources: Mapping[str, Any] = {}
    environment: tuple[str, ...] = ()
    """Names only."""


class SandboxExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sandbox as the runtime was finally told of it."""

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


class PluginTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a plugin is asked by a hook about a pod, how, and why not."""

    plugin: str
    asked: bool
    why: str = ""
    """Why it is not asked, or is asked in vain."""
    pods: str = ""
    """Which pods it selects, where that is not asked about one of them."""
    order: float = 0
    timeout_s: float = 0
    policy: str = ""


class HookExplanation(msgspec.Struct, frozen=True):
    """All plugins at one hook: first those that are asked, in their order."""

    hook: str
    call: str
    plugins: tuple[PluginTurn, ...]


class PodExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that the proxy knows about one pod."""

    namespace: str
    name: str
    kept: bool
    """Whether the proxy remembers pods, as there are plugins; if not, the runtime was asked just now."""
    unasked: str = ""
    """Why the runtime could not be asked about a pod of which the proxy knows no sandbox."""
    sandboxes: tuple[SandboxExplanation, ...] = ()
    skipped: str = ""
    """Why all plugins leave the pod alone."""
    labels_that_matter: tuple[str, ...] = ()
    hooks: tuple[HookExplanation, ...] = ()
    trails: tuple[Trail, ...] = ()
    """The latest calls in which plugins changed something or failed, oldest first."""
    problems: tuple[str, ...] = ()
    """What is wrong in plugins' files."""


class Failure(msgspec.Struct, frozen=True):
    """Why something cannot be told."""

    kind: Kind
    code: str
    message: str

    def error(self) -> GovernorError:
        """The error on the other side."""
        return GovernorError(self.kind, self.code, self.message)
