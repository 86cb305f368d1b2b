"""A proxy in front of kube-apiserver that sees each request, and can answer, lose or break it in the server's place.

To its clients it is the API server: its certificate is of the same authority. It passes tokens on and shows the
certificate of the user that it is told to be, for it cannot show its clients' own.
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
class Asked:
    """A request as the API server would see it."""

    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_watch(self) -> bool:
        """Whether it asks for a stream of events."""
        return self.query.get("watch") in ("1", "true")


Which = Callable[[Asked], bool]


def every(_: Asked) -> bool:
    """Any request at all."""
    return True


@dataclass
class _Rule:
    """What becomes of the next requests of a kind: an answer, or without one they are passed on and theirs is lost."""

    times: int
    which: Which
    answer: bytes | None


@dataclass
class _Turn:
    """Whose turn it is on one connection, where requests come one after the other."""

    asked: Asked | None = None
    loses_answer: bool = False


class ApiFaults(Proxy):
    """Stands before the API server of one control plane."""

    def __init__(self, plane: ControlPlane, user: Pair | None, prefix: str = "") -> None:
        super().__init__(plane.authority.server_context())
        self.requests: list[Asked] = []
        """All that was asked, whoever answered."""
        self._plane = plane
        self._context = plane.authority.client_context(user)
        self._prefix = prefix
        self._rules: list[_Rule] = []
        self._cut_event_after: int | None = None

    @property
    def url(self) -> str:
        """What a client is told in place of the server's address, with the prefix that is taken off again."""
        return super().url + self._prefix

    def count(self, which: Which = every) -> int:
        """How many such requests there were so far."""
        return sum(map(which, self.requests))

    def answer(
        self,
        status: int,
        *,
        times: int = 1,
        which: Which = every,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> None:
        """Answer the next such requests in place of the server, which does not see them."""
        self._rules.append(_Rule(times, which, _response(status, headers or {}, content)))

    def lose(self, *, times: int = 1, which: Which = every) -> None:
        """Pass the next such requests on, and close the connection in place of the server's answer."""
        self._rules.append(_Rule(times, which, None))

    def cut_event(self, after_bytes: int) -> None:
        """Close the connection that brings the next event of a watch, after so many bytes of it."""
        self._cut_event_after = after_bytes

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection to the server for each of a client's."""
        port = self._plane.api.ports["https"]
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port, ssl=self._context, limit=HEAD_BYTES)
        turn = _Turn()
        await self.couple(up_writer, self._ask(reader, writer, up_writer, turn), self._reply(up_reader, writer, turn))

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter, turn: _Turn
    ) -> None:
        while True:
            head = await read_head(reader)
            content = b"".join([piece async for piece in body(reader, head)])
            if not head.split(b" ", 2)[1].startswith(self._prefix.encode()):
                await self.send(writer, _response(404, {}, b""))
                continue
            head = head.replace(self._prefix.encode(), b"", 1)
            turn.asked = _asked(head)
            rule = self._applied(turn.asked)
            turn.loses_answer = rule is not None and rule.answer is None
            if rule is not None and rule.answer is not None:
                await self.send(writer, rule.answer)
            else:
                await self.send(upstream, head + content)

    async def _reply(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, turn: _Turn) -> None:
        while True:
            head = await read_head(upstream)
            if turn.loses_answer:
                return
            await self.send(writer, head)
            async for piece in body(upstream, head):
                if turn.asked and turn.asked.is_watch and (end := self._end_of(piece)) is not None:
                    await self.send(writer, piece[:end])
                    return
                await self.send(writer, piece)

    def _applied(self, asked: Asked) -> _Rule | None:
        """Note the request, and use up what was said of such ones."""
        self.requests.append(asked)
        for rule in self._rules:
            if rule.times and rule.which(asked):
                rule.times -= 1
                return rule
        return None

    def _end_of(self, chunk: bytes) -> int | None:
        """Where that chunk of a watch is to be cut; the last one is empty."""
        after = self._cut_event_after
        if after is None or chunk.startswith(b"0\r\n"):
            return None
        self._cut_event_after = None
        return chunk.index(b"\n") + 1 + after


def _asked(head: bytes) -> Asked:
    method, target, _ = head.decode("latin-1").split(" ", 2)
    parts = urlsplit(target)
    return Asked(method, parts.path, dict(parse_qsl(parts.query)))


def _response(status: int, headers: Mapping[str, str], content: bytes) -> bytes:
    described = {"Content-Length": len(content), **headers}
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in described.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content
