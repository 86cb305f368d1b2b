"""Exits of processes: which of them fail a change that is verified by the next process."""

from typing import cast

import pytest
from msgspec.structs import replace

from governor.agent.platforms.local.plan import SidecarAction, SidecarPlan
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.platforms.local.sidecars.verifier import SidecarVerifier
from governor.agent.redaction import Redactor
from governor.agent.verification.verdicts import Instance, Reading, SidecarExit
from governor.domain.documents import ApplyPolicy
from governor.domain.reports import State
from tests.unit.agent.platforms.local.test_kept_sidecar import EXPECTED, NOW, REF, RUNNING, EagerClock, Stub

FRESH = replace(RUNNING, instance=Instance("2", "process 200"), started_after_write=True)
EXIT = SidecarExit("1", "out of memory", started_after_write=True)
DEAD = Reading(NOW, last_exit=EXIT)


class Replayed(Stub):
    """A sidecar that is read as these readings say, the last one from then on."""

    def __init__(self, *readings: Reading) -> None:
        super().__init__(readings[-1])
        self._readings = list(readings)

    async def read(self) -> Reading:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


async def verify(action: SidecarAction, before: Reading, *readings: Reading) -> tuple[State, str]:
    verifier = SidecarVerifier(cast("Sidecar", Replayed(*readings)), ApplyPolicy(), lambda: False, EagerClock())
    found = (await verifier.verify(SidecarPlan("app", action, (EXPECTED,), before), Redactor()))[REF]
    return found.state, found.evidence[-1].text


async def test_an_exit_before_the_process_that_is_awaited_is_no_failure() -> None:
    before = replace(FRESH, last_exit=EXIT)
    state, text = await verify(SidecarAction.AWAIT, before, before)
    assert (state, "process 200 started after the write" in text) == (State.VERIFIED, True)


async def test_an_exit_is_a_failure_until_the_next_process_runs() -> None:
    earlier = replace(DEAD, last_exit=replace(EXIT, started_after_write=False))
    assert await verify(SidecarAction.AWAIT, earlier, earlier) == (State.FAILED, "out of memory")
    assert (await verify(SidecarAction.AWAIT, earlier, replace(FRESH, last_exit=EXIT)))[0] is State.VERIFIED


@pytest.mark.parametrize("now", [DEAD, replace(FRESH, last_exit=EXIT)], ids=["not restarted", "restarted"])
async def test_an_exit_of_a_process_started_after_the_write_fails_the_change(now: Reading) -> None:
    assert await verify(SidecarAction.START, Reading(NOW), now) == (State.FAILED, "out of memory")


async def test_after_an_exit_with_another_cause_the_next_process_may_prove_the_change() -> None:
    killed = replace(EXIT, external_cause=True)
    now = [replace(each, last_exit=killed) for each in (DEAD, DEAD, FRESH)]
    assert (await verify(SidecarAction.START, Reading(NOW), *now))[0] is State.VERIFIED


class Restartable(Replayed, Sidecar):
    """A sidecar that the agent may restart."""

    restarts = 0

    async def restart_unchanged(self) -> None:
        self.restarts += 1


async def test_a_process_that_was_being_started_when_the_write_was_recorded_is_restarted_once() -> None:
    stale = replace(FRESH, started_after_write=False)
    dead = replace(DEAD, last_exit=replace(EXIT, external_cause=True))
    sidecar = Restartable(dead, replace(stale, last_exit=dead.last_exit), FRESH)
    verifier = SidecarVerifier(sidecar, ApplyPolicy(), lambda: False, EagerClock())
    plan = SidecarPlan("app", SidecarAction.AWAIT, (EXPECTED,), replace(DEAD, last_exit=None))
    found = (await verifier.verify(plan, Redactor()))[REF]
    assert (found.state, sidecar.restarts) == (State.VERIFIED, 1)


async def test_a_process_from_before_the_write_proves_nothing() -> None:
    stale = replace(FRESH, started_after_write=False)
    assert await verify(SidecarAction.START, Reading(NOW), stale) == (
        State.UNPROVEN,
        "no sidecar was started after the write",
    )
