"""Recorded responses of a sidecar, and a server that replays them on every address of this machine's loopback network.

One server stands for as many sidecars as there are addresses in 127.0.0.0/8: thousands, without a process for each.
"""

import asyncio
import io
import json
import socket
from collections import Counter
from collections.abc import Mapping
from http.client import HTTPResponse
from ipaddress import IPv4Address
from typing import Any, Self

from testbed.daprd import Daprd

METRICS = "/metrics"
PUBLIC = ("/v1.0/healthz/outbound", "/v1.0/metadata")
_FIRST_ADDRESS = int(IPv4Address("127.1.0.1"))
_ELSEWHERE = "198.51.100.1"
_HEALTH, _METADATA = PUBLIC
_INITIALISATIONS = "dapr_runtime_component_init_"
_WITHIN_S = 10.0


def address(number: int) -> str:
    """Return the address of a replayed sidecar."""
    return str(IPv4Address(_FIRST_ADDRESS + number))


def machine_address() -> str:
    """Return the address with which this machine reaches others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.connect((_ELSEWHERE, 9))
        return str(opened.getsockname()[0])


async def record(daprd: Daprd) -> dict[str, bytes]:
    """Return the responses of a running sidecar, by path."""
    ports = {METRICS: daprd.ports["metrics"], **dict.fromkeys(PUBLIC, daprd.ports["public"])}
    return {path: await _response(port, path) for path, port in ports.items()}


async def _response(port: int, path: str) -> bytes:
    """Return a response as sent."""
    async with asyncio.timeout(_WITHIN_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return await reader.read()
        finally:
            writer.close()


class ReplayedSidecar:
    """The sidecar at one address: recorded responses with its own app id, resources, counters and health."""

    def __init__(self, recorded: Mapping[str, bytes], app_id: str) -> None:
        self.metadata: dict[str, Any] = {**json.loads(_body(recorded[_METADATA])), "id": app_id, "components": []}
        self.initialised: Counter[str] = Counter()
        """Initialised components by type."""
        self.failed: Counter[str] = Counter()
        """Failed initialisations by the name of the component."""
        self.healthy = True
        lines = _body(recorded[METRICS]).decode().splitlines()
        self._metrics = [each for each in lines if not each.startswith(_INITIALISATIONS)]

    def load(self, name: str, kind: str) -> None:
        """List and count a component, as a sidecar that initialises it, for the first time or again."""
        others = [each for each in self.metadata["components"] if each["name"] != name]
        self.metadata["components"] = [*others, {"name": name, "type": kind, "version": "v1"}]
        self.initialised[kind] += 1

    def respond(self, path: str) -> bytes:
        """Return the response to a request."""
        match path:
            case "/metrics":
                return _response_of("200 OK", "\n".join([*self._metrics, *self._counters(), ""]).encode())
            case "/v1.0/metadata":
                return _response_of("200 OK", json.dumps(self.metadata).encode())
            case "/v1.0/healthz/outbound":
                return _response_of("204 No Content" if self.healthy else "500 Internal Server Error", b"")
        return b""

    def _counters(self) -> list[str]:
        done = [f'{_INITIALISATIONS}total{{component="{kind}"}} {n}' for kind, n in self.initialised.items()]
        return done + [f'{_INITIALISATIONS}fail_total{{componentName="{name}"}} {n}' for name, n in self.failed.items()]


class _Recorded:
    """A recorded response in place of a socket."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._response)


def _body(response: bytes) -> bytes:
    parsed = HTTPResponse(_Recorded(response))  # type: ignore[arg-type]
    parsed.begin()
    return parsed.read()


def _response_of(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


class SidecarReplay:
    """Responds to each path as recorded, on all addresses and one port; other paths get no response."""

    def __init__(self, responses: Mapping[str, bytes]) -> None:
        self.responses = dict(responses)
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests by address and path."""
        self.sidecars: dict[str, ReplayedSidecar] = {}
        """Sidecars with responses of their own, by address."""
        self.silent: set[str] = set()
        """Addresses that accept a connection and never respond."""
        self.open = 0
        self.most_open = 0
        """The largest number of connections at a time."""
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port, the same on every address."""
        assert self._server
        return int(self._server.sockets[0].getsockname()[1])

    def respond(self, host: str, path: str) -> bytes:
        """Return the response of the sidecar at an address."""
        own = self.sidecars.get(host)
        return own.respond(path) if own else self.responses.get(path, b"")

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # No single address receives the connections to all loopback addresses.
        self._server = await loop.create_server(lambda: _Connection(self), "0.0.0.0", 0, backlog=1024)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    """One connection with one request."""

    def __init__(self, replay: SidecarReplay) -> None:
        self._replay = replay
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replay.open += 1
        self._replay.most_open = max(self._replay.most_open, self._replay.open)

    def connection_lost(self, _: Exception | None) -> None:
        self._replay.open -= 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" not in self._received or self._transport is None:
            return
        path = self._received.split(b" ", 2)[1].decode()
        host = self._transport.get_extra_info("sockname")[0]
        self._replay.requests[host, path] += 1
        if host not in self._replay.silent:
            self._transport.write(self._replay.respond(host, path))
            self._transport.close()
