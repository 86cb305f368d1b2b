"""Agents as one small protocol each: a watch that reads events, a poller, and shared connections for reports.

They do what a real agent sends and receives on the wire and nothing else, so that one process can have ten thousand of
them. Signatures are not verified.
"""

import asyncio
import random
import re
import ssl
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import refs
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Report, ResourceReport, State
from governor.wire import credentials
from governor.wire.rest import PREFIX

POLL_S: Final = 10.0
"""The interval of the proof of concept."""
_RECONNECT_S: Final = (0.2, 2.0)
_TOKEN_S: Final = credentials.LIFETIME_S / 2
_SESSION: Final = re.compile(rb"governor-watch-session: (\d+)", re.IGNORECASE)
_STAMP: Final = re.compile(rb'"kcp-res-version":"([^"]+)"')
_EVENT: Final = re.compile(rb"event: (\w+)\nid: ([^\n]+)\ndata: ([^\n]*)\n\n")


class Address(NamedTuple):
    """Where the server is, and with which TLS it is reached."""

    host: str
    port: int
    tls: ssl.SSLContext | None


class Identity:
    """A runtime's name and its token, which is signed again before it expires."""

    __slots__ = ("_key", "_minted_s", "_token", "name")

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self.name = name
        self._key = key
        self._minted_s = float("-inf")
        self._token = ""

    @property
    def token(self) -> str:
        """Return a valid token."""
        if time.monotonic() - self._minted_s > _TOKEN_S:
            self._token = credentials.mint(self.name, self._key, datetime.now(UTC)).reveal()
            self._minted_s = time.monotonic()
        return self._token


class WatchAgent(asyncio.Protocol):
    """One agent with an open watch. ``received_s`` is when its last delivery was complete."""

    __slots__ = (
        "_buffer",
        "_events",
        "_on_delivery",
        "_transport",
        "connects",
        "identity",
        "is_open",
        "position",
        "received_s",
        "session",
    )

    def __init__(self, identity: Identity, on_delivery: "Callable[[WatchAgent, bytes], None]") -> None:
        self.identity = identity
        self.position = b""
        self.received_s = 0.0
        self.session = 0
        self.is_open = False
        self.connects = 0
        self._on_delivery = on_delivery
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._events = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the request of a watch."""
        self._transport, self._buffer, self._events = transport, b"", b""
        self.connects += 1
        held = b"Last-Event-ID: %s\r\n" % self.position if self.position else b""
        transport.write(
            f"GET {PREFIX}/runtimes/{self.identity.name}/watch?boot={self.identity.name} HTTP/1.1\r\n"
            f"Host: x\r\nAuthorization: Bearer {self.identity.token}\r\n"
            "Governor-Delivery-Formats: 1, 2, 3\r\nGovernor-Report-Formats: 1, 2\r\n".encode()
            + held
            + b"\r\n"
        )

    def data_received(self, data: bytes) -> None:
        """Read the head of the response, then its chunks."""
        self._buffer += data
        if not self.is_open:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            found = _SESSION.search(head)
            if not head.startswith(b"HTTP/1.1 200") or found is None:
                self.close()
                return
            self.is_open, self.session, self._buffer = True, int(found[1]), rest
        self._read_chunks()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the watch is closed; the swarm connects it again."""
        self.is_open, self._transport = False, None

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection, accepted as a watch or not yet."""
        return self._transport is not None

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading, as a stalled agent does."""
        if self._transport is not None:
            self._transport.pause_reading()

    def _read_chunks(self) -> None:
        while True:
            size, separator, rest = self._buffer.partition(b"\r\n")
            if not separator:
                return
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            self._buffer = rest[length + 2 :]
            self._read_events(rest[:length])

    def _read_events(self, chunk: bytes) -> None:
        self._events += chunk
        while (end := self._events.find(b"\n\n")) >= 0:
            event, self._events = self._events[: end + 2], self._events[end + 2 :]
            found = _EVENT.fullmatch(event)
            if found is not None:
                self.position, self.received_s = found[2], time.monotonic()
                self._on_delivery(self, found[3])


class PollAgent(asyncio.Protocol):
    """One agent of the proof of concept: it requests its runtime every ten seconds and compares the version."""

    __slots__ = ("_address", "_buffer", "_timer", "identity", "received_s", "stamp")

    def __init__(self, identity: Identity, address: Address) -> None:
        self.identity = identity
        self.stamp = b""
        self.received_s = 0.0
        self._address = address
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = b""

    def begin(self, delay_s: float) -> None:
        """Poll after a delay, then at the interval."""
        self.stamp = b""
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._poll)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the request; the interval is longer than servers keep an idle connection open."""
        self._buffer = b""
        head = f"GET /runtimes/{self.identity.name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.identity.token}"
        transport.write(f"{head}\r\nConnection: close\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Look for a version that differs from the last one."""
        self._buffer += data
        found = _STAMP.search(self._buffer)
        if found is not None and found[1] != self.stamp:
            self.stamp, self.received_s = found[1], time.monotonic()

    def close(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(POLL_S, self._poll)
        host, port, tls = self._address
        connecting = loop.create_task(loop.create_connection(lambda: self, host, port, ssl=tls))
        # A poll that fails is not repeated before the next one is due.
        connecting.add_done_callback(lambda done: done.exception())


class Sender(asyncio.Protocol):
    """One connection that sends requests one after the other, as an ingress does for many agents."""

    def __init__(self, queue: "deque[tuple[bytes, Callable[[bool], None]]]", address: Address) -> None:
        self._queue = queue
        self._address = address
        self._connecting = False
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[bool], None] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the first request."""
        self._transport, self._connecting, self._buffer = transport, False, b""
        self.send_next()

    def data_received(self, data: bytes) -> None:
        """Read one response and send the next request."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if not separator or len(body) < (int(found[1]) if found else 0):
            return
        done, self._done, self._buffer = self._done, None, b""
        if done is not None:
            done(head.startswith(b"HTTP/1.1 204"))
        self.send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the request in flight as failed; the next request connects again."""
        self._transport, done, self._done = None, self._done, None
        if done is not None:
            done(False)
            self.send_next()

    def send_next(self) -> None:
        """Send the next request, if none is in flight."""
        if self._done is not None or self._connecting or not self._queue:
            return
        if self._transport is None or self._transport.is_closing():
            self._connecting = True
            host, port, tls = self._address
            loop = asyncio.get_running_loop()
            connecting = loop.create_task(loop.create_connection(lambda: self, host, port, ssl=tls))
            connecting.add_done_callback(self._connected)
        else:
            request, self._done = self._queue.popleft()
            self._transport.write(request)

    def _connected(self, connecting: "asyncio.Task[Any]") -> None:
        self._connecting = False
        if connecting.exception() is not None:
            asyncio.get_running_loop().call_later(0.2, self.send_next)


def reconnect_delay_s(rng: random.Random) -> float:
    """Return a jittered delay before a reconnect."""
    return rng.uniform(*_RECONNECT_S)


class Reports:
    """Requests that acknowledge deliveries; the findings of one body are encoded once."""

    def __init__(self) -> None:
        self._resources: dict[str, tuple[str, bytes]] = {}

    def request(self, agent: WatchAgent, signed: bytes) -> bytes:
        """Return the request of a report that everything is verified."""
        event = msgspec.json.decode(signed)
        head = msgspec.json.decode(event["payload"])
        digest, resources = self._findings(event["body"], head)
        fields = {
            "format": 2,
            "runtime": agent.identity.name,
            "sequence": head["sequence"],
            "attempt": head["attempt"],
            "digest": digest,
            "session": agent.session,
            "n": head["sequence"],
            "time": datetime.now(UTC),
            "agent": "bench",
            "resources": msgspec.Raw(resources),
            "workloads": (),
        }
        body = msgspec.json.encode(fields)
        path = f"{PREFIX}/runtimes/{agent.identity.name}/reports"
        return (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {agent.identity.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def _findings(self, body: str, head: dict[str, Any]) -> tuple[str, bytes]:
        removals = msgspec.json.encode(head["removals"]).decode()
        key = head["body"] + removals
        if key not in self._resources:
            decoded = msgspec.json.decode(body)
            self._resources[key] = decoded["digest"], _verified(decoded["resources"], head["removals"])
        return self._resources[key]


def _verified(resources: list[dict[str, Any]], removals: list[dict[str, str]]) -> bytes:
    """Return the findings of a report in which everything is verified."""
    evidence = (Evidence("bench", datetime.now(UTC), "the store answers with the expected value"),)
    removed = msgspec.convert(removals, tuple[ResourceRef, ...])
    findings = [
        ResourceReport(state=State.VERIFIED, resource=ref, evidence=evidence) for ref in (*refs(resources), *removed)
    ]
    report = Report("", 0, 0, "", 0, 0, datetime.now(UTC), "", tuple(findings), ())
    return msgspec.json.encode(msgspec.to_builtins(report)["resources"])
