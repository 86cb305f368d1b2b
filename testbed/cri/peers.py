"""Servers with scripted answers: a fake runtime, and a plugin of the runtime proxy.

A rule changes the answer to some calls; its fields are those of ``Rule`` in ``testbed/go/internal/peer``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.cri.control import Json, Peer, as_json, decoded
from testbed.kube.pki import put
from testbed.server import short_socket


@dataclass(frozen=True)
class Received:
    """A call as received; of requests above 1 MiB only size and digest are kept.

    ``unknown`` are the bytes of unknown fields, by the path of their message. ``status`` has an empty code while the
    call is open.
    """

    number: int
    method: str
    metadata: dict[str, list[str]]
    size: int
    sha256: str
    answers: int
    status: Json
    deadline_s: float = 0.0
    request: Json = field(default_factory=dict)
    raw: bytes = b""
    unknown: dict[str, bytes] = field(default_factory=dict)


class AnsweringPeer(Peer):
    """A server on a Unix socket that records the calls it receives."""

    def __init__(self, program: str, directory: Path, rules: Sequence[Json] = (), window_bytes: int = 0) -> None:
        super().__init__(program, directory)
        self.socket = short_socket(directory / f"{program}.sock")
        self._rules = rules
        self._window_bytes = window_bytes

    def command(self) -> list[str]:
        """Write the current rules, and return the command line."""
        file = put(self.directory / "settings.json", as_json({"rules": self._rules}).encode())
        options = [f"--socket={self.socket}", f"--control={self._control}", f"--settings={file}"]
        return [str(self._binary), *options, f"--window-bytes={self._window_bytes}"]

    async def set(self, *rules: Json) -> None:
        """Replace the rules."""
        self._rules = rules
        await self.ask("PUT", "/settings", {"rules": rules})

    async def received(self, method: str = "") -> list[Received]:
        """Return the latest calls of one method, or of all, in order of arrival."""
        return [_received(each) for each in await self.ask("GET", f"/records?method={method}")]

    async def forget(self) -> None:
        """Delete the recorded calls."""
        await self.ask("DELETE", "/records")

    async def statuses(self) -> dict[str, dict[str, int]]:
        """Return the number of ended calls by method and status."""
        counts: dict[str, dict[str, int]] = (await self.ask("GET", "/counts"))["ended"]
        return counts

    async def open_calls(self) -> int:
        """Return the number of open calls."""
        return int((await self.ask("GET", "/counts"))["open"])


class FakeRuntime(AnsweringPeer):
    """A runtime that keeps pods in memory only; any method of ``/testbed.Echo/`` returns its request."""

    def __init__(self, directory: Path, rules: Sequence[Json] = (), window_bytes: int = 0) -> None:
        super().__init__("fake-runtime", directory, rules, window_bytes)

    async def exit(self, container_id: str) -> None:
        """Let a container exit."""
        await self.ask("POST", "/exits", {"container_id": container_id})


class HookPlugin(AnsweringPeer):
    """A hook plugin; without rules it changes nothing."""

    def __init__(self, directory: Path, rules: Sequence[Json] = (), window_bytes: int = 0) -> None:
        super().__init__("hook-plugin", directory, rules, window_bytes)

    def register(self, directory: Path, name: str, hooks: Sequence[str], **more: Any) -> Path:
        """Write the plugin's registration file for a proxy; ``more`` are further keys, with ``_`` for ``-``."""
        return register(self.socket, directory, name, hooks, **more)


def register(socket: Path, directory: Path, name: str, hooks: Sequence[str], **more: Any) -> Path:
    """Write a plugin's registration file for a proxy atomically."""
    keys = {key.replace("_", "-"): value for key, value in more.items()}
    text = json.dumps({"remote-endpoint": str(socket), "runtime-hooks": list(hooks), **keys})
    directory.mkdir(parents=True, exist_ok=True)
    return put(socket.with_name("registration"), text.encode()).replace(directory / f"{name}.json")


def _received(shown: Json) -> Received:
    unknown = {path: decoded(raw) for path, raw in shown.get("unknown", {}).items()}
    return Received(**{**shown, "raw": decoded(shown.get("raw")), "unknown": unknown})
