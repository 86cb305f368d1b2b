"""What is measured of a server with its agents. All times are in seconds."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Final

import msgspec

from bench.percentiles import p99
from bench.server.agents import POLL_S
from bench.server.subject import Subject, profile
from bench.server.swarm import Swarm, name_of

_SETTLE_STEP_S: Final = 0.5
_SETTLE_STEPS: Final = 120
_IDLE_PERCENT: Final = 5.0


class Spread(msgspec.Struct, frozen=True):
    """When agents received something, from the request on."""

    p50: float
    p99: float
    last: float
    count: int

    @classmethod
    def of(cls, times: list[float], began_s: float) -> "Spread":
        """Return the spread of some times."""
        taken = [each - began_s for each in times] or [float("inf")]
        return cls(median(taken), p99(taken), max(taken), len(times))


class Shared(msgspec.Struct, frozen=True):
    """One change for all runtimes; ``acknowledged`` is None if no agent reported."""

    answered: float
    received: Spread
    cpu: float
    acknowledged: float | None = None
    rejected: int = 0
    read_p99: float | None = None


class Connected(msgspec.Struct, frozen=True):
    """All agents with open watches: seconds until then, memory above idle per agent, and CPU while nothing happens."""

    seconds: float
    kib_per_agent: float
    idle_cpu_percent: float
    beating_cpu_percent: float


class Big(msgspec.Struct, frozen=True):
    """One change with a profile for every runtime; ``other`` is the slowest answer to another change meanwhile."""

    answered: float
    received: Spread
    cpu: float
    other: float


class Polling(msgspec.Struct, frozen=True):
    """The polling of the proof of concept."""

    received: Spread
    cpu_percent: float


async def connect(subject: Subject, swarm: Swarm, idle_s: float, beat_s: float) -> Connected:
    """Open all watches and measure memory and CPU."""
    before_mib, began_s = subject.resident_mib, time.monotonic()
    opened_s = await swarm.do("watch") - began_s
    await asyncio.sleep(min(idle_s, 2.0))
    growth_kib = (subject.resident_mib - before_mib) * 1024 / subject.setup.agents
    idle = await _cpu_percent(subject, idle_s)
    await swarm.do("beat", interval_s=beat_s)
    beating = await _cpu_percent(subject, idle_s)
    await swarm.do("beat", interval_s=0)
    return Connected(opened_s, growth_kib, idle, beating)


async def settle(subject: Subject) -> None:
    """Wait until the server is idle, so that what is measured next does not contain the end of something else."""
    for _ in range(_SETTLE_STEPS):
        if await _cpu_percent(subject, _SETTLE_STEP_S) <= _IDLE_PERCENT:
            return


async def share(
    subject: Subject, swarm: Swarm, value: str, *, acknowledge: bool = False, follow: bool = False
) -> Shared:
    """Change one profile of all runtimes."""
    await swarm.do("expect", acknowledge=acknowledge)
    cpu_s = subject.cpu_s
    async with _reading(subject, enabled=follow) as reads:
        revision, began_s, answered_s = await subject.apply(profile("shared", {}, value))
        following = asyncio.create_task(_follow(subject, revision)) if follow else None
        received = Spread.of(await swarm.do("received"), began_s)
        acknowledged, rejected = None, 0
        if acknowledge:
            reported = await swarm.do("acknowledged")
            acknowledged, rejected = reported["last"] - began_s, reported["rejected"]
        if following is not None:
            await following
    spent_s = subject.cpu_s - cpu_s
    return Shared(answered_s - began_s, received, spent_s, acknowledged, rejected, p99(reads) if reads else None)


async def _follow(subject: Subject, revision: int) -> None:
    async for _ in subject.client.progress(revision):
        pass


@contextlib.asynccontextmanager
async def _reading(subject: Subject, *, enabled: bool) -> AsyncIterator[list[float]]:
    """Request one runtime ten times a second; provide the times that it took."""
    times: list[float] = []

    async def read() -> None:
        while True:
            times.append(await subject.get(f"/runtimes/{name_of(0)}"))
            await asyncio.sleep(0.1)

    reading = asyncio.create_task(read()) if enabled else None
    try:
        yield times
    finally:
        if reading is not None:
            reading.cancel()


async def one_of_all(subject: Subject, swarm: Swarm, changes: int) -> list[float]:
    """Change one runtime several times; return the seconds until its agent had each change."""
    times = []
    for number in range(changes):
        await swarm.do("expect")
        name = name_of(number % subject.setup.agents)
        _, began_s, _ = await subject.apply(profile("one", {"runtime": name}, f"value-{number}"))
        # The agent that had it before loses it in the same change.
        received = await swarm.do("received", at_least=1 if number == 0 else 2)
        times.append(received[0] - began_s)
    return times


async def history(subject: Subject, changes: int) -> tuple[float, float]:
    """Change one runtime many times; return the server's CPU time per change of the first and the last tenth."""
    tenth, spent_s = changes // 10, [subject.cpu_s]
    for number in range(changes):
        await subject.apply(profile("one", {"runtime": name_of(0)}, f"history-{number}"))
        if (number + 1) % tenth == 0:
            spent_s.append(subject.cpu_s)
    return (spent_s[1] - spent_s[0]) / tenth, (spent_s[-1] - spent_s[-2]) / tenth


async def distinct(subject: Subject, swarm: Swarm, value: str) -> Shared:
    """Change one profile of all runtimes whose bundles then differ by the runtime's name."""
    await swarm.do("expect")
    cpu_s = subject.cpu_s
    _, began_s, answered_s = await subject.apply(profile("shared", {}, f"{value}-${{runtime.id}}"))
    received = Spread.of(await swarm.do("received"), began_s)
    return Shared(answered_s - began_s, received, subject.cpu_s - cpu_s)


async def big(subject: Subject, swarm: Swarm, value: str) -> Big:
    """Apply a profile for each runtime in one change, and other changes meanwhile."""
    await swarm.do("expect")
    others: list[float] = []
    stopping = asyncio.Event()

    async def change_others() -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            _, began_s, answered_s = await subject.apply(profile("other", {"runtime": name_of(0)}, f"{value}-{number}"))
            others.append(answered_s - began_s)

    numbers = range(subject.setup.agents)
    documents = [profile(f"of-{name_of(each)}", {"runtime": name_of(each)}, value) for each in numbers]
    cpu_s = subject.cpu_s
    changing = asyncio.create_task(change_others())
    _, began_s, answered_s = await subject.apply(*documents)
    stopping.set()
    await changing
    received = Spread.of(await swarm.do("received"), began_s)
    return Big(answered_s - began_s, received, subject.cpu_s - cpu_s, max(others))


async def reconnect(subject: Subject, swarm: Swarm) -> tuple[float, float]:
    """Kill and restart the server; return the seconds until all agents are back, and the server's CPU time."""
    killed_s = await subject.restart()
    back_s = await swarm.do("reconnected")
    return back_s - killed_s, subject.cpu_s


async def lists(subject: Subject) -> dict[str, float]:
    """Return the seconds of requests that list and filter runtimes."""
    paths = {
        "list": "/runtimes",
        "list by name": f"/runtimes?name={name_of(0)}",
        "list by label": "/runtimes?selector=region%3Dregion-3",
        "list by state": "/runtimes?state=Verified",
    }
    times: dict[str, float] = {}
    for title, path in paths.items():
        with contextlib.suppress(RuntimeError):
            times[title] = median([await subject.get(path) for _ in range(5)])
    return times


async def poll(subject: Subject, swarm: Swarm, value: str, idle_s: float) -> Polling:
    """Let all agents poll as in the proof of concept, and change one profile of all."""
    await swarm.do("poll")
    cpu_percent = await _cpu_percent(subject, idle_s)
    await swarm.do("expect")
    _, began_s, _ = await subject.apply(profile("shared", {}, value))
    received = await swarm.do("received", polling=True, within_s=10 * POLL_S)
    await swarm.do("leave")
    return Polling(Spread.of(received, began_s), cpu_percent)


async def _cpu_percent(subject: Subject, seconds: float) -> float:
    cpu_s, began_s = subject.cpu_s, time.monotonic()
    await asyncio.sleep(seconds)
    return (subject.cpu_s - cpu_s) / (time.monotonic() - began_s) * 100
