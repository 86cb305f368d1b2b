"""The server's endpoints as methods, one request each; only ``watch`` makes a second one, for a large delivery."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

import msgspec

from governor.client.transport import Transport
from governor.domain.changes import Change, Revision
from governor.domain.documents import DocumentRef
from governor.domain.reports import Report
from governor.errors import GovernorError, Kind
from governor.values.secret import Secret
from governor.wire.events import DELIVERY, NOTICE, PROGRESS, Event, Parser
from governor.wire.rest import (
    ChangeRequest,
    DeliveryNotice,
    DocumentView,
    Enrolment,
    EnrolRequest,
    RevisionProgress,
    RuntimeExplanation,
    RuntimeView,
    ServerStatus,
    SignedDelivery,
    TokenCreated,
    TokenRequest,
    TokenView,
)

T = TypeVar("T")

FETCH_JITTER_S: Final = 0.25
"""Over this time the runtimes spread their requests for a large delivery that was announced to all of them at once."""


class Client:
    """A server's API. Streams are async generators: end one early with ``contextlib.aclosing``."""

    def __init__(
        self,
        server: str,
        credential: Callable[[], Secret] | None,
        *,
        ca_file: Path | None = None,
        ca_fingerprint: str = "",
        timeout_s: float = 30,
    ) -> None:
        """``credential`` is asked before each request, so that short-lived tokens stay fresh."""
        self._transport = Transport(
            server, credential, ca_file=ca_file, ca_fingerprint=ca_fingerprint, timeout_s=timeout_s
        )
        self._chance = random.Random()  # noqa: S311 - spreads load, keeps no secret

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def change(self, request: ChangeRequest) -> Change:
        """Ask for a change; a refused one is an error."""
        return await self._post("/changes", request, Change)

    async def documents(self, kind: str | None = None) -> tuple[DocumentView, ...]:
        """The newest version of each document, or of each of one kind."""
        return await self._get("/documents", tuple[DocumentView, ...], kind=kind)

    async def document(self, ref: DocumentRef, version: int | None = None) -> DocumentView:
        """One version of a document, the newest without ``version``."""
        return await self._get(f"/documents/{_word(ref.kind)}/{_word(ref.name)}", DocumentView, version=version)

    async def revisions(
        self, limit: int | None = None, before: int | None = None, document: DocumentRef | None = None
    ) -> tuple[Revision, ...]:
        """Revisions, newest first; ``before`` goes on where an earlier answer ended."""
        return await self._get("/revisions", tuple[Revision, ...], limit=limit, before=before, document=document)

    async def revision(self, number: int) -> Revision:
        """One revision."""
        return await self._get(f"/revisions/{number}", Revision)

    async def progress(self, number: int) -> AsyncGenerator[RevisionProgress, None]:
        """How far a revision is out, each time it moves, until it is complete; only the caller gives up earlier."""
        path = f"/revisions/{number}/progress"
        async with aclosing(self._events(path)) as events:
            async for event in events:
                if event.event == PROGRESS:
                    progress = self._transport.read(f"GET {path}", event.data, RevisionProgress)
                    yield progress
                    if progress.complete:
                        return

    async def runtimes(self) -> tuple[RuntimeView, ...]:
        """All runtimes with their states."""
        return await self._get("/runtimes", tuple[RuntimeView, ...])

    async def runtime(self, name: str) -> RuntimeView:
        """One runtime with its state."""
        return await self._get(f"/runtimes/{_word(name)}", RuntimeView)

    async def explain(self, runtime: str) -> RuntimeExplanation:
        """Each field of a runtime's configuration with the profile that decided it."""
        return await self._get(f"/runtimes/{_word(runtime)}/explain", RuntimeExplanation)

    async def retry(self, runtime: str) -> RuntimeView:
        """Have a runtime try its newest delivery once more; its state then."""
        return await self._post(f"/runtimes/{_word(runtime)}/retry", None, RuntimeView)

    async def revoke_runtime(self, runtime: str) -> RuntimeView:
        """Refuse the key of a runtime's agent from now on, also on open connections; the runtime's state then."""
        return await self._post(f"/runtimes/{_word(runtime)}/revoke", None, RuntimeView)

    async def status(self) -> ServerStatus:
        """How the server is, and as whom it knows us."""
        return await self._get("/status", ServerStatus)

    async def create_token(self, request: TokenRequest) -> TokenCreated:
        """Make a token; its text is in this answer and nowhere else."""
        return await self._post("/tokens", request, TokenCreated)

    async def tokens(self) -> tuple[TokenView, ...]:
        """All tokens, without their texts."""
        return await self._get("/tokens", tuple[TokenView, ...])

    async def revoke_token(self, token_id: str) -> None:
        """Refuse a token from now on, also on open connections."""
        await self._transport.call("DELETE", f"/tokens/{_word(token_id)}")

    async def enrol(self, request: EnrolRequest) -> Enrolment:
        """Join as a runtime, with the secret of a join token instead of a credential."""
        return await self._post("/enrol", request, Enrolment)

    async def watch(
        self,
        runtime: str,
        after: int = 0,
        *,
        boot: str = "",
        host: str = "",
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[SignedDelivery, None]:
        """Deliveries of a runtime beyond sequence ``after``, on one connection; it never ends but by an error.

        While another ``boot`` watches, it is refused as ``runtime-in-use``, naming the ``host`` of the other one.
        """
        path = f"/runtimes/{_word(runtime)}/watch"
        async with aclosing(self._events(path, after, {"boot": boot, "host": host}, on_open)) as events:
            async for event in events:
                if event.event == DELIVERY:
                    yield self._transport.read(f"GET {path}", event.data, SignedDelivery)
                elif event.event == NOTICE:
                    notice = self._transport.read(f"GET {path}", event.data, DeliveryNotice)
                    await asyncio.sleep(self._chance.uniform(0, FETCH_JITTER_S))
                    yield await self.delivery(runtime, notice.sequence)

    async def delivery(self, runtime: str, sequence: int) -> SignedDelivery:
        """One delivery by its sequence; it never changes."""
        return await self._get(f"/runtimes/{_word(runtime)}/bundles/{sequence}", SignedDelivery)

    async def report(self, report: Report) -> None:
        """Hand in what an agent saw; handing it in twice is the same as once."""
        await self._transport.call("POST", f"/runtimes/{_word(report.runtime)}/reports", body=report)

    async def _get(self, path: str, answer: type[T], /, **query: object) -> T:
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._transport.read(f"GET {path}", await self._transport.call("GET", path, given), answer)

    async def _post(self, path: str, body: msgspec.Struct | None, answer: type[T]) -> T:
        return self._transport.read(f"POST {path}", await self._transport.call("POST", path, body=body), answer)

    async def _events(
        self,
        path: str,
        after: int = 0,
        query: Mapping[str, str] | None = None,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Event, None]:
        parser = Parser()
        headers = {"Last-Event-ID": str(after)} if after else {}
        async with aclosing(self._transport.stream(path, headers, query)) as chunks:
            async for chunk in chunks:
                on_open()
                for event in parser.feed(chunk):
                    yield event
        message = f"{self._transport.server} ended the stream of GET {path}; connect again"
        raise GovernorError(Kind.UNAVAILABLE, "stream-ended", message)


def _word(text: str) -> str:
    """A name as one step of a path."""
    return quote(text, safe="")
