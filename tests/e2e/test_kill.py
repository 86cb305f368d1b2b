"""``kill -9`` of the server, an agent or a sidecar in the steps of the scenario.

One run of the whole scenario per victim. In a step the victim is killed once the step has had an effect, and is
restarted as by its supervisor (for the sidecar, the agent). No acknowledged change may be lost, every step must
converge, and no file may leak a secret. The step itself may fail, because its requests may be interrupted.
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
from demo.scenario import RUNTIMES, Scenario, Step
from demo.steps import NotObservedError
from demo.world import Runtime, World
from governor.domain.changes import Revision
from governor.errors import GovernorError
from governor.process.child.child import start_time
from testbed.waiting import until
from tests.e2e.leftovers import processes_below, temporary_files
from tests.e2e.secret_scan import Secrets
from toolchain.errors import TestbedError

STEPS = (*GOOD_PATH, *BROKEN_PATH)
VICTIMS = ("server", "agent", "sidecar")
NOT_STARTED = {
    "start-stores": set(VICTIMS),
    "start-server": {"agent", "sidecar"},
    "configure": {"agent", "sidecar"},
}
CASES = [(step.name, victim) for step in STEPS for victim in VICTIMS if victim not in NOT_STARTED.get(step.name, ())]
LIKE_STORE_ORDERS = {
    "show-orders": set(VICTIMS),
    "show-proof": set(VICTIMS),
    "bad-documents": {"agent", "sidecar"},
}
"""Victims that only serve the applications in a step, or do nothing, as in ``store-orders``."""
DISTINCT = [(step, victim) for step, victim in CASES if victim not in LIKE_STORE_ORDERS.get(step, ())]

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
"""The orders that the two applications return once a step has converged."""

DECISIONS = {
    "start-runtimes": "Verified",
    "repoint": "Verified",
    "broken-change": "Failed",
    "without-preflight": "Failed",
    "restart": "Verified",
}
"""The state of runtime 2 after a step that changes it."""

CHANGING = {"start-server", "configure", *DECISIONS}


def test_every_step_has_a_case_for_each_victim() -> None:
    assert set(FINAL) == {step.name for step in STEPS}
    assert len(CASES) == 29
    assert len(DISTINCT) == 21


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.timeout(900)
async def test_the_scenario_survives_kill_9(
    tmp_path: Path, redis_binary: Path, daprd_binary: Path, server_logs: list[Path], victim: str
) -> None:
    world = World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary})
    await _survive(world, server_logs, [case for case in DISTINCT if case[1] == victim])


@pytest.mark.soak
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.timeout(900)  # the restart backoff of a repeatedly killed sidecar grows
async def test_the_scenario_survives_kill_9_in_every_step(
    tmp_path: Path, redis_binary: Path, daprd_binary: Path, server_logs: list[Path], victim: str
) -> None:
    world = World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary})
    await _survive(world, server_logs, [case for case in CASES if case[1] == victim])


async def _survive(world: World, server_logs: list[Path], cases: list[tuple[str, str]]) -> None:
    """Run the scenario with the kills of these cases, and check what it keeps and leaves behind."""
    survived = []
    victims = dict(cases)
    async with world:
        scenario = Scenario(world)
        for step in STEPS:
            if step.name not in victims:
                if step.name in NOT_STARTED:
                    await step.run(scenario)
                continue  # others only read
            acknowledged = await _revisions(world)
            await _step_with_kill(scenario, step, victims[step.name])
            await _converge(scenario, step)
            server_logs[:] = world.directory.rglob("*.log")
            assert acknowledged <= await _revisions(world), step.name
            survived.append((step.name, victims[step.name]))
    assert temporary_files(world.directory) == []
    assert survived == cases
    assert processes_below(world.directory) == []
    assert Secrets.of(world.directory).leaks(world.directory) == set()


async def _step_with_kill(scenario: Scenario, step: Step, victim: str) -> None:
    """Run a step, kill the victim once the step has had an effect, restart it, and let the step finish."""
    world, before = scenario.world, _effects(scenario.world)
    running = asyncio.create_task(step.run(scenario))

    async def observed() -> bool:
        return running.done() or (_is_started(world, step) and _effects(world) != before)

    with suppress(TimeoutError):
        # Steps that only read have no effect; kill the victim during their requests.
        await until(observed, within_s=120 if step.name in CHANGING else 0.5)
    await _kill(world, victim)
    with suppress(NotObservedError, GovernorError, TestbedError, OSError, TimeoutError):
        await running


def _effects(world: World) -> list[object]:
    """Return the observable effects of a step: runtimes, database, and the files and processes of runtime 2."""
    state = world.directory / "runtime-2" / "state"
    files = sorted(each.st_mtime_ns for each in _stats(state / "resources", "*.yaml"))
    database = [each.st_size for each in _stats(world.server.data_dir, "governor.db*")]
    return [len(world.runtimes), database if not files else [], files, len(processes_below(state))]


def _stats(directory: Path, pattern: str) -> list[os.stat_result]:
    """Return the stat results of files, skipping those that vanish meanwhile."""
    found = []
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):
            found.append(path.stat())
    return found


def _is_started(world: World, step: Step) -> bool:
    """Return whether a step that starts the victim has done so."""
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
    """Return the acknowledged revisions."""
    return set(await world.api.revisions(limit=500)) if hasattr(world, "api") else set()


async def _converge(scenario: Scenario, step: Step) -> None:
    """Wait until applications and runtimes are as the step must leave them, whatever the kill interrupted."""
    world = scenario.world
    if step.name == "configure" and not await world.api.revisions():
        await step.run(scenario)
    scenario.revision = max(scenario.revision, len(await world.api.revisions(limit=500)))
    if step.name == "store-orders":
        await _store(world)
    if step.name in DECISIONS:
        await until(_decided(scenario, DECISIONS[step.name]), within_s=120)
        scenario.sidecars.setdefault("runtime-2", await until(lambda: _pid(world)))
    for runtime, order in zip(world.runtimes, FINAL[step.name], strict=bool(FINAL[step.name])):
        await until(_answers(world, runtime.name, order), within_s=60)


async def _store(world: World) -> None:
    for runtime, order in zip(world.runtimes, ("foo", "bar"), strict=True):
        await until(partial(_stored, world, runtime, order), within_s=60)


async def _stored(world: World, runtime: Runtime, order: str) -> bool:
    return await world.new_order(runtime, "", order) == order


def _answers(world: World, name: str, order: str) -> Callable[[], Awaitable[bool]]:
    runtime = next(each for each in world.runtimes if each.name == name)

    async def check() -> bool:
        try:
            return await world.order(runtime, "") == order
        except (OSError, TimeoutError):
            return False

    return check


def _decided(scenario: Scenario, state: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        try:
            view = await scenario.world.api.runtime("runtime-2")
        except GovernorError:
            return False
        return view.summary.state.split(",")[0] == state

    return check


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_at_random_moments(tmp_path: Path, redis_binary: Path, daprd_binary: Path) -> None:
    seed = int(os.environ.get("GOVERNOR_SEED", secrets.randbits(32)))
    print(f"GOVERNOR_SEED={seed}")  # noqa: T201 - printed on failure, to repeat the run
    rng = random.Random(seed)
    async with World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary}) as world:
        scenario = Scenario(world)
        for step in GOOD_PATH:
            await step.run(scenario)
        orders = ("foo", "bar")
        for number in range(1, 201):
            acknowledged = await _revisions(world)
            await world.point("runtime-2", world.stores[number % 2], f"change {number}")
            await asyncio.sleep(rng.uniform(0, 0.5))
            await _kill(world, rng.choice(VICTIMS))
            await until(_decided(scenario, "Verified"), within_s=300)
            await until(_answers(world, "runtime-2", orders[number % 2]), within_s=60)
            assert acknowledged <= await _revisions(world), number
    assert temporary_files(tmp_path) == []
    assert processes_below(tmp_path) == []
