"""Deliveries while Dapr is not installed and while the API server is restarted, on a control plane of their own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from governor.agent.platforms.kubernetes.resources.outcomes import Outcome
from governor.domain.reports import Cause
from governor.kube.client import Limits, Request, Transport
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from testbed.kube.control_plane import ControlPlane
from tests.contract.agent.apply.bed import EVERY_KIND, Bed, component, host_of, install_dapr, secret_refs
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import admin_of

HERE = "default"
LIMITS = Limits(attempts=1, breaker=BreakerPolicy(failures=1000, backoff=Backoff(initial_s=0.01, max_s=0.01)))


@pytest.fixture
async def plane(
    kubernetes_binaries: dict[str, Path], tmp_path: Path, server_logs: list[Path]
) -> AsyncIterator[ControlPlane]:
    """A control plane without Dapr."""
    async with ControlPlane(kubernetes_binaries, tmp_path) as plane:
        server_logs.extend(server.log for server in plane.servers)
        yield plane


async def test_missing_kinds_are_named_and_a_restart_of_the_server_in_between_is_survived(
    plane: ControlPlane, transport: Transport
) -> None:
    client = RecordingClient(transport, admin_of(plane), LIMITS)
    bed = Bed(client, HERE, "r1")
    await _expect_missing_kinds(plane, bed)
    await _expect_what_was_written_after_a_restart(plane, bed, client)


async def _expect_missing_kinds(plane: ControlPlane, bed: Bed) -> None:
    manifests = bed.manifests(*EVERY_KIND)
    applied = await bed.agent.converge(manifests)
    assert {(each.outcome, each.cause) for each in applied.results.values()} == {(Outcome.FAILED, Cause.RUNTIME)}
    assert all(each.text.startswith("Dapr is not installed in this cluster") for each in applied.results.values())
    await install_dapr(plane, "components")
    applied = await bed.agent.converge(manifests)
    assert applied.results[bed.ref("store")].outcome is Outcome.SKIPPED
    missing = applied.results[bed.ref("tools", "MCPServer")]
    assert missing.cause is Cause.RUNTIME
    assert "does not have MCPServer (dapr.io/v1alpha1): upgrade Dapr" in missing.text
    assert not await bed.components()
    assert not await bed.secrets()
    await install_dapr(plane)
    assert (await bed.agent.converge(manifests)).ok


async def _expect_what_was_written_after_a_restart(plane: ControlPlane, bed: Bed, client: RecordingClient) -> None:
    old = bed.manifests(*(component(name, host="old", password="first-pw") for name in ("a", "b", "c")))
    for _ in range(2):  # the second drops the Secrets to which removed resources referred
        assert (await bed.agent.converge(old)).ok
    new = bed.manifests(*(component(name, host="new", password="other-pw") for name in ("a", "b", "c")))
    _kill_after_first_write(plane, client)
    applied = await bed.agent.converge(new, kept=secret_refs(old))
    client.intercept = None
    assert not applied.ok
    assert applied.error
    [written] = applied.written
    assert {each.cause for each in applied.failures.values()} == {Cause.AGENT}
    await plane.api.start()
    hosts = {name: host_of(each) for name, each in (await bed.components()).items()}
    assert hosts == {"a": "old", "b": "old", "c": "old"} | {written.name: "new"}
    assert len(await bed.secrets()) == 6  # nothing that is in force was removed
    for _ in range(2):
        assert (await bed.agent.converge(new)).ok
    assert len(await bed.secrets()) == 3


def _kill_after_first_write(plane: ControlPlane, client: RecordingClient) -> None:
    """Kill the API server when the first Component has been written."""
    one_by_one = asyncio.Lock()

    async def intercept(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.method != "PATCH" or "/components/" not in request.path or "dryRun" in request.query:
            return await send(request)
        async with one_by_one:
            body = await send(request)
            await plane.api.kill()
            return body

    client.intercept = intercept
