"""What tests of the reflector have in common: a view of ConfigMaps, objects for it, and a record of its events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import msgspec

from governor.errors import GovernorError
from governor.kube.client import Client, Limits
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import Added, Changed, Event, Reflector, Removed, View
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.process.flowcontrol.limiter import Rate
from testbed.waiting import until

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
NAMESPACES = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
MANAGER = "tests"
SOON = Backoff(initial_s=0.05, max_s=0.5)
BARE = Limits(
    rate=Rate(per_s=1e6, burst=10_000),
    breaker=BreakerPolicy(failures=1_000_000, backoff=SOON),
    attempts=1,
)
"""A client that neither waits nor repeats: whoever uses it copes alone."""
PATIENCE_S = 120.0


class Data(msgspec.Struct, frozen=True, gc=False):
    size: Annotated[str, msgspec.Meta(pattern="^[0-9]*$")] = ""
    owner: str = ""


class Box(View, frozen=True):
    data: Data = Data()


def box(
    namespace: str, name: str, size: object = 0, *, owner: str = "", labels: dict[str, str] | None = None
) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    data = {"size": str(size), "owner": owner, "unread": "x" * 100}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def ref(namespace: str, name: str) -> ObjectRef:
    return ObjectRef("", "ConfigMap", namespace, name)


class Record:
    """The events of one reflector, each checked against those before it."""

    def __init__(self) -> None:
        self.events: list[Event[Box]] = []
        self.told: dict[ObjectRef, Box] = {}

    def __call__(self, event: Event[Box]) -> None:
        self.events.append(event)
        match event:
            case Added(ref, new):
                assert ref not in self.told, f"{ref} was added twice"
                self.told[ref] = new
            case Changed(ref, old, new):
                assert self.told[ref] == old != new, f"{ref} changed from something else"
                self.told[ref] = new
            case Removed(ref, old):
                assert self.told.pop(ref) == old, f"{ref} was removed as something else"

    @property
    def story(self) -> list[tuple[str, str, str]]:
        """What happened, to which name, and its size afterwards."""
        return [
            (type(event).__name__, event.ref.name, (event.old if isinstance(event, Removed) else event.new).data.size)
            for event in self.events
        ]


class Follower:
    """A reflector of ConfigMaps with its record."""

    def __init__(self, client: Client, namespace: str, clock: Clock | None = None, **options: Any) -> None:
        self.record = Record()
        self.reflector: Reflector[Box] = Reflector(
            client,
            CONFIG_MAPS,
            Box,
            clock=clock or SystemClock(),
            on_event=self.record,
            namespace=namespace,
            backoff=SOON,
            **options,
        )

    @property
    def sizes(self) -> dict[str, str]:
        """What is held, by name."""
        return {ref.name: view.data.size for ref, view in self.reflector.store.items()}

    async def has(self, name: str) -> None:
        """Wait until an object of that name is held."""
        await until_true(lambda: name in self.sizes)

    async def holds(self, sizes: dict[str, str]) -> None:
        """Wait until exactly this is held, and see that the events told the same."""
        await until_true(lambda: self.sizes == sizes)
        assert self.record.told == dict(self.reflector.store)
        assert self.reflector.delivered == len(self.record.events)


@asynccontextmanager
async def following(
    client: Client, namespace: str, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Follower]:
    """A reflector that is synced, until the end of the block; ending it must take no more than a cancellation."""
    follower = Follower(client, namespace, clock, **options)
    async with running(follower.reflector.run()):
        async with asyncio.timeout(PATIENCE_S):
            await follower.reflector.synced()
        yield follower


@asynccontextmanager
async def running(component: Awaitable[None]) -> AsyncIterator[None]:
    """A component beside the block; it may end only by being cancelled."""
    task = asyncio.ensure_future(component)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def until_true(look: Callable[[], bool]) -> None:
    """Wait for something that needs no awaiting itself."""

    async def looked() -> bool:
        return look()

    await until(looked, within_s=PATIENCE_S)


async def eventually(act: Callable[[], Awaitable[object]]) -> None:
    """Repeat until the server takes it."""

    async def tried() -> bool:
        with suppress(GovernorError):
            await act()
            return True
        return False

    await until(tried, within_s=PATIENCE_S)


async def each(things: Iterable[Awaitable[Any]], at_once: int = 32) -> None:
    """Await all, a bounded number at a time."""
    rest = iter(things)

    async def work() -> None:
        for thing in rest:
            await thing

    await asyncio.gather(*(work() for _ in range(at_once)))
