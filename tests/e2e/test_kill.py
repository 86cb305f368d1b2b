"""``kill -9`` of the server, an agent or a sidecar in every step of the scenario.

One run of the whole scenario per victim; in each step the victim is killed when something of that step was observed,
and started again as its supervisor would (the sidecar's supervisor is the agent). No step may lose what was
acknowledged, and each must converge. What a step itself was doing may fail: its requests had nobody to answer them.
"""

import asyncio
import os
import random
import secrets
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from demo.broken_path import BROKEN_PATH
from demo.good_path import GOOD_PATH
from demo.scenario import RUNTIMES, NotObservedError, Step, Story
from demo.world import Runtime, World
from governor.domain.changes import Revision
from governor.errors import GovernorError
from governor.process.child.child import start_time
from testbed.waiting import until
from tests.e2e.leftovers import processes_below, temporary_files
from toolchain.errors import TestbedError

STEPS = (*GOOD_PATH, *BROKEN_PATH)
VICTIMS = ("server", "agent", "sidecar")
NOT_THERE_YET = {
    "start-stores": set(VICTIMS),
    "start-server": {"agent", "sidecar"},
    "configure": {"agent", "sidecar"},
}
CASES = [(step.name, victim) for step in STEPS for victim in VICTIMS if victim not in NOT_THERE_YET.get(step.name, ())]

FINAL = {
    "start-stores": (),
    "start-server": (),
    "configure": (),
    "start-runtimes": (),
    "store-orders": ("foo", "bar"),
    "show-orders": ("foo", "bar"),
    "repoint": ("foo", "foo"),
    "show-proof": ("foo", "foo"),
    "broken-change": ("foo", "foo"),
    "without-preflight": ("foo", "foo"),
    "restart": ("foo", "bar"),
    "bad-documents": ("foo", "bar"),
}
"""What the two applications answer once a step has converged."""

DECISIONS = {
    "start-runtimes": "Verified",
    "repoint": "Verified",
    "broken-change": "Failed",
    "without-preflight": "Failed",
    "restart": "Verified",
}
"""Where runtime 2 ends after a step that changes something there."""

CHANGING = {"start-server", "configure", *DECISIONS}


def test_every_step_has_a_case_for_each_victim() -> None:
    assert set(FINAL) == {step.name for step in STEPS}
    assert len(CASES) == 29


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.timeout(900)  # a sidecar that is killed again and again is started again later each time
async def test_the_scenario_survives_kill_9_in_every_step(
    tmp_path: Path, redis_binary: Path, daprd_binary: Path, server_logs: list[Path], victim: str
) -> None:
    survived = []
    async with World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary}) as world:
        story = Story(world)
        for step in STEPS:
            if (step.name, victim) not in CASES:
                await step.run(story)
                continue
            acknowledged = await _revisions(world)
            await _step_with_kill(story, step, victim)
            await _converge(story, step)
            server_logs[:] = tmp_path.rglob("*.log")
            assert acknowledged <= await _revisions(world), step.name
            survived.append((step.name, victim))
    assert temporary_files(tmp_path) == []
    assert survived == [case for case in CASES if case[1] == victim]
    assert processes_below(tmp_path) == []


async def _step_with_kill(story: Story, step: Step, victim: str) -> None:
    """Run a step, kill the victim once the step has shown something, start it again, and let the step end."""
    world, before = story.world, _marks(story.world)
    running = asyncio.create_task(step.run(story))

    async def observed() -> bool:
        return running.done() or (_is_there(world, step) and _marks(world) != before)

    with suppress(TimeoutError):
        # Some steps only read; after a moment the victim is killed among their requests.
        await until(observed, within_s=120 if step.name in CHANGING else 0.5)
    await _kill(world, victim)
    with suppress(NotObservedError, GovernorError, TestbedError, OSError, TimeoutError):
        await running


def _marks(world: World) -> list[object]:
    """What can be observed of a step on its way: runtimes, database, and the files and processes of runtime 2."""
    state = world.directory / "runtime-2" / "state"
    files = sorted(each.st_mtime_ns for each in _stats(state / "resources", "*.yaml"))
    database = [each.st_size for each in _stats(world.server.data_dir, "governor.db*")]
    return [len(world.runtimes), database if not files else [], files, len(processes_below(state))]


def _stats(directory: Path, pattern: str) -> list[os.stat_result]:
    """What is known of files, any of which may vanish while one looks."""
    found = []
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):
            found.append(path.stat())
    return found


def _is_there(world: World, step: Step) -> bool:
    """Whether a step that starts the victim has done so."""
    match step.name:
        case "start-server":
            return hasattr(world, "api")
        case "start-runtimes":
            return len(world.runtimes) == len(RUNTIMES)
        case _:
            return True


async def _kill(world: World, victim: str) -> None:
    match victim:
        case "server":
            await world.server.kill()
            await world.server.start()
        case "agent":
            await world.runtimes[1].agent.kill()
            await world.runtimes[1].agent.start()
        case _:
            await _kill_sidecar(world)


async def _kill_sidecar(world: World) -> None:
    pid = await until(lambda: _pid(world))
    started = start_time(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: _gone(pid, started))


async def _pid(world: World) -> int:
    try:
        return world.runtimes[1].sidecar_pid()
    except TestbedError:
        return 0


async def _gone(pid: int, started: str) -> bool:
    return start_time(pid) != started


async def _revisions(world: World) -> set[Revision]:
    """What was acknowledged so far."""
    return set(await world.api.revisions(limit=500)) if hasattr(world, "api") else set()


async def _converge(story: Story, step: Step) -> None:
    """Both applications answer as they must, the runtimes are where they must be, whatever the kill cut off."""
    world = story.world
    if step.name == "configure" and not await world.api.revisions():
        await step.run(story)
    story.revision = max(story.revision, len(await world.api.revisions(limit=500)))
    if step.name == "store-orders":
        await _store(world)
    if step.name in DECISIONS:
        await until(_decided(story, DECISIONS[step.name]), within_s=120)
        story.sidecars.setdefault("runtime-2", await until(lambda: _pid(world)))
    for runtime, order in zip(world.runtimes, FINAL[step.name], strict=bool(FINAL[step.name])):
        await until(_answers(world, runtime.name, order), within_s=60)


async def _store(world: World) -> None:
    for runtime, order in zip(world.runtimes, ("foo", "bar"), strict=True):
        await until(partial(_stored, world, runtime, order), within_s=60)


async def _stored(world: World, runtime: Runtime, order: str) -> bool:
    return await world.new_order(runtime, "", order) == order


def _answers(world: World, name: str, order: str) -> Callable[[], Awaitable[bool]]:
    runtime = next(each for each in world.runtimes if each.name == name)

    async def look() -> bool:
        try:
            return await world.order(runtime, "") == order
        except (OSError, TimeoutError):
            return False

    return look


def _decided(story: Story, state: str) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        try:
            view = await story.world.api.runtime("runtime-2")
        except GovernorError:
            return False
        return view.summary.state.split(",")[0] == state

    return look


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_at_random_moments(tmp_path: Path, redis_binary: Path, daprd_binary: Path) -> None:
    seed = int(os.environ.get("GOVERNOR_SEED", secrets.randbits(32)))
    print(f"GOVERNOR_SEED={seed}")  # noqa: T201 - shown when it fails, to run it again
    chance = random.Random(seed)
    async with World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary}) as world:
        story = Story(world)
        for step in GOOD_PATH:
            await step.run(story)
        orders = ("foo", "bar")
        for number in range(1, 201):
            acknowledged = await _revisions(world)
            await world.point("runtime-2", world.stores[number % 2], f"change {number}")
            await asyncio.sleep(chance.uniform(0, 0.5))
            await _kill(world, chance.choice(VICTIMS))
            await until(_decided(story, "Verified"), within_s=300)
            await until(_answers(world, "runtime-2", orders[number % 2]), within_s=60)
            assert acknowledged <= await _revisions(world), number
    assert temporary_files(tmp_path) == []
    assert processes_below(tmp_path) == []
