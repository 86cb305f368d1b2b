"""The watch of one kind, even while the cluster does not serve it.

A kind whose definition vanishes is no longer requested. It is requested again when the caller asks for it, and after
a slow interval.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.client.discovery import MISS_TTL_S, TTL_S
from governor.kube.errors import NO_API, ApiError
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Entry, Reflector, View
from governor.kube.reflector.reflector import BACKOFF
from governor.process.clock import Clock, wait_at_most
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.telemetry import logging

V = TypeVar("V", bound=View)
OnFailure: TypeAlias = Callable[[GovernorError], None]
Reflect: TypeAlias = Callable[[ApiResource, OnFailure], Reflector[V]]

_ABSENCE: Final = Backoff(initial_s=MISS_TTL_S, max_s=TTL_S)
"""Between two lookups of a kind that is not served."""
_VERBS: Final = frozenset({"list", "watch"})
_STALE_GROUP: Final = "kube-group-stale"
_OUTAGES: Final = frozenset({Kind.UNAUTHENTICATED, Kind.EXHAUSTED, Kind.DEADLINE})
"""Errors of the whole API server, after which waiting helps."""

_log = logging.get_logger(__name__)


class KindName(NamedTuple):
    """A kind in one version, or in the one that the server prefers."""

    group: str
    kind: str
    version: str = ""


class KindWatch(Generic[V]):
    """List and watch of one kind.

    ``on_change`` is called when the objects become known: the kind is listed, or turns out not to be served.
    """

    def __init__(
        self, client: Client, name: KindName, reflect: Reflect[V], clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.name = name
        self._client = client
        self._reflect = reflect
        self._clock = clock
        self._on_change = on_change
        self._resource: ApiResource | None = None
        self._reflector: Reflector[V] | None = None
        self._is_served = True
        self._error = ""
        self._settled = asyncio.Event()
        self._woken = asyncio.Event()

    @property
    def resource(self) -> ApiResource | None:
        """The kind as the cluster serves it; None while that is not known, or if it does not."""
        return self._resource

    @property
    def objects(self) -> Mapping[ObjectRef, Entry[V]]:
        """The cached objects."""
        return self._reflector.store if self._reflector else {}

    @property
    def is_known(self) -> bool:
        """Whether an object that is not cached does not exist."""
        return not self._is_served or (self._reflector is not None and self._reflector.is_synced)

    @property
    def is_absent(self) -> bool:
        """Whether the cluster does not serve the kind."""
        return not self._is_served

    @property
    def is_settled(self) -> bool:
        """Whether the objects are known, or cannot be known for now although the API server answers."""
        return self._settled.is_set()

    @property
    def problem(self) -> str:
        """Why the objects are not known, or ``""``."""
        if self.is_known:
            return ""
        return self._reflector.last_error if self._reflector else self._error

    def find(self, index: str, key: ObjectRef) -> list[Entry[V]]:
        """Return the objects that an index lists under a key."""
        return self._reflector.store.find(index, key) if self._reflector else []

    def look_again(self) -> None:
        """Look up now how the cluster serves the kind."""
        self._woken.set()

    async def settled(self) -> None:
        """Wait until ``is_settled``, or until the watch is closed."""
        await self._settled.wait()

    def close(self) -> None:
        """Release the callers of ``settled``, because ``run`` is cancelled."""
        self._settled.set()

    async def run(self) -> None:
        """Look up the kind and watch it, until cancelled."""
        while True:
            await self._watch(await self._resolve())

    async def _resolve(self) -> ApiResource:
        """Return the kind as soon as the cluster serves it."""
        outage, absence = (Retries(each, random.Random()) for each in (BACKOFF, _ABSENCE))  # noqa: S311 - jitter
        while True:
            try:
                return await self._find()
            except GovernorError as error:
                self._error = str(error)
                if error.kind is Kind.NOT_FOUND:
                    self._set_absent()
                    delay_s = absence.next_delay_s()
                else:
                    self._settle_after(error)
                    delay_s = outage.next_delay_s()
            if await self._pause(delay_s):
                absence.reset()

    async def _find(self) -> ApiResource:
        """Return the kind; NOT_FOUND if the cluster does not serve it or it cannot be watched."""
        discovery = self._client.discovery
        try:
            found = await discovery.find(*self._key)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND or not self._is_served:
                raise
            await discovery.require_ready()
            found = await discovery.find(*self._key)
        if not found.verbs >= _VERBS:
            message = f"{found.kind} of {found.api_version} cannot be watched"
            raise GovernorError(Kind.NOT_FOUND, "kind-not-watched", message)
        return found

    @property
    def _key(self) -> tuple[str, str, str]:
        return self.name.group, self.name.kind, self.name.version

    async def _watch(self, resource: ApiResource) -> None:
        """Watch the kind until the cluster serves it no more, or in another way."""
        self._settled.clear()
        self._resource, self._is_served, self._error = resource, True, ""
        reflector = self._reflector = self._reflect(resource, self._on_failure)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (reflector.run(), self._announce(reflector))]
            await self._changed(resource)
            for task in tasks:
                task.cancel()
        self._resource = self._reflector = None

    async def _announce(self, reflector: Reflector[V]) -> None:
        await reflector.synced()
        self._set_known()

    async def _changed(self, resource: ApiResource) -> None:
        """Wait until discovery shows that the kind is not served as it was.

        It is read when ``look_again`` was called, and a while later, because it follows a definition with a delay.
        """
        is_woken = False
        while True:
            is_woken = await self._pause(MISS_TTL_S if is_woken else None)
            if await self._is_changed(resource):
                return

    async def _is_changed(self, resource: ApiResource) -> bool:
        discovery = self._client.discovery
        try:
            await discovery.require_ready()
            return await discovery.find(*self._key) != resource
        except GovernorError as error:
            # With any other error this is not known; the reflector repeats its request, and reports the next failure.
            return error.kind is Kind.NOT_FOUND

    def _on_failure(self, error: GovernorError) -> None:
        self._settle_after(error)
        if error.code == NO_API or error.kind is Kind.NOT_FOUND:
            self.look_again()

    def _settle_after(self, error: GovernorError) -> None:
        is_answer = error.code == _STALE_GROUP or isinstance(error, ApiError)
        if is_answer and error.kind not in _OUTAGES:
            self._settled.set()

    def _set_absent(self) -> None:
        if self._is_served:
            _log.info("kind is not served; its objects count as absent", kind=self.name.kind, group=self.name.group)
            self._is_served = False
            self._set_known()

    def _set_known(self) -> None:
        self._settled.set()
        self._on_change()

    async def _pause(self, seconds: float | None) -> bool:
        """Wait until ``look_again`` is called, at most for this time; return whether it was called."""
        await wait_at_most(self._woken.wait(), seconds, self._clock)
        is_woken = self._woken.is_set()
        self._woken.clear()
        return is_woken
