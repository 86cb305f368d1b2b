"""The worker process: runs one task with one library and prints the resources used.

python -m bench.kube.worker LIBRARY < TASK > USAGE, both JSON
"""

import asyncio
import ctypes
import gc
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import uvloop

from bench.concurrency import run_bounded
from bench.kube.tasks import WARM_UP_FRACTION, Task, Usage

MODULES: Final = {
    "governor": "bench.kube.with_governor",
    "kubernetes_asyncio": "bench.kube.with_kubernetes_asyncio",
    "lightkube": "bench.kube.with_lightkube",
}


class Session(Protocol):
    """A client of one cluster."""

    async def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply a ConfigMap with force, and decode the response."""

    async def get(self, namespace: str, name: str) -> None:
        """Get a ConfigMap."""

    async def watch(self, namespace: str, is_last: Callable[[], bool]) -> None:
        """Watch the Deployments of a namespace and call ``is_last`` for each event, until it returns True."""

    async def cache(self, namespace: str) -> object:
        """Return all Deployments of a namespace, by name."""


class Library(Protocol):
    """One library in one process."""

    async def open(self, kubeconfig: Path) -> Session:
        """Return a client from a kubeconfig."""

    async def close(self) -> None:
        """Close all clients."""


class Snapshot(msgspec.Struct, frozen=True):
    """Resources that the process has used so far."""

    time_s: float
    cpu_s: float
    resident: int

    @classmethod
    def now(cls) -> "Snapshot":
        """Take a snapshot."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime, pages * resource.getpagesize())

    def usage(self, until: "Snapshot", count: int) -> Usage:
        """Return the resources used between two snapshots."""
        return Usage(count, until.time_s - self.time_s, until.cpu_s - self.cpu_s)

    def memory(self, count: int) -> Usage:
        """Return the resources used since, including memory after garbage collection."""
        gc.collect()
        now = Snapshot.now()
        return msgspec.structs.replace(
            self.usage(now, count),
            resident_bytes=now.resident - self.resident,
            trimmed_bytes=trimmed().resident - self.resident,
        )


class TimeLimit:
    """Ends a measurement after a number of seconds, counted from ``start``; 0 means never."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s or math.inf
        self._end_s = math.inf

    def start(self) -> None:
        """Start counting."""
        self._end_s = time.perf_counter() + self._limit_s

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return time.perf_counter() >= self._end_s

    def numbers(self, first: int, end: int) -> Iterator[int]:
        """Yield the numbers from ``first`` to before ``end`` until the time has passed, at least one."""
        self.start()
        for number in range(first, end):
            yield number
            if self.is_over:
                return


class EventCounter:
    """Counts events up to the last one, and takes snapshots after the warm-up and at the end."""

    def __init__(self, count: int, limit_s: float = 0.0) -> None:
        self._warm_up = max(1, count // WARM_UP_FRACTION)
        self._last = self._warm_up + count
        self._limit = TimeLimit(limit_s)
        self._seen = 0
        self._started = Snapshot.now()
        self._usage: Usage | None = None

    def __call__(self) -> bool:
        """Count one event; return whether it was the last."""
        self._seen += 1
        if self._seen == self._warm_up:
            self._limit.start()
            self._started = Snapshot.now()
        elif self._usage is None and (self._seen == self._last or self._limit.is_over):
            self._usage = self._started.usage(Snapshot.now(), self._seen - self._warm_up)
        return self._usage is not None

    @property
    def usage(self) -> Usage:
        """The resources used by the events after the warm-up."""
        if self._usage is None:
            raise LookupError("the last event has not been counted")
        return self._usage


async def measure_requests(session: Session, task: Task) -> Usage:
    """Measure applies or gets."""
    run, done = time.time_ns(), 0

    async def apply(number: int) -> None:
        await session.apply(changed(task, number, f"{run} {number}"))

    async def get(number: int) -> None:
        await session.get(task.namespace, name_of(task, number))

    async def call(number: int) -> None:
        nonlocal done
        await (apply if task.operation == "apply" else get)(number)
        done += 1

    limit, warm_up = TimeLimit(task.limit_s), task.warm_up
    await run_bounded(call, limit.numbers(0, warm_up), task.concurrency)
    started, done = Snapshot.now(), 0
    await run_bounded(call, limit.numbers(warm_up, warm_up + task.count), task.concurrency)
    return started.usage(Snapshot.now(), done)


def name_of(task: Task, number: int) -> str:
    """Return the ConfigMap of the given operation."""
    return task.names[number % len(task.names)]


def changed(task: Task, number: int, text: str) -> dict[str, Any]:
    """Return the manifest of the given operation with another text."""
    manifest = task.manifest
    metadata = {**manifest["metadata"], "name": name_of(task, number)}
    return {**manifest, "metadata": metadata, "data": {**manifest["data"], "text": text}}


async def measure_watch(session: Session, task: Task) -> Usage:
    """Measure watch events."""
    counter = EventCounter(task.count, task.limit_s)
    await session.watch(task.namespace, counter)
    return counter.usage


async def measure_cache(session: Session, task: Task) -> Usage:
    """Measure objects in memory."""
    await session.cache(task.warm_up_namespace)
    before = trimmed()
    cached = await session.cache(task.namespace)
    usage = before.memory(task.count)
    del cached
    return usage


async def measure_idle_clients(library: Library, first: Session, task: Task) -> Usage:
    """Measure clients that sent one request and whose connection the server has closed."""
    await first.get(task.namespace, name_of(task, 0))
    others = task.kubeconfigs[1:]
    before, sockets = trimmed(), open_sockets()
    sessions: list[Session] = []

    async def use(number: int) -> None:
        session = await library.open(Path(others[number]))
        sessions.append(session)
        await session.get(task.namespace, name_of(task, number))

    await run_bounded(use, range(len(others)), task.concurrency)
    await asyncio.sleep(task.settle_s)
    return msgspec.structs.replace(before.memory(len(sessions)), open_sockets=max(0, open_sockets() - sockets))


def trimmed() -> Snapshot:
    """Take a snapshot after garbage collection and after the allocator has returned free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return Snapshot.now()


def open_sockets() -> int:
    """Return the number of open sockets of this process."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


async def run(library: Library, task: Task) -> Usage:
    """Run the task with a client of the first kubeconfig."""
    session = await library.open(Path(task.kubeconfigs[0]))
    try:
        if task.operation == "connect":
            return await measure_idle_clients(library, session, task)
        operations = {
            "apply": measure_requests,
            "get": measure_requests,
            "watch": measure_watch,
            "cache": measure_cache,
        }
        return await operations[task.operation](session, task)
    finally:
        await library.close()


def main() -> None:
    """Read the task, run it, and print its usage."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    library: Library = import_module(MODULES[sys.argv[1]]).Library()
    usage = uvloop.run(run(library, task))
    sys.stdout.buffer.write(msgspec.json.encode(usage))


if __name__ == "__main__":
    main()
