"""A CRI client on one connection, as kubelet is: ``cri-client`` of ``testbed/go``."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.cri.control import Json, Peer, decoded
from testbed.waiting import until
from toolchain.errors import TestbedError

V1 = "runtime.v1"
V1ALPHA2 = "runtime.v1alpha2"
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Reply:
    """The outcome of a call; of answers above 1 MiB only size and digest are kept."""

    code: str
    headers: dict[str, list[str]]
    trailers: dict[str, list[str]]
    took_s: float
    message: str = ""
    details: tuple[Json, ...] = ()
    answer: Json = field(default_factory=dict)
    raw: bytes = b""
    size: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class Progress:
    """The messages received on a stream so far; ``code`` is empty while it is open."""

    count: int
    size: int
    code: str
    message: str
    answers: tuple[Json, ...]
    raw: tuple[bytes, ...]
    headers: dict[str, list[str]]
    trailers: dict[str, list[str]]


@dataclass(frozen=True)
class Wire:
    """Counts of the HTTP/2 frames on all connections of the client; ``errors`` are unexpected resets.

    The windows are the connection windows for sending and receiving, computed from the frames.
    """

    connections: int
    sent: dict[str, int]
    received: dict[str, int]
    send_window: int
    receive_window: int
    endings: dict[str, int]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Repetition:
    """The number of calls by status, and their durations."""

    statuses: dict[str, int]
    took_s: float
    mean_s: float
    min_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True)
class Kind:
    """A kind of create in a storm: name prefix, length of ``{padding}``, and when the call is cancelled."""

    name: str
    padding_bytes: int = 0
    cancel_after_s: float = 0.0


@dataclass(frozen=True)
class Storm:
    """Outcome of a storm: statuses and distinct messages of creates by kind, statuses and sizes of lists, events."""

    creates: dict[str, dict[str, int]]
    messages: dict[str, list[str]]
    lists: dict[str, int]
    list_sizes: dict[int, int]
    events: int
    events_ended: Json | None
    took_s: float
    wire: Wire


class Stream:
    """A server-streaming call."""

    def __init__(self, client: "CriClient", number: int) -> None:
        self._client = client
        self._path = f"/streams/{number}"

    async def progress(self) -> Progress:
        """Return the messages received so far."""
        return _progress(await self._client.ask("GET", self._path))

    async def until(self, is_enough: Callable[[Progress], bool]) -> Progress:
        """Wait until the messages received satisfy a predicate, and return them."""

        async def poll() -> tuple[Progress, ...]:
            seen = await self.progress()
            return (seen,) if is_enough(seen) else ()

        return (await until(poll))[0]

    async def end(self) -> Progress:
        """Cancel the call, unless it has ended."""
        return _progress(await self._client.ask("DELETE", self._path))


class CriClient(Peer):
    """The client process. CRI methods are called by short name, others by path and raw bytes."""

    def __init__(self, directory: Path, socket: Path, window_bytes: int = 0) -> None:
        super().__init__("cri-client", directory)
        self._socket = socket
        self._window_bytes = window_bytes

    def command(self) -> list[str]:
        """Return the command line; the client connects on first use."""
        options = [f"--socket={self._socket}", f"--control={self._control}", f"--window-bytes={self._window_bytes}"]
        return [str(self._binary), *options]

    async def call(self, method: str, request: Json | None = None, **more: Any) -> Reply:
        """Make a call and return its outcome; ``more`` are further fields of the Go program's request."""
        reply = await self.ask("POST", "/calls", _call(method, request, more))
        reply["raw"] = decoded(reply.get("raw"))
        reply["details"] = tuple({**each, "value": decoded(each["value"])} for each in reply.get("details", ()))
        return Reply(**reply)

    async def answer(self, method: str, request: Json | None = None, **more: Any) -> Json:
        """Make a call and return the answer; raise if its status is not OK."""
        reply = await self.call(method, request, **more)
        if reply.code != "OK":
            raise TestbedError(f"{method} ended with {reply.code}: {reply.message}")
        return reply.answer

    @asynccontextmanager
    async def stream(self, method: str, request: Json | None = None, **more: Any) -> AsyncIterator[Stream]:
        """Open a streaming call, cancelled at the end; ``more`` may contain further messages as ``more``."""
        wanted = _call(method, request, {"deadline_s": 0, **more})
        stream = Stream(self, (await self.ask("POST", "/streams", wanted))["number"])
        try:
            yield stream
        finally:
            await stream.end()

    async def repeat(
        self, method: str, request: Json | None = None, *, count: int, at_once: int = 1, **more: Any
    ) -> Repetition:
        """Make a call many times and measure it; ``{n}`` in the request is replaced by the call's number."""
        wanted = _call(method, request, {**more, "count": count, "at_once": at_once})
        return Repetition(**await self.ask("POST", "/repetitions", wanted))

    async def storm(
        self,
        create: Json,
        kinds: Sequence[Kind],
        *,
        creates: int,
        at_once: int = 50,
        lists: int = 10,
        lists_at_once: int = 2,
        deadline_s: float = _DEADLINE_S,
    ) -> Storm:
        """Run an event stream, creates of alternating kinds, and lists concurrently.

        In the create request ``{name}`` is replaced by the kind with a number, ``{padding}`` by a long text.
        """
        wanted = {
            "request": create,
            "kinds": [vars(kind) for kind in kinds],
            "creates": creates,
            "at_once": at_once,
            "lists": lists,
            "lists_at_once": lists_at_once,
            "deadline_s": deadline_s,
        }
        seen = await self.ask("POST", "/storms", wanted)
        sizes = {int(size): count for size, count in seen.pop("list_sizes").items()}
        return Storm(**{**seen, "list_sizes": sizes, "wire": _wire(seen["wire"])})

    async def wire(self) -> Wire:
        """Return the frame counts so far."""
        return _wire(await self.ask("GET", "/wire"))


def _call(method: str, request: Json | None, more: Mapping[str, Any]) -> Json:
    return {"method": method, "request": request or {}, "deadline_s": _DEADLINE_S, **more}


def _wire(seen: Json) -> Wire:
    return Wire(**{**seen, "errors": tuple(seen["errors"])})


def _progress(seen: Json) -> Progress:
    status = seen["status"] or {"code": ""}
    return Progress(
        count=seen["count"],
        size=seen["size"],
        code=status["code"],
        message=status.get("message", ""),
        answers=tuple(seen.get("answers", ())),
        raw=tuple(map(decoded, seen.get("raw", ()))),
        headers=seen.get("headers", {}),
        trailers=seen.get("trailers", {}),
    )
