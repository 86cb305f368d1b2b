"""Maintenance windows and holds of runtimes: how they reach agents, and agents that cannot obey them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from governor.client import api
from governor.domain.conditions import Condition
from governor.domain.reports import State
from governor.domain.windows import Day, Hold, Window
from governor.errors import GovernorError, Kind
from governor.process.clock import SystemClock
from governor.wire.rest import RuntimeView
from testbed.waiting import until
from tests.integration.server.bed import Agent, ServerBed, component, profile, running, runtime

WINDOW = {"days": ["Sat", "Sun"], "start": "22:00", "durationMinutes": 240, "timeZone": "Europe/Berlin"}
LAYER = profile("p", component("s", redisHost="a"))


def restrained(name: str = "r1", **spec: Any) -> dict[str, Any]:
    document = runtime(name)
    return {**document, "spec": {**document["spec"], **spec}}


def hold(seconds: float = 3600) -> dict[str, str]:
    return {"until": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(), "reason": "inventory"}


async def view(bed: ServerBed, name: str = "r1") -> RuntimeView:
    async with bed.client() as viewer:
        return await viewer.runtime(name)


async def connected(bed: ServerBed) -> Condition:
    return next(each for each in (await view(bed)).conditions if each.type == "Connected")


async def seen(bed: ServerBed, expected: Callable[[Condition], bool]) -> Condition:
    """Wait until the condition Connected is as expected, and return it."""

    async def found() -> Condition | None:
        condition = await connected(bed)
        return condition if expected(condition) else None

    condition = await until(found)
    assert condition is not None
    return condition


async def test_windows_and_a_hold_reach_the_agent_and_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(restrained(windows=[WINDOW], hold=hold()), LAYER)
        agent = await bed.enrol("r1")
        first = await agent.newest()
        assert first.windows == (Window("22:00", 240, (Day.SAT, Day.SUN), "Europe/Berlin"),)
        assert first.hold is not None
        assert first.hold.reason == "inventory"
        shown = await view(bed)
        assert (shown.windows, shown.hold) == (first.windows, first.hold)
        assert "Held" in {each.reason for each in shown.conditions}
    async with running(tmp_path) as bed:
        agent.bed = bed
        assert await agent.newest() == first


async def test_a_hold_is_delivered_again_without_a_new_attempt_and_ended_by_a_change(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            first = await take()
            await agent.report(first, State.VERIFIED)
            await bed.apply(restrained(hold=hold()))
            held = await take()
            await bed.apply(runtime("r1"))
            resumed = await take()
        assert [(each.sequence, each.attempt, each.digest) for each in (held, resumed)] == [
            (2, 1, first.digest),
            (3, 1, first.digest),
        ]
        assert isinstance(held.hold, Hold)
        assert (first.hold, resumed.hold) == (None, None)


async def test_a_document_without_the_hold_ends_it_with_a_warning(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        for expired in (False, True):
            await bed.apply(restrained(hold=hold(-1 if expired else 3600)), restrained("r2", hold=hold()))
            longer = await bed.apply(restrained("r2", hold=hold(7200)))
            ended = await bed.apply(runtime("r1", region="eu"))
            assert longer.warnings == ()
            assert [each.startswith("runtime 'r1' is no longer held until ") for each in ended.warnings] == (
                [] if expired else [True]
            )


async def test_what_waits_for_a_hold_is_shown_and_not_acknowledged(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(restrained(hold=hold()), LAYER)
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            delivery = await take()
            restraint = delivery.write_restraint(datetime.now(UTC))
            await agent.report(delivery, State.RECEIVED, restraint=restraint)
            shown = await view(bed)
    assert (shown.summary.state, shown.summary.until) == ("Held", delivery.hold.until if delivery.hold else None)
    assert shown.summary.message.startswith("delivery 1 waits: held until ")
    assert shown.summary.message.endswith("Z: inventory")


async def test_an_unknown_time_zone_is_rejected_at_its_place(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        with pytest.raises(GovernorError) as caught:
            await bed.apply(restrained(windows=[WINDOW, {**WINDOW, "timeZone": "Europe/Atlantis"}]))
        (detail,) = caught.value.details
        assert (caught.value.kind, detail.document, detail.path) == (
            Kind.INVALID,
            "Runtime/r1",
            "spec.windows[1].timeZone",
        )
        assert detail.reason.startswith("unknown time zone 'Europe/Atlantis'")


async def test_a_stored_time_zone_that_the_machine_no_longer_knows_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bed:
        monkeypatch.setattr("governor.server.changes.submission.is_time_zone", lambda _: True)
        await bed.apply(restrained(windows=[{**WINDOW, "timeZone": "Europe/Atlantis"}]), LAYER)
        monkeypatch.undo()
        await bed.apply(profile("p", component("s", redisHost="b")))
        assert (await view(bed)).windows[0].time_zone == "Europe/Atlantis"


# -- agents that cannot obey them ----------------------------------------------------------------------------------


@pytest.fixture(params=["", "1, 2"], ids=["version 0.1", "format 2"])
def _announce_older_formats(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make clients announce what an older version has."""
    formats = {"Governor-Delivery-Formats": request.param, "Governor-Report-Formats": "1, 2"} if request.param else {}
    monkeypatch.setattr(api, "_FORMATS", formats)


async def refused(agent: Agent) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await agent.newest()
    return caught.value


@pytest.mark.usefixtures("_announce_older_formats")
@pytest.mark.parametrize("spec", [{"windows": [WINDOW]}, {"hold": hold()}], ids=["windows", "hold"])
async def test_an_older_agent_is_refused_and_the_runtime_shows_why(tmp_path: Path, spec: dict[str, Any]) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(restrained(**spec), LAYER)
        agent = await bed.enrol("r1")
        error = await refused(agent)
        assert (error.kind, error.code) == (Kind.UNIMPLEMENTED, "format-unsupported")
        assert "upgrade the agent" in error.message
        condition = await connected(bed)
        assert (condition.reason, condition.message, condition.actor) == ("AgentOutdated", error.message, "operator")
        with pytest.raises(GovernorError, match="upgrade the agent"):
            async with agent.client() as client:
                await client.delivery("r1", 1)


@pytest.mark.usefixtures("_announce_older_formats")
async def test_an_older_agent_works_until_its_runtime_gets_a_window_and_after_that_is_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), LAYER)
        agent = await bed.enrol("r1")
        async with agent.watching() as take:
            first = await take()
            following = take()
            await bed.apply(restrained(windows=[WINDOW]))
            with pytest.raises(GovernorError, match="closed the stream"):
                await following
        assert (await refused(agent)).code == "format-unsupported"
        assert (await connected(bed)).reason == "AgentOutdated"
        await bed.apply(runtime("r1"))
        async with agent.watching() as take:
            assert ((await take()).sequence, first.sequence) == (3, 1)
            await seen(bed, lambda condition: condition.reason == "Watching")
        await seen(bed, lambda condition: condition.reason == "NotWatching")


class LaterClock(SystemClock):
    """The system clock, set forward."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


@pytest.mark.usefixtures("_announce_older_formats")
async def test_an_older_agent_is_accepted_again_when_a_hold_has_expired(tmp_path: Path) -> None:
    clock = LaterClock()
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(restrained(hold=hold(20)), LAYER)
        agent = await bed.enrol("r1")
        assert (await refused(agent)).code == "format-unsupported"
        clock.ahead = timedelta(seconds=30)
        delivery = await agent.newest()
        assert (delivery.sequence, delivery.hold) == (1, None)
        async with agent.client() as client:
            assert (await client.delivery("r1", 1)).format < 3


async def test_an_agent_of_this_version_gets_the_older_format_without_windows_and_hold(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(restrained("r1"), restrained("r2", windows=[WINDOW]), LAYER)
        formats = []
        for name in ("r1", "r2"):
            agent = await bed.enrol(name)
            async with agent.client() as client:
                formats.append((await client.delivery(name, 1)).format)
        assert formats == [2, 3]
