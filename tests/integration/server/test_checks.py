"""Checks on a real server: shown with the runtime, and only a runtime's own agent may send them."""

from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from governor.client import Client, WatchSession
from governor.domain.bundles import refs
from governor.domain.reports import Report, ResourceReport, State
from governor.errors import GovernorError, Kind
from governor.wire.deliveries import open_delivery
from tests.integration.server.bed import Agent, component, profile, running, runtime


async def verified_report(agent: Agent, client: Client) -> Report:
    """Open a watch, as a server demands before a report, and return a report on its delivery."""
    sessions: list[WatchSession] = []
    async with aclosing(client.watch("r1", on_open=sessions.append)) as watch:
        delivery = open_delivery(await anext(watch), agent.delivery_key)
    found = tuple(ResourceReport(state=State.VERIFIED, resource=ref) for ref in refs(delivery.resources))
    session, now = sessions[0].number, datetime.now(UTC)
    return Report("r1", delivery.sequence, delivery.attempt, delivery.digest, session, 1, now, "test", found, ())


async def test_a_check_is_shown_until_a_newer_report_replaces_what_was_checked(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"), profile("orders", component("one", redisHost="a:1")))
        agent, other = await bed.enrol("r1"), await bed.enrol("r2")
        async with agent.client() as client, other.client() as foreign:
            report = await verified_report(agent, client)
            await client.report(report)
            before = (await client.runtime("r1")).conditions[0]
            await client.check("r1", report.check)
            checked = (await client.runtime("r1")).conditions[0]
            with pytest.raises(GovernorError) as caught:
                await foreign.check("r1", report.check)
            await client.report(msgspec.structs.replace(report, n=2))
            after = (await client.runtime("r1")).conditions[0]

    assert (before.reason, before.checked, after.checked) == ("Verified", None, None)
    assert checked.checked is not None
    assert msgspec.structs.replace(checked, checked=None) == before
    assert caught.value.kind is Kind.DENIED
