"""Shared by tests of the reflector: views of ConfigMaps and Events, objects for them, a recorder of their events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import msgspec

from governor.errors import GovernorError
from governor.kube.client import Client, Limits
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import Added, Changed, Entry, Event, Reflector, Removed, Unreadable, View
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate
from testbed.waiting import until

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
EVENTS = ApiResource("", "v1", "Event", "events", namespaced=True)
"""The API server has no watch cache for Events, so their history ends where etcd was compacted."""
NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
MANAGER = "tests"
FAST = Backoff(initial_s=0.05, max_s=0.5)
UNLIMITED = Limits(
    rate=Rate(per_s=1e6, burst=10_000),
    breaker=BreakerPolicy(failures=1_000_000, backoff=FAST),
    attempts=1,
)
"""Limits without rate limit, retries or circuit breaker."""
WITHIN_S = 120.0
UNREADABLE = "unreadable"
"""The size of an object that does not fit the view."""


class Data(msgspec.Struct, frozen=True, gc=False):
    size: Annotated[str, msgspec.Meta(pattern="^[0-9]*$")] = ""
    owner: str = ""


class Box(View, frozen=True):
    data: Data = Data()


class EventData(Data, frozen=True, gc=False):
    size: Annotated[str, msgspec.Meta(pattern="^[0-9]*$")] = msgspec.field(name="fieldPath", default="")


class EventBox(Box, frozen=True):
    """A box in the form of an Event."""

    data: EventData = msgspec.field(name="involvedObject", default=EventData())


def event_box(namespace: str, name: str, size: object = 0) -> Object:
    data = {"namespace": namespace, "fieldPath": str(size)}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": data,
    }


def box(
    namespace: str, name: str, size: object = 0, *, owner: str = "", labels: dict[str, str] | None = None
) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    data = {"size": str(size), "owner": owner, "unread": "x" * 100}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def ref(namespace: str, name: str) -> ObjectRef:
    return ObjectRef("", "ConfigMap", namespace, name)


class Recorder:
    """Records the events of one reflector and checks each against the previous ones."""

    def __init__(self) -> None:
        self.events: list[Event[Box]] = []
        self.seen: dict[ObjectRef, Entry[Box]] = {}

    def __call__(self, event: Event[Box]) -> None:
        self.events.append(event)
        match event:
            case Added(ref, new):
                assert ref not in self.seen, f"{ref} was added twice"
                self.seen[ref] = new
            case Changed(ref, old, new):
                assert self.seen[ref] == old != new, f"{ref} changed from another state"
                self.seen[ref] = new
            case Removed(ref, old):
                assert self.seen.pop(ref) == old, f"{ref} was removed in another state"

    @property
    def summary(self) -> list[tuple[str, str, str]]:
        """Event type, object name and size of each event."""
        return [
            (type(event).__name__, event.ref.name, size_of(event.old if isinstance(event, Removed) else event.new))
            for event in self.events
        ]


def size_of(entry: Entry[Box]) -> str:
    return UNREADABLE if isinstance(entry, Unreadable) else entry.data.size


class Watcher:
    """A reflector of boxes with the recorder of its events."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        clock: Clock | None = None,
        *,
        resource: ApiResource = CONFIG_MAPS,
        **options: Any,
    ) -> None:
        self.recorder = Recorder()
        self.reflector: Reflector[Box] = Reflector(
            client,
            resource,
            EventBox if resource is EVENTS else Box,
            clock=clock or SystemClock(),
            on_event=self.recorder,
            namespace=namespace,
            backoff=FAST,
            **options,
        )

    @property
    def sizes(self) -> dict[str, str]:
        """Cached sizes by name."""
        return {ref.name: size_of(entry) for ref, entry in self.reflector.store.items()}

    async def has(self, name: str) -> None:
        """Wait until an object of that name is cached."""
        await until_true(lambda: name in self.sizes)

    async def converges(self, sizes: dict[str, str]) -> None:
        """Wait until exactly these are cached, and check that the events agree."""
        await until_true(lambda: self.sizes == sizes)
        assert self.recorder.seen == dict(self.reflector.store)
        assert self.reflector.delivered == len(self.recorder.events)


@asynccontextmanager
async def watching(
    client: Client, namespace: str, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Watcher]:
    """Run a synced reflector for the duration of the block."""
    watcher = Watcher(client, namespace, clock, **options)
    async with running(watcher.reflector.run()):
        async with asyncio.timeout(WITHIN_S):
            await watcher.reflector.synced()
        yield watcher


@asynccontextmanager
async def running(component: Awaitable[None]) -> AsyncIterator[None]:
    """Run a component for the duration of the block; it must end only by cancellation."""
    task = asyncio.ensure_future(component)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def until_true(condition: Callable[[], bool]) -> None:
    """Wait for a synchronous condition."""

    async def checked() -> bool:
        return condition()

    await until(checked, within_s=WITHIN_S)


async def eventually(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it succeeds."""

    async def succeeded() -> bool:
        with suppress(GovernorError):
            await call()
            return True
        return False

    await until(succeeded, within_s=WITHIN_S)


async def gather_bounded(calls: Iterable[Awaitable[Any]], concurrency: int = 32) -> None:
    """Await all calls, a bounded number at a time."""
    remaining = iter(calls)

    async def work() -> None:
        for call in remaining:
            await call

    await asyncio.gather(*(work() for _ in range(concurrency)))
