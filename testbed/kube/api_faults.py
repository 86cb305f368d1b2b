"""A proxy in front of kube-apiserver that records requests, answers them itself, or breaks the server's responses.

Its serving certificate is issued by the API server's authority. Bearer tokens pass through; client certificates
cannot, so the proxy presents the one of a given user.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import Pair
from testbed.proxies.proxy import HEAD_BYTES, Proxy, body, read_head


@dataclass(frozen=True)
class ApiRequest:
    """A request as the API server receives it."""

    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_watch(self) -> bool:
        """Whether this is a watch."""
        return self.query.get("watch") in ("1", "true")


Matches = Callable[[ApiRequest], bool]


def any_request(_: ApiRequest) -> bool:
    """Match every request."""
    return True


@dataclass
class _Rule:
    """A fault for the next matching requests: this answer, or with None the loss of the server's response."""

    times: int
    which: Matches
    answer: bytes | None


@dataclass
class _Exchange:
    """The current request of one connection, on which requests do not overlap."""

    request: ApiRequest | None = None
    drops_response: bool = False


class ApiFaults(Proxy):
    """A proxy in front of the API server of one control plane."""

    def __init__(self, plane: ControlPlane, user: Pair | None, prefix: str = "") -> None:
        super().__init__(plane.authority.server_context())
        self.requests: list[ApiRequest] = []
        """All requests, whether passed on or answered here."""
        self._plane = plane
        self._context = plane.authority.client_context(user)
        self._prefix = prefix
        self._rules: list[_Rule] = []
        self._truncate_event_after: int | None = None

    @property
    def url(self) -> str:
        """The URL for clients, with the prefix that is stripped from requests."""
        return super().url + self._prefix

    def count(self, which: Matches = any_request) -> int:
        """Return the number of matching requests so far."""
        return sum(map(which, self.requests))

    def answer(
        self,
        status: int,
        *,
        times: int = 1,
        which: Matches = any_request,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> None:
        """Answer the next matching requests without passing them on."""
        self._rules.append(_Rule(times, which, _response(status, headers or {}, content)))

    def drop_response(self, *, times: int = 1, which: Matches = any_request) -> None:
        """Pass the next matching requests on, and close the connection instead of returning the response."""
        self._rules.append(_Rule(times, which, None))

    def truncate_event(self, after_bytes: int) -> None:
        """Close the connection after this many bytes of the next watch event."""
        self._truncate_event_after = after_bytes

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open one upstream connection for each client connection, and relay between them."""
        port = self._plane.api.ports["https"]
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port, ssl=self._context, limit=HEAD_BYTES)
        current = _Exchange()
        requests = self._pass_requests(reader, writer, up_writer, current)
        await self.relay(up_writer, requests, self._pass_responses(up_reader, writer, current))

    async def _pass_requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream: asyncio.StreamWriter,
        current: _Exchange,
    ) -> None:
        while True:
            head = await read_head(reader)
            content = b"".join([piece async for piece in body(reader, head)])
            if not head.split(b" ", 2)[1].startswith(self._prefix.encode()):
                await self.send(writer, _response(404, {}, b""))
                continue
            head = head.replace(self._prefix.encode(), b"", 1)
            current.request = _parse(head)
            rule = self._record(current.request)
            current.drops_response = rule is not None and rule.answer is None
            if rule is not None and rule.answer is not None:
                await self.send(writer, rule.answer)
            else:
                await self.send(upstream, head + content)

    async def _pass_responses(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, current: _Exchange
    ) -> None:
        while True:
            head = await read_head(upstream)
            if current.drops_response:
                return
            await self.send(writer, head)
            async for piece in body(upstream, head):
                if current.request and current.request.is_watch and (end := self._truncation(piece)) is not None:
                    await self.send(writer, piece[:end])
                    return
                await self.send(writer, piece)

    def _record(self, request: ApiRequest) -> _Rule | None:
        """Record a request, and use up and return the first rule that matches it."""
        self.requests.append(request)
        for rule in self._rules:
            if rule.times and rule.which(request):
                rule.times -= 1
                return rule
        return None

    def _truncation(self, chunk: bytes) -> int | None:
        """Return the offset at which to truncate this chunk of a watch; the last chunk has no event."""
        after = self._truncate_event_after
        if after is None or chunk.startswith(b"0\r\n"):
            return None
        self._truncate_event_after = None
        return chunk.index(b"\n") + 1 + after


def _parse(head: bytes) -> ApiRequest:
    method, target, _ = head.decode("latin-1").split(" ", 2)
    parts = urlsplit(target)
    return ApiRequest(method, parts.path, dict(parse_qsl(parts.query)))


def _response(status: int, headers: Mapping[str, str], content: bytes) -> bytes:
    described = {"Content-Length": len(content), **headers}
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in described.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content
