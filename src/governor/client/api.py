"""The server's endpoints as methods of one request each; only pages of lists and large deliveries take more."""

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
from governor.domain.bundles import DeliveryPosition
from governor.domain.changes import Change, ChangeState, Revision
from governor.domain.documents import DocumentRef, Platform
from governor.domain.inventories import Inventory
from governor.domain.reports import Check, Report
from governor.errors import GovernorError, Kind, invalid
from governor.values.secret import Secret
from governor.wire import deliveries, reports
from governor.wire.deliveries import SignedDelivery
from governor.wire.events import DELIVERY, NOTICE, PROGRESS, Event, Parser
from governor.wire.formats import DELIVERY_FORMATS, EPOCH, PLATFORM, REPORT_FORMAT, REPORT_FORMATS, SESSION, announce
from governor.wire.reports import Report1
from governor.wire.rest import (
    ChangeRequest,
    DeliveryNotice,
    DocumentView,
    Enrolment,
    EnrolRequest,
    InventoryView,
    RevisionProgress,
    RuntimeExplanation,
    RuntimeView,
    ServerStatus,
    TokenCreated,
    TokenRequest,
    TokenView,
)

T = TypeVar("T")

FETCH_JITTER_S: Final = 0.25
"""Runtimes spread their requests over this time when a large delivery is announced to all of them at once."""


PENDING_S: Final = 0.5
"""How often a change that takes long is asked for."""
PAGE: Final = 500
"""Runtimes in one response."""
_NOTHING: Final = DeliveryPosition()
_FORMATS: Final = {DELIVERY_FORMATS: announce(deliveries.FORMATS), REPORT_FORMATS: announce(reports.FORMATS)}


class WatchSession(msgspec.Struct, frozen=True):
    """An accepted watch: the session number for reports (0 from version 0.1) and the report format."""

    number: int
    report_format: int


class Client:
    """A client of one server. Streams are async generators: close one early with ``contextlib.aclosing``."""

    def __init__(
        self,
        server: str,
        credential: Callable[[], Secret] | None,
        *,
        ca_file: Path | None = None,
        ca_fingerprint: str = "",
        timeout_s: float = 30,
    ) -> None:
        """``credential`` is called before each request, so that short-lived tokens stay valid."""
        self._transport = Transport(
            server, credential, ca_file=ca_file, ca_fingerprint=ca_fingerprint, timeout_s=timeout_s
        )
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._transport.close()

    async def change(self, request: ChangeRequest) -> Change:
        """Submit a change and wait until it is accepted; a rejected one is an error."""
        change = await self._post("/changes", request, Change)
        while change.state is ChangeState.PENDING:
            await asyncio.sleep(PENDING_S)
            change = await self._get(f"/changes/{_segment(change.id)}", Change)
        return change

    async def documents(self, kind: str | None = None) -> tuple[DocumentView, ...]:
        """Return the newest version of each document, or of those of one kind."""
        return await self._get("/documents", tuple[DocumentView, ...], kind=kind)

    async def document(self, ref: DocumentRef, version: int | None = None) -> DocumentView:
        """Return one version of a document, by default the newest."""
        return await self._get(f"/documents/{_segment(ref.kind)}/{_segment(ref.name)}", DocumentView, version=version)

    async def revisions(
        self, limit: int | None = None, before: int | None = None, document: DocumentRef | None = None
    ) -> tuple[Revision, ...]:
        """Return revisions, newest first; ``before`` continues after the last one of the previous page."""
        return await self._get("/revisions", tuple[Revision, ...], limit=limit, before=before, document=document)

    async def revision(self, number: int) -> Revision:
        """Return one revision."""
        return await self._get(f"/revisions/{number}", Revision)

    async def progress(self, number: int, runtime: str | None = None) -> AsyncGenerator[RevisionProgress, None]:
        """Yield the progress of a revision, or of one of its runtimes, whenever it changes, until it is complete."""
        path = f"/revisions/{number}/progress"
        query = None if runtime is None else {"runtime": runtime}
        async with aclosing(self._events(path, query=query)) as events:
            async for event in events:
                if event.event == PROGRESS:
                    progress = self._transport.read(f"GET {path}", event.data, RevisionProgress)
                    yield progress
                    if progress.complete:
                        return

    async def runtimes(
        self, *, name: str | None = None, selector: str | None = None, state: str | None = None, full: bool = False
    ) -> tuple[RuntimeView, ...]:
        """Return all runtimes with their states, or those that match; without reports unless ``full``."""
        found: list[RuntimeView] = []
        after: str | None = None
        query = {"name": name, "selector": selector, "state": state, "full": "true" if full else None}
        while True:
            page = await self._get("/runtimes", tuple[RuntimeView, ...], limit=PAGE, after=after, **query)
            found += page
            if len(page) < PAGE:
                return tuple(found)
            after = page[-1].name

    async def runtime(self, name: str) -> RuntimeView:
        """Return one runtime with its state."""
        return await self._get(f"/runtimes/{_segment(name)}", RuntimeView)

    async def explain(self, runtime: str) -> RuntimeExplanation:
        """Return each field of a runtime's configuration with the profile that set it."""
        return await self._get(f"/runtimes/{_segment(runtime)}/explain", RuntimeExplanation)

    async def retry(self, runtime: str) -> RuntimeView:
        """Retry the newest delivery of a runtime and return the runtime."""
        return await self._post(f"/runtimes/{_segment(runtime)}/retry", None, RuntimeView)

    async def revoke_runtime(self, runtime: str) -> RuntimeView:
        """Revoke the key of a runtime's agent, including on open connections, and return the runtime."""
        return await self._post(f"/runtimes/{_segment(runtime)}/revoke", None, RuntimeView)

    async def status(self) -> ServerStatus:
        """Return the server's status and the caller's identity."""
        return await self._get("/status", ServerStatus)

    async def create_token(self, request: TokenRequest) -> TokenCreated:
        """Create a token; only this response contains its text."""
        return await self._post("/tokens", request, TokenCreated)

    async def tokens(self) -> tuple[TokenView, ...]:
        """Return all tokens, without their texts."""
        return await self._get("/tokens", tuple[TokenView, ...])

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token, including on open connections."""
        await self._transport.call("DELETE", f"/tokens/{_segment(token_id)}")

    async def enrol(self, request: EnrolRequest) -> Enrolment:
        """Enrol as a runtime, with the secret of a join token instead of a credential."""
        return await self._post("/enrol", request, Enrolment)

    async def watch(
        self,
        runtime: str,
        held: DeliveryPosition = _NOTHING,
        *,
        boot: str = "",
        host: str = "",
        epoch: int = 0,
        platform: Platform = Platform.LOCAL,
        on_open: Callable[[WatchSession], None] = lambda _: None,
        on_spread: Callable[[float], None] = lambda _: None,
    ) -> AsyncGenerator[SignedDelivery, None]:
        """Yield the deliveries of a runtime that replace ``held`` on one connection, until it fails.

        While another ``boot`` watches, the server rejects it as ``runtime-in-use`` and names the other ``host``. If
        that has a lower ``epoch``, it is an earlier process of the same agent, whose watch the server closes instead.
        ``on_spread`` receives the time over which the server wants reconnects of its agents to be spread.
        """
        path = f"/runtimes/{_segment(runtime)}/watch"
        headers = {**_FORMATS, PLATFORM: platform.value, EPOCH: str(epoch)}
        if held.sequence:
            headers["Last-Event-ID"] = str(held)

        def opened(response: Mapping[str, str]) -> None:
            on_open(_watch_session(path, response))

        query = {"boot": boot, "host": host}
        async with aclosing(self._events(path, headers, query, opened, on_spread)) as events:
            async for event in events:
                if event.event == DELIVERY:
                    yield self._transport.read(f"GET {path}", event.data, SignedDelivery)
                elif event.event == NOTICE:
                    notice = self._transport.read(f"GET {path}", event.data, DeliveryNotice)
                    await asyncio.sleep(self._rng.uniform(0, FETCH_JITTER_S))
                    yield await self.delivery(runtime, notice.sequence)

    async def delivery(self, runtime: str, sequence: int) -> SignedDelivery:
        """Return one delivery by its sequence; it never changes."""
        path = f"/runtimes/{_segment(runtime)}/bundles/{sequence}"
        return self._transport.read(
            f"GET {path}", await self._transport.call("GET", path, headers=_FORMATS), SignedDelivery
        )

    async def report(self, report: Report | Report1) -> None:
        """Send a report of an agent in one of the formats; sending it again has no effect."""
        await self._transport.call("POST", f"/runtimes/{_segment(report.runtime)}/reports", body=report)

    async def check(self, runtime: str, check: Check) -> None:
        """Confirm that the last report of a runtime's agent is still true; sending it again renews its time."""
        await self._transport.call("POST", f"/runtimes/{_segment(runtime)}/checks", body=check)

    async def put_inventory(self, runtime: str, inventory: Inventory) -> None:
        """Send what an agent found in the namespaces of its runtime; NOT_FOUND from an older server."""
        await self._transport.call("PUT", f"/runtimes/{_segment(runtime)}/inventory", body=inventory)

    async def inventory(self, runtime: str) -> InventoryView:
        """Return what the agent of a runtime found in its namespaces."""
        return await self._get(f"/runtimes/{_segment(runtime)}/inventory", InventoryView)

    async def _get(self, path: str, response: type[T], /, **query: object) -> T:
        parameters = {name: str(value) for name, value in query.items() if value is not None}
        return self._transport.read(f"GET {path}", await self._transport.call("GET", path, parameters), response)

    async def _post(self, path: str, body: msgspec.Struct | None, response: type[T]) -> T:
        return self._transport.read(f"POST {path}", await self._transport.call("POST", path, body=body), response)

    async def _events(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        on_open: Callable[[Mapping[str, str]], None] = lambda _: None,
        on_spread: Callable[[float], None] = lambda _: None,
    ) -> AsyncGenerator[Event, None]:
        parser = Parser()
        async with aclosing(self._transport.stream(path, headers or {}, query, on_open)) as chunks:
            async for chunk in chunks:
                found = parser.feed(chunk)
                on_spread(parser.spread_s)
                for event in found:
                    yield event
        message = f"{self._transport.server} closed the stream of GET {path}; reconnect"
        raise GovernorError(Kind.UNAVAILABLE, "stream-ended", message)


def _watch_session(path: str, headers: Mapping[str, str]) -> WatchSession:
    """Read the headers of an accepted watch; a server of version 0.1 sends none of them."""
    try:
        return WatchSession(int(headers.get(SESSION, 0)), int(headers.get(REPORT_FORMAT, 1)))
    except ValueError as error:
        message = f"the response to GET {path} has an unreadable {SESSION} or {REPORT_FORMAT}: {error}"
        raise GovernorError(Kind.UNAVAILABLE, "response-unreadable", message) from error


def _segment(text: str) -> str:
    """Return a name as one segment of a URL path."""
    if not text:
        raise invalid("name-empty", "the name is empty")
    return quote(text, safe="")
