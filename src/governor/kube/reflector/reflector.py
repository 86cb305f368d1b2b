"""Follows all objects of one kind in one cluster, and keeps of each the few fields that its caller reads.

The store is complete once synced, and then as old as the connection is broken. Handlers are called between two events
of the stream and must not block; usually they add a key to a queue. A handler or an index that raises ends the
reflector: it is a mistake in the program, not in the cluster.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Final, Generic

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector.list_watch import ListWatch
from governor.kube.reflector.store import Event, Index, Store, WritableStore
from governor.kube.reflector.views import Unreadable, V
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging

BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
SILENCE_S: Final = 210.0
"""A healthy server sends a bookmark every minute or two; after this the connection is taken for dead."""
WATCH_S: Final = (300, 600)
"""How long one watch may last; spread, so that many followers do not come back together."""
SHORT_S: Final = 1.0
"""A watch that ends sooner than this is refused in disguise: it is asked for again only after a wait."""

_log = logging.get_logger(__name__)


class Reflector(Generic[V]):
    """One kind, in one namespace or in all, that fits the selectors."""

    def __init__(
        self,
        client: Client,
        resource: ApiResource,
        view: type[V],
        *,
        clock: Clock,
        on_event: Callable[[Event[V]], None],
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Index[V]] | None = None,
        backoff: Backoff = BACKOFF,
        chance: random.Random | None = None,
    ) -> None:
        self._client = client
        self._path = resource.path(namespace)
        self._selectors = {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._retries = Retries(backoff, self._chance)
        self._store: WritableStore[V] = WritableStore(indexes or {})
        self._protocol = ListWatch(resource, view, self._store, on_event)
        self._synced = asyncio.Event()
        self._heard_s = 0.0
        self._is_watch_heard = False
        self.reconnects = 0
        """How many watches have ended, whatever ended them."""
        self.trouble = ""
        """The last failure, until the server is heard again; empty while all is well."""

    @property
    def store(self) -> Store[V]:
        """What is held; to be read only."""
        return self._store

    @property
    def delivered(self) -> int:
        """How many events the handler was given."""
        return self._protocol.delivered

    @property
    def relists(self) -> int:
        """How often everything was listed again because the server no longer knew where we stood."""
        return self._protocol.relists

    @property
    def unreadable(self) -> Mapping[ObjectRef, Unreadable]:
        """Objects whose present state does not fit the view; of these the store has the last that did, or nothing."""
        return self._protocol.unreadable

    @property
    def is_synced(self) -> bool:
        """Whether everything was read once."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait until everything was read once."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._proceed()
            except GovernorError as error:
                await self._recover(error)

    async def _proceed(self) -> None:
        if self._protocol.is_listing:
            await self._list()
        else:
            await self._watch()

    async def _list(self) -> None:
        query = self._protocol.list_query() | self._selectors
        self._protocol.take_page(await self._client.send(Request("GET", self._path, query)))
        self.trouble = ""
        if not self._protocol.is_listing:
            self._synced.set()

    async def _watch(self) -> None:
        """One watch to its end, which is mostly the server's time limit."""
        began_s = self._heard_s = self._clock.monotonic()
        self._is_watch_heard = False
        try:
            async with asyncio.timeout(None) as limit:
                watchdog = asyncio.create_task(self._expire_when_silent(limit))
                try:
                    await self._hear()
                finally:
                    self.reconnects += 1
                    watchdog.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"watch {self._path}: not a word for {SILENCE_S:g} s, not even a bookmark"
            raise GovernorError(Kind.DEADLINE, "kube-watch-silent", message) from error
        if self._clock.monotonic() - began_s < SHORT_S:
            message = f"watch {self._path}: the server ended it at once"
            raise GovernorError(Kind.UNAVAILABLE, "kube-watch-short", message)
        self._recovered()

    async def _hear(self) -> None:
        query = self._protocol.watch_query(self._chance.randint(*WATCH_S)) | self._selectors
        async with contextlib.aclosing(self._client.stream_lines(Request("GET", self._path, query))) as lines:
            async for line in lines:
                self._heard_s = self._clock.monotonic()
                self._protocol.take_line(line)
                if not self._is_watch_heard:
                    self._recovered()

    async def _expire_when_silent(self, limit: asyncio.Timeout) -> None:
        while (left_s := self._heard_s + SILENCE_S - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        limit.reschedule(asyncio.get_running_loop().time())

    def _recovered(self) -> None:
        self._is_watch_heard = True
        self._retries.reset()
        self.trouble = ""

    async def _recover(self, error: GovernorError) -> None:
        self._protocol.take_failure(error)
        self.trouble = str(error)
        wait_s = self._retries.next_delay_s()
        if isinstance(error, ApiError):
            wait_s = max(wait_s, error.retry_after_s or 0.0)
        _log.warning("cannot follow, trying again", path=self._path, error=self.trouble, wait_s=round(wait_s, 1))
        await self._clock.sleep(wait_s)
