"""What answers calls as it is told: a runtime that runs nothing, and a plugin of the runtime proxy.

A rule says how some calls are answered differently; its fields are those of ``Rule`` in ``testbed/go/internal/peer``.
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
    """One call as it arrived; requests above 1 MiB are only a size and a digest.

    ``unknown`` are the bytes of fields that no known version has, by the path of their message. ``status`` has an
    empty code while the call lasts.
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
    """A server on a socket of its own that keeps what it is sent."""

    def __init__(self, program: str, directory: Path, rules: Sequence[Json] = (), window_bytes: int = 0) -> None:
        super().__init__(program, directory)
        self.socket = short_socket(directory / f"{program}.sock")
        self._rules = rules
        self._window_bytes = window_bytes

    def command(self) -> list[str]:
        """The server, with the latest rules."""
        file = put(self.directory / "settings.json", as_json({"rules": self._rules}).encode())
        options = [f"--socket={self.socket}", f"--control={self._control}", f"--settings={file}"]
        return [str(self._binary), *options, f"--window-bytes={self._window_bytes}"]

    async def set(self, *rules: Json) -> None:
        """Answer by these rules from now on."""
        self._rules = rules
        await self.ask("PUT", "/settings", {"rules": rules})

    async def received(self, method: str = "") -> list[Received]:
        """The latest calls of one method or all, as they came."""
        return [_received(each) for each in await self.ask("GET", f"/records?method={method}")]

    async def forget(self) -> None:
        """Forget all calls until now."""
        await self.ask("DELETE", "/records")

    async def statuses(self) -> dict[str, dict[str, int]]:
        """How many calls of which method ended with which status."""
        counts: dict[str, dict[str, int]] = (await self.ask("GET", "/counts"))["ended"]
        return counts

    async def open_calls(self) -> int:
        """How many calls have not ended."""
        return int((await self.ask("GET", "/counts"))["open"])


class FakeRuntime(AnsweringPeer):
    """A runtime that answers at once and runs nothing; any method of ``/testbed.Echo/`` sends back what it gets."""

    def __init__(self, directory: Path, rules: Sequence[Json] = (), window_bytes: int = 0) -> None:
        super().__init__("fake-runtime", directory, rules, window_bytes)

    async def exit(self, container_id: str) -> None:
        """Let a container end by itself."""
        await self.ask("POST", "/exits", {"container_id": container_id})


class HookPlugin(AnsweringPeer):
    """A plugin; without rules it changes nothing."""

    def __init__(self, directory: Path, rules: Sequence[Json] = (), window_bytes: int = 0) -> None:
        super().__init__("hook-plugin", directory, rules, window_bytes)

    def register(self, directory: Path, name: str, hooks: Sequence[str], **more: Any) -> Path:
        """Write the file by which a proxy knows the plugin; ``more`` are keys with ``_`` for ``-``."""
        return register(self.socket, directory, name, hooks, **more)


def register(socket: Path, directory: Path, name: str, hooks: Sequence[str], **more: Any) -> Path:
    """Write, in one step, the file by which a proxy knows the plugin at a socket."""
    keys = {key.replace("_", "-"): value for key, value in more.items()}
    text = json.dumps({"remote-endpoint": str(socket), "runtime-hooks": list(hooks), **keys})
    directory.mkdir(parents=True, exist_ok=True)
    return put(socket.with_name("registration"), text.encode()).replace(directory / f"{name}.json")


def _received(shown: Json) -> Received:
    unknown = {path: decoded(raw) for path, raw in shown.get("unknown", {}).items()}
    return Received(**{**shown, "raw": decoded(shown.get("raw")), "unknown": unknown})
