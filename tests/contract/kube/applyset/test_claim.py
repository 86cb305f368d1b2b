"""Claims of owners that share a cluster: only the holder of the newest claim writes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from governor.errors import Kind
from governor.kube.applyset import Claim
from governor.kube.applyset.inventory import CLAIM_TTL_S
from governor.kube.client import Client, Request, Transport
from governor.process.clock import VirtualClock
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NAMESPACES,
    RecordingClient,
    config_map,
    deployment,
    error_of,
    exists,
    make_set,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of


@pytest.fixture
def recording(api: ControlPlane, transport: Transport) -> RecordingClient:
    return RecordingClient(transport, admin_of(api))


@pytest.fixture
async def cluster_uid(client: Client) -> str:
    return str((await client.get(NAMESPACES, "kube-system"))["metadata"]["uid"])


async def test_a_holder_keeps_its_claim_and_waits_for_nothing(
    recording: RecordingClient, namespace: str, cluster_uid: str
) -> None:
    clock = VirtualClock()  # a wait would never end
    for generation in (1, 2):
        claim = Claim("hub-a", 1, generation, cluster_uid)
        objects = make_set(recording, namespace, clock=clock, claim=claim)
        assert (await objects.converge([config_map("a", x=str(generation))])).ok
    recording.sent.clear()
    assert (await objects.converge([config_map("a", x="2")])).ok
    assert recording.writes == []
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}


@pytest.mark.parametrize(
    ("holder", "epoch", "generation"),
    [("hub-b", 3, 9), ("hub-a", 3, 9), ("hub-a", 4, 1), ("hub-b", 4, 2)],
    ids=["older epoch", "own older epoch", "older generation", "another holder of the same claim"],
)
async def test_the_holder_of_an_older_claim_writes_nothing(
    recording: RecordingClient, namespace: str, cluster_uid: str, holder: str, epoch: int, generation: int
) -> None:
    await make_set(recording, namespace, claim=Claim("hub-a", 4, 2, cluster_uid)).converge([config_map("a")])
    old = make_set(recording, namespace, claim=Claim(holder, epoch, generation, cluster_uid))
    recording.sent.clear()
    calls: list[Awaitable[object]] = [
        old.converge([config_map("a", x="1")]),
        old.converge([config_map("b")]),
        old.delete_all(),
        old.orphan(),
    ]
    for call in calls:
        error = await error_of(call)
        assert (error.kind, error.code) == (Kind.PRECONDITION, "claim-lost")
        assert "is claimed by 'hub-a' (epoch 4, generation 2)" in error.message
    assert recording.writes == []


async def test_a_claim_for_another_cluster_is_rejected(recording: RecordingClient, namespace: str) -> None:
    objects = make_set(recording, namespace, claim=Claim("hub-a", 1, 1, "another"))
    error = await error_of(objects.converge([config_map("a")]))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "claim-lost")
    assert "Check the access to the cluster" in error.message
    assert recording.writes == []


async def test_a_new_holder_waits_before_its_first_write(
    recording: RecordingClient, namespace: str, cluster_uid: str
) -> None:
    await make_set(recording, namespace, claim=Claim("hub-a", 1, 1, cluster_uid)).converge([config_map("a")])
    clock = VirtualClock()
    recording.sent.clear()
    for cancelled in (True, False):  # it waits again if it did not wait to the end
        objects = make_set(recording, namespace, clock=clock, claim=Claim("hub-b", 2, 1, cluster_uid))
        run = asyncio.create_task(objects.converge([config_map("a", x="1")]))

        async def waits() -> bool:
            return clock.sleepers == 1

        await until(waits)
        assert {each.split()[0] for each in recording.writes} == {"PUT"}
        if cancelled:
            run.cancel()
            await asyncio.wait({run})
    await clock.advance(CLAIM_TTL_S)
    assert (await run).ok
    assert (await objects.converge([config_map("a", x="2")])).ok  # without another wait


class TestTakenEarly:
    async def test_a_new_holder_waits_only_for_what_is_left(
        self, recording: RecordingClient, namespace: str, cluster_uid: str
    ) -> None:
        await make_set(recording, namespace, claim=Claim("hub-a", 1, 1, cluster_uid)).converge([config_map("a")])
        clock = VirtualClock()
        objects = make_set(recording, namespace, clock=clock, claim=Claim("hub-b", 2, 1, cluster_uid))
        assert await objects.stored_claim() == Claim("hub-a", 1, 1, cluster_uid)
        await objects.take_claim()
        assert await objects.stored_claim() == Claim("hub-b", 2, 1, cluster_uid)
        recording.sent.clear()
        assert (await objects.converge([config_map("a")])).ok, "nothing to write, so nothing to wait for"
        assert recording.writes == []
        await clock.advance(CLAIM_TTL_S - 1)
        run = asyncio.create_task(objects.converge([config_map("a", x="1")]))

        async def waits() -> bool:
            return clock.sleepers == 1

        await until(waits)
        assert recording.writes == []
        await clock.advance(1)
        assert (await run).ok
        await objects.permit_write()

    async def test_the_first_holder_of_a_set_waits_for_nothing(
        self, recording: RecordingClient, namespace: str, cluster_uid: str
    ) -> None:
        clock = VirtualClock()  # a wait would never end
        objects = make_set(recording, namespace, clock=clock, claim=Claim("hub-a", 1, 1, cluster_uid))
        await objects.take_claim()
        await objects.permit_write()
        assert (await objects.converge([config_map("a")])).ok

    async def test_a_write_outside_the_set_is_permitted_after_the_wait_and_until_the_claim_is_lost(
        self, recording: RecordingClient, namespace: str, cluster_uid: str
    ) -> None:
        clock, later = VirtualClock(), VirtualClock()
        await make_set(recording, namespace, claim=Claim("hub-a", 1, 1, cluster_uid)).take_claim()
        objects = make_set(recording, namespace, clock=clock, claim=Claim("hub-b", 2, 1, cluster_uid))
        await objects.take_claim()
        permit = asyncio.create_task(objects.permit_write())

        async def waits() -> bool:
            return clock.sleepers == 1

        await until(waits)
        assert not permit.done()
        await clock.advance(CLAIM_TTL_S)
        await permit
        await make_set(recording, namespace, clock=later, claim=Claim("hub-c", 3, 1, cluster_uid)).take_claim()
        await objects.permit_write()  # the new holder still waits
        await clock.advance(CLAIM_TTL_S)
        error = await error_of(objects.permit_write())
        assert error.code == "claim-lost"
        assert "is claimed by 'hub-c'" in error.message

    async def test_a_deleted_inventory_permits_nothing(
        self, recording: RecordingClient, client: Client, namespace: str, cluster_uid: str
    ) -> None:
        clock = VirtualClock()
        objects = make_set(recording, namespace, clock=clock, claim=Claim("hub-a", 1, 1, cluster_uid))
        await objects.take_claim()
        await client.delete(CONFIG_MAPS, "inventory", namespace)
        await clock.advance(CLAIM_TTL_S)
        assert "is no longer claimed" in (await error_of(objects.permit_write())).message
        assert (await objects.converge([config_map("a")])).ok
        await objects.permit_write()

    async def test_an_older_claim_is_not_stored(
        self, recording: RecordingClient, namespace: str, cluster_uid: str
    ) -> None:
        await make_set(recording, namespace, claim=Claim("hub-b", 2, 1, cluster_uid)).take_claim()
        objects = make_set(recording, namespace, claim=Claim("hub-a", 1, 1, cluster_uid))
        assert (await error_of(objects.take_claim())).code == "claim-lost"
        assert await objects.stored_claim() == Claim("hub-b", 2, 1, cluster_uid)


async def test_a_claim_taken_during_a_run_stops_it_before_the_next_stage(
    recording: RecordingClient, client: Client, namespace: str, cluster_uid: str
) -> None:
    rival = _Rival(client, namespace, cluster_uid)

    async def claim_before_the_first_object(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path == CONFIG_MAPS.path(namespace, "a"):
            await rival.claim()
        return await send(request)

    recording.intercept = claim_before_the_first_object
    objects = make_set(recording, namespace, claim=Claim("hub-a", 1, 1, cluster_uid))
    error = await error_of(objects.converge([config_map("a"), deployment("d")]))
    assert error.code == "claim-lost"
    assert "is claimed by 'hub-b' (epoch 2, generation 1)" in error.message
    assert await exists(client, CONFIG_MAPS, "a", namespace)  # it was in flight
    assert not await exists(client, DEPLOYMENTS, "d", namespace)
    await rival.finish()


@pytest.mark.parametrize("elapsed_s", [0.0, 1.0])
async def test_a_fresh_claim_is_not_read_again_before_a_stage(
    recording: RecordingClient, client: Client, namespace: str, cluster_uid: str, elapsed_s: float
) -> None:
    clock = VirtualClock()
    rival = _Rival(client, namespace, cluster_uid)

    async def claim_during_the_first_stage(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path == CONFIG_MAPS.path(namespace, "a"):
            await rival.claim()
            await clock.advance(elapsed_s)
        return await send(request)

    recording.intercept = claim_during_the_first_stage
    objects = make_set(recording, namespace, clock=clock, claim=Claim("hub-a", 1, 1, cluster_uid), claim_fresh_s=1.0)
    error = await error_of(objects.converge([config_map("a"), deployment("d")]))
    is_written = await exists(client, DEPLOYMENTS, "d", namespace)
    assert (error.code, is_written) == (("claim-lost", False) if elapsed_s else ("inventory-conflict", True))
    await rival.finish()


async def test_within_a_stage_the_claim_is_read_again_after_its_time_to_live(
    recording: RecordingClient, client: Client, namespace: str, cluster_uid: str
) -> None:
    clock = VirtualClock()
    rival = _Rival(client, namespace, cluster_uid)

    async def slow(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path == CONFIG_MAPS.path(namespace, "a"):
            await rival.claim()
            await clock.advance(CLAIM_TTL_S)
        return await send(request)

    recording.intercept = slow
    objects = make_set(recording, namespace, clock=clock, concurrency=1, claim=Claim("hub-a", 1, 1, cluster_uid))
    error = await error_of(objects.converge([config_map("a"), config_map("b")]))
    assert error.code == "claim-lost"
    assert not await exists(client, CONFIG_MAPS, "b", namespace)
    await rival.finish()


class _Rival:
    """A holder of a newer claim, which claims at once and writes when its wait is over."""

    def __init__(self, client: Client, namespace: str, cluster_uid: str) -> None:
        self._clock = VirtualClock()
        claim = Claim("hub-b", 2, 1, cluster_uid)
        self._objects = make_set(client, namespace, clock=self._clock, claim=claim)
        self._run: asyncio.Task[object] | None = None

    async def claim(self) -> None:
        self._run = self._run or asyncio.create_task(self._objects.converge([config_map("a", by="hub-b")]))
        await until(self._waits)

    async def finish(self) -> None:
        assert self._run is not None
        await self._clock.advance(CLAIM_TTL_S)
        await self._run

    async def _waits(self) -> bool:
        return self._clock.sleepers == 1


HOLDER = """
import asyncio, os, pathlib, signal, sys, time
from governor.errors import GovernorError
from governor.kube.applyset import ApplySet, Claim, Owner, Settings
from governor.kube.client import Client, Transport
from governor.kube.config import kubeconfig
from governor.process.clock import SystemClock

class FastClock(SystemClock):  # ten seconds take ten milliseconds
    def monotonic(self):
        return time.monotonic() * 1000

class StoppingClient(Client):
    writes = []
    stopped = False

    async def send(self, request):
        if self.stopped and request.method != "GET":
            self.writes.append(str(request))
        response = await super().send(request)
        if request.method == "PUT" and when == "before-write":
            await asyncio.sleep(0.02)  # the claim is old when the first write begins
        if not self.stopped and request.method == method and request.path.endswith("/inventory") and started(request):
            self.stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return response

def started(request):  # not the first read of the inventory
    return request.method == "PUT" or "PartialObjectMetadata" in request.accept

async def main(file, namespace, cluster_uid):
    async with Transport() as transport:
        client = StoppingClient(transport, kubeconfig.load(pathlib.Path(file)))
        settings = Settings("set-manager", "applyset.example", default_namespace=namespace)
        claim = Claim("hub-a", 1, 1, cluster_uid)
        objects = ApplySet(client, Owner(namespace, namespace, "inventory"), settings, FastClock(), claim)
        data = {"by": "hub-a"}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}  # of an earlier stage
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
        try:
            await objects.converge([account, manifest])
        except GovernorError as error:
            print(error.code, client.writes, flush=True)

when = sys.argv[1]
method = "PUT" if when == "after-swap" else "GET"
asyncio.run(main(*sys.argv[2:]))
"""


@asynccontextmanager
async def _holder(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    argv = [sys.executable, "-c", HOLDER, *arguments]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("when", ["after-swap", "before-stage", "before-write"])
async def test_a_holder_that_is_stopped_before_its_write_writes_nothing_when_it_continues(
    api: ControlPlane, client: Client, namespace: str, cluster_uid: str, when: str
) -> None:
    first = make_set(client, namespace, claim=Claim("hub-a", 1, 1, cluster_uid))
    await first.converge([config_map("a", by="first")])
    async with _holder(when, str(api.kubeconfig), namespace, cluster_uid) as process:

        async def stopped() -> bool:
            return Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

        await until(stopped)
        rival = _Rival(client, namespace, cluster_uid)
        await rival.claim()
        await rival.finish()
        version = (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]["resourceVersion"]
        os.kill(process.pid, signal.SIGCONT)
        output, _ = await process.communicate()
    assert output.decode().strip() == "claim-lost []"
    live = await client.get(CONFIG_MAPS, "a", namespace)
    assert (live["data"], live["metadata"]["resourceVersion"]) == ({"by": "hub-b"}, version)
