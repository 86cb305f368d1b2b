"""The test kit of plugins: recorded calls replayed without a proxy, and requests made up by a test.

def test_batch_pods_get_few_shares() -> None:
    [call] = replay(Batch(), Path("recorded.jsonl"))
    assert call.changes == ContainerChanges(resources=Resources(cpu_shares=2))
"""

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from governor.errors import invalid
from governor.sdk.hooks.messages import request_of
from governor.sdk.hooks.plugin import (
    METHODS,
    ContainerChanges,
    ContainerRequest,
    Plugin,
    PodChanges,
    PodRequest,
    Rejection,
)
from governor.wire.hooks.points import Hook, decode_request

Request: TypeAlias = PodRequest | ContainerRequest
Changes: TypeAlias = PodChanges | ContainerChanges


class RecordedCall(msgspec.Struct, frozen=True):
    """A line of a recording."""

    hook: Hook
    request: str
    """The encoded request in base64. It may contain secrets: variables of containers."""


class ReplayedCall(msgspec.Struct, frozen=True):
    """A recorded call and what the plugin made of it."""

    hook: Hook
    request: Request
    changes: Changes | None = None
    rejection: str = ""


class Recorder:
    """Appends calls to a file, for any number of threads; only its owner can read the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        path.touch(mode=0o600)

    def add(self, hook: Hook, message: bytes) -> None:
        """Append a call."""
        line = msgspec.json.encode(RecordedCall(hook, base64.b64encode(message).decode()))
        with self._lock, self._path.open("ab") as file:
            file.write(line + b"\n")


def replay(plugin: Plugin, recording: Path) -> list[ReplayedCall]:
    """Call a plugin with all recorded requests of its hooks, in order."""
    return [call(plugin, hook, request) for hook, request in read(recording) if hook in plugin.hooks]


def read(recording: Path) -> Iterator[tuple[Hook, Request]]:
    """Yield the recorded requests; raise INVALID ``recording`` if a line cannot be read."""
    for number, line in enumerate(recording.read_bytes().splitlines(), 1):
        try:
            recorded = msgspec.json.decode(line, type=RecordedCall)
            message = base64.b64decode(recorded.request, validate=True)
        except (msgspec.DecodeError, ValueError) as error:
            raise invalid("recording", f"{recording}:{number}: is not a recorded call: {error}") from error
        yield recorded.hook, request_of(decode_request(recorded.hook, message))


def call(plugin: Plugin, hook: Hook, request: Request) -> ReplayedCall:
    """Call a plugin as the proxy does."""
    try:
        changes = getattr(plugin, METHODS[hook])(request)
    except Rejection as error:
        return ReplayedCall(hook, request, rejection=str(error))
    return ReplayedCall(hook, request, changes)
