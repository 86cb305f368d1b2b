"""A held request in no runtime's protocol, and the port by which a protocol is read and written."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from governor.runtimeproxy.environment import NO_VARIABLES, Environment
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import Change, FieldPath
from governor.wire.hooks.workload import Container, Pod, Resources


class Request(msgspec.Struct, frozen=True):
    """What a call asks of the runtime."""

    call: Call
    sandbox_id: str = ""
    container_id: str = ""
    pod: Pod | None = None
    """The pod that is started."""
    describe_pod: Callable[[], Pod] | None = None
    """Returns the pod of a container that is created, if the request describes it; most often it is recorded."""
    container: Container | None = None
    """The container that is created."""
    environment: Environment = NO_VARIABLES
    """Its variables."""
    resources: Resources | None = None
    """What an update specifies."""
    overhead: Resources | None = None
    annotations: Mapping[str, str] = {}


class Message(Protocol):
    """A decoded request of one protocol. It must not be modified."""

    @property
    def request(self) -> Request:
        """Return what it asks."""

    def carries(self, path: FieldPath) -> bool:
        """Return whether the request can have this field."""

    def edited(self, changes: Sequence[Change]) -> bytes:
        """Return the body of the request with these changes; all other fields, known or not, are kept."""


class Codec(Protocol):
    """The messages of one protocol."""

    def read(self, call: Call, body: bytes, encoding: str) -> Message:
        """Decode a request; raise INVALID, UNIMPLEMENTED or EXHAUSTED if that is impossible."""

    def created_id(self, call: Call, body: bytes, encoding: str) -> str:
        """Return the id of the sandbox or container in a response; raise like ``read``."""
