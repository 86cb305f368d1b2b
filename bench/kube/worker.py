"""The fresh process: runs one task with one library and prints what that took.

python -m bench.kube.worker LIBRARY < TASK > USAGE, both JSON
"""

import asyncio
import ctypes
import gc
import resource
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.kube.library import Library, Session
from bench.kube.sample import APPLIED, config_map, config_map_name
from bench.kube.tasks import Task, Usage
from bench.turns import in_turn

MODULES: Final = {
    "governor": "bench.kube.ours",
    "kubernetes_asyncio": "bench.kube.with_kubernetes_asyncio",
    "lightkube": "bench.kube.with_lightkube",
}
WARM_UP_SHARE: Final = 10
"""One act in so many is done before the clock starts: connections, code and caches are warm then."""
SETTLE_S: Final = 20.0
"""How long clients are left alone after their use: aiohttp forgets closed connections every 15 s."""


class Mark(msgspec.Struct, frozen=True):
    """What the process has used so far."""

    clock_s: float
    cpu_s: float
    resident: int

    @classmethod
    def now(cls) -> "Mark":
        """Read the clocks."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(time.perf_counter(), used.ru_utime + used.ru_stime, pages * resource.getpagesize())

    def usage(self, until: "Mark", count: int) -> Usage:
        """What was used since."""
        return Usage(count, until.clock_s - self.clock_s, until.cpu_s - self.cpu_s)

    def memory(self, count: int) -> Usage:
        """What was used since, and what memory is still taken when all garbage is gone."""
        gc.collect()
        now = Mark.now()
        return msgspec.structs.replace(
            self.usage(now, count),
            resident_bytes=now.resident - self.resident,
            held_bytes=trimmed().resident - self.resident,
        )


class Enough:
    """Counts events: the first ones warm up, then come those that count."""

    def __init__(self, count: int) -> None:
        self._warm_up = max(1, count // WARM_UP_SHARE)
        self._last = self._warm_up + count
        self._seen = 0
        self.begun = self.ended = Mark.now()

    def __call__(self) -> bool:
        """Count one; whether it was the last."""
        self._seen += 1
        if self._seen == self._warm_up:
            self.begun = Mark.now()
        elif self._seen == self._last:
            self.ended = Mark.now()
        return self._seen >= self._last


async def request(session: Session, task: Task) -> Usage:
    """Applies or gets."""
    run = time.time_ns()

    async def apply(number: int) -> None:
        await session.apply(config_map(task.namespace, number, f"{run} {number}"))

    async def get(number: int) -> None:
        await session.get(task.namespace, config_map_name(number))

    act = apply if task.act == "apply" else get
    warm_up = max(task.at_once, task.count // WARM_UP_SHARE)
    await in_turn(act, range(warm_up), task.at_once)
    begun = Mark.now()
    await in_turn(act, range(warm_up, warm_up + task.count), task.at_once)
    return begun.usage(Mark.now(), task.count)


async def watch(session: Session, task: Task) -> Usage:
    """Events."""
    enough = Enough(task.count)
    await session.watch(task.namespace, enough)
    return enough.begun.usage(enough.ended, task.count)


async def hold(session: Session, task: Task) -> Usage:
    """Objects in memory."""
    await session.get(APPLIED, config_map_name(0))
    begun = trimmed()
    held = await session.hold(task.namespace)
    usage = begun.memory(task.count)
    del held
    return usage


async def connect(library: Library, first: Session, task: Task) -> Usage:
    """Clients that were used once and left alone, their connections closed by the server."""
    await first.get(task.namespace, config_map_name(0))
    others = task.kubeconfigs[1:]
    begun, sockets = trimmed(), open_sockets()
    sessions: list[Session] = []

    async def use(number: int) -> None:
        session = await library.open(Path(others[number]))
        sessions.append(session)
        await session.get(task.namespace, config_map_name(number))

    await in_turn(use, range(len(others)), task.at_once)
    await asyncio.sleep(SETTLE_S)
    return msgspec.structs.replace(begun.memory(len(sessions)), open_sockets=max(0, open_sockets() - sockets))


def trimmed() -> Mark:
    """What is used when all garbage is gone and the allocator has returned what it holds for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return Mark.now()


def open_sockets() -> int:
    """How many sockets this process has."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


async def run(library: Library, task: Task) -> Usage:
    """Do the task with a client of the first kubeconfig."""
    session = await library.open(Path(task.kubeconfigs[0]))
    try:
        if task.act == "connect":
            return await connect(library, session, task)
        acts = {"apply": request, "get": request, "watch": watch, "hold": hold}
        return await acts[task.act](session, task)
    finally:
        await library.close()


def main() -> None:
    """Read the task, do it, print what it took."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    library: Library = import_module(MODULES[sys.argv[1]]).Library()
    usage = uvloop.run(run(library, task))
    sys.stdout.buffer.write(msgspec.json.encode(usage))


if __name__ == "__main__":
    main()
