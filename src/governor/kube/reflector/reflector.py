"""Lists and watches one kind in one cluster, and caches the fields of each object that the caller reads.

Once synced the store is complete, and from then on as old as the connection has been lost. Handlers run between two
events of the stream and must not block; usually they add a key to a queue. An exception in a handler, an index or
``keep`` ends the reflector, because it is a bug in the program and not a failure of the cluster.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Final, Generic

from governor.errors import GovernorError, Kind
from governor.kube.client import METADATA, METADATA_LIST, Client, Request
from governor.kube.client.client import PAGE_TIMEOUT_S
from governor.kube.client.transport import JSON
from governor.kube.errors import ApiError
from governor.kube.objects import ApiResource
from governor.kube.reflector.list_watch import ListWatch
from governor.kube.reflector.store import Event, Index, Store, WritableStore
from governor.kube.reflector.views import V
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging

BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
IDLE_TIMEOUT_S: Final = 210.0
"""A healthy server sends a bookmark every minute or two; a connection without data for this long counts as lost."""
WATCH_TIMEOUT_S: Final = (300, 600)
"""Range of ``timeoutSeconds``; random, so that many clients do not reconnect at once."""
MIN_WATCH_S: Final = 1.0
"""A watch closed sooner than this counts as rejected."""

_log = logging.get_logger(__name__)


class Reflector(Generic[V]):
    """List-watch of one kind, in one namespace or all, limited to the objects that match the selectors.

    With ``metadata_only`` the server sends only the metadata of each object. ``keep`` selects by the view what no
    selector can: an object that it rejects is treated as absent, and is not held in memory. ``on_failure`` is called
    with each failed request.
    """

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
        metadata_only: bool = False,
        indexes: Mapping[str, Index[V]] | None = None,
        keep: Callable[[V], bool] | None = None,
        on_failure: Callable[[GovernorError], None] | None = None,
        backoff: Backoff = BACKOFF,
        rng: random.Random | None = None,
    ) -> None:
        if metadata_only and view.__struct_fields__ != ("metadata",):
            raise ValueError(f"{view.__name__} reads fields that a server does not send with the metadata alone")
        self._client = client
        self._metadata_only = metadata_only
        self._path = resource.path(namespace)
        self._selectors = {name: text for name, text in (("labelSelector", labels), ("fieldSelector", fields)) if text}
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._retries = Retries(backoff, self._rng)
        self._store: WritableStore[V] = WritableStore(indexes or {})
        self._list_watch = ListWatch(resource, view, self._store, on_event, keep)
        self._on_failure = on_failure
        self._synced = asyncio.Event()
        self._last_line_s = 0.0
        self._is_watch_confirmed = False
        self.reconnects = 0
        """Number of watches that have ended, for whatever reason."""
        self.failure: GovernorError | None = None
        """The last failure; None again as soon as a request succeeds."""

    @property
    def store(self) -> Store[V]:
        """The cached objects; read-only."""
        return self._store

    @property
    def last_error(self) -> str:
        """The text of the failure, or empty."""
        return str(self.failure) if self.failure else ""

    @property
    def delivered(self) -> int:
        """Number of events passed to the handler."""
        return self._list_watch.delivered

    @property
    def relists(self) -> int:
        """Number of lists that were repeated because the resourceVersion or continue token had expired."""
        return self._list_watch.relists

    @property
    def is_synced(self) -> bool:
        """Whether the initial list is complete."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait until the initial list is complete."""
        await self._synced.wait()

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                await self._step()
            except GovernorError as error:
                await self._back_off(error)

    async def _step(self) -> None:
        if self._list_watch.is_listing:
            await self._list_page()
        else:
            await self._watch()

    async def _list_page(self) -> None:
        query = self._list_watch.list_query() | self._selectors
        accept = METADATA_LIST if self._metadata_only else JSON
        request = Request("GET", self._path, query, timeout_s=PAGE_TIMEOUT_S, accept=accept)
        self._list_watch.receive_page(await self._client.send(request))
        self.failure = None
        if not self._list_watch.is_listing:
            self._synced.set()

    async def _watch(self) -> None:
        """Run one watch until it ends, usually by its ``timeoutSeconds``."""
        started_s = self._last_line_s = self._clock.monotonic()
        self._is_watch_confirmed = False
        try:
            async with asyncio.timeout(None) as deadline:
                watchdog = asyncio.create_task(self._expire_when_idle(deadline))
                try:
                    await self._read_watch()
                finally:
                    self.reconnects += 1
                    watchdog.cancel()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            message = f"watch {self._path}: no data for {IDLE_TIMEOUT_S:g} s, not even a bookmark"
            raise GovernorError(Kind.DEADLINE, "kube-watch-silent", message) from error
        if self._clock.monotonic() - started_s < MIN_WATCH_S:
            message = f"watch {self._path}: the server closed it immediately"
            raise GovernorError(Kind.UNAVAILABLE, "kube-watch-short", message)
        self._confirm_watch()

    async def _read_watch(self) -> None:
        query = self._list_watch.watch_query(self._rng.randint(*WATCH_TIMEOUT_S)) | self._selectors
        request = Request("GET", self._path, query, accept=METADATA if self._metadata_only else JSON)
        async with contextlib.aclosing(self._client.stream_lines(request)) as lines:
            async for line in lines:
                self._last_line_s = self._clock.monotonic()
                self._list_watch.receive_line(line)
                if not self._is_watch_confirmed:
                    self._confirm_watch()

    async def _expire_when_idle(self, deadline: asyncio.Timeout) -> None:
        while (left_s := self._last_line_s + IDLE_TIMEOUT_S - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s)
        deadline.reschedule(asyncio.get_running_loop().time())

    def _confirm_watch(self) -> None:
        """Reset the backoff: the watch works."""
        self._is_watch_confirmed = True
        self._retries.reset()
        self.failure = None

    async def _back_off(self, error: GovernorError) -> None:
        self._list_watch.receive_error(error)
        self.failure = error
        if self._on_failure:
            self._on_failure(error)
        delay_s = self._retries.next_delay_s()
        if isinstance(error, ApiError):
            delay_s = max(delay_s, error.retry_after_s or 0.0)
        _log.warning("list or watch failed; retrying", path=self._path, error=self.last_error, wait_s=round(delay_s, 1))
        await self._clock.sleep(delay_s)
