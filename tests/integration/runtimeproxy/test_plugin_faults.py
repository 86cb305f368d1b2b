"""Misbehaving plugins: policy Fail rejects every call, Ignore lets every call pass, and plugins may recover."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.wire.hooks.hooks_pb2 import PodSandboxHookResponse
from testbed.cri.control import Json
from testbed.cri.fixtures import MakeDirectory, StartHookPlugin
from testbed.cri.misbehaving_plugin import FRAME_BYTES, HookCall, MisbehavingPlugin
from testbed.cri.peers import register
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, create_container, hooked, last, run_pod
from tests.integration.runtimeproxy.faults import CHANGE, FAULTS, answer_well

MIB = 1024 * 1024
SENT = POD["annotations"]


@pytest.fixture
async def misbehaving(peer_directory: MakeDirectory) -> AsyncIterator[MisbehavingPlugin]:
    directory = peer_directory()
    directory.mkdir()
    plugin = MisbehavingPlugin(directory / "misbehaving", answer_well)
    async with plugin.serving():
        yield plugin


async def register_misbehaving(bed: Bed, plugin: MisbehavingPlugin, policy: str, plugin_timeout: str = "2s") -> None:
    keys = {"failure_policy": policy, "timeout": plugin_timeout}
    register(plugin.socket, bed.proxy.plugins, "misbehaving", ["PreRunPodSandbox"], **keys)
    await bed.proxy.wait_for_plugins(1)


async def annotations_at_the_runtime(bed: Bed) -> Json:
    return dict((await last(bed.runtime, "RunPodSandbox")).request["config"]["annotations"])


async def passes_with_change(bed: Bed, after: str = "") -> None:
    """Check that the recovered plugin is called and its change applied."""
    reply = await bed.client.call("RunPodSandbox", {"config": POD})
    assert (reply.code, reply.message) == ("OK", ""), after
    assert await annotations_at_the_runtime(bed) == {**SENT, "by": "misbehaving"}, after


async def test_fail_lets_no_call_pass_a_misbehaving_plugin(bed: Bed, misbehaving: MisbehavingPlugin) -> None:
    await register_misbehaving(bed, misbehaving, "Fail")
    before = bed.proxy.resident_bytes()
    for number, fault in enumerate(FAULTS):
        misbehaving.handler = fault
        reply = await bed.client.call("RunPodSandbox", {"config": POD})
        assert reply.code not in ("OK", "DEADLINE_EXCEEDED"), fault.__name__
        assert reply.message.startswith("plugin misbehaving rejected PreRunPodSandbox: "), fault.__name__
        assert len(await bed.runtime.received("RunPodSandbox")) == number, fault.__name__
        misbehaving.handler = answer_well
        await passes_with_change(bed, fault.__name__)

    assert len(misbehaving.calls) >= 2 * len(FAULTS)
    assert bed.proxy.resident_bytes() - before < 48 * MIB
    assert (await bed.client.wire()).errors == ()


async def test_ignore_lets_every_call_pass_a_misbehaving_plugin(bed: Bed, misbehaving: MisbehavingPlugin) -> None:
    await register_misbehaving(bed, misbehaving, "Ignore")
    for fault in FAULTS:
        misbehaving.handler = fault
        await run_pod(bed)
        assert await annotations_at_the_runtime(bed) == SENT, fault.__name__
        misbehaving.handler = answer_well
        await passes_with_change(bed, fault.__name__)

    assert len(misbehaving.calls) >= 2 * len(FAULTS)
    assert (await bed.client.wire()).errors == ()


async def test_a_late_response_is_not_applied(bed: Bed, misbehaving: MisbehavingPlugin) -> None:
    """It changes neither its own call nor the next one."""

    async def answer_when_cancelled(call: HookCall) -> None:
        await call.reset.wait()
        await call.answer(PodSandboxHookResponse(annotations={"by": "late"}).SerializeToString())

    await register_misbehaving(bed, misbehaving, "Ignore")
    for _ in range(2):
        misbehaving.handler = answer_when_cancelled
        await run_pod(bed)
        assert await annotations_at_the_runtime(bed) == SENT
        misbehaving.handler = answer_well
        await passes_with_change(bed)

    assert misbehaving.connections == 1


async def test_a_plugin_with_an_open_circuit_is_tried_on_a_new_connection(
    bed: Bed, misbehaving: MisbehavingPlugin
) -> None:
    """The first connection is stuck within an incomplete frame."""

    async def be_stuck_at_first(call: HookCall) -> None:
        if misbehaving.connections == 1:
            await call.write(b"\x00\x40\x00\x00")
        else:
            await call.answer(CHANGE)

    misbehaving.handler = be_stuck_at_first
    await register_misbehaving(bed, misbehaving, "Ignore")
    stuck = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=5, at_once=5)
    assert stuck.statuses == {"OK": 5}

    async def is_applied() -> bool:
        await run_pod(bed)
        return "by" in await annotations_at_the_runtime(bed)

    await until(is_applied)
    await passes_with_change(bed)
    assert misbehaving.connections == 2


@pytest.mark.parametrize(
    ("announced", "least", "most"),
    [pytest.param(64 * MIB, 0, 4 * MIB, id="announced"), pytest.param(MIB, 16 * MIB, 20 * MIB, id="not announced")],
)
async def test_a_response_of_64_mib_is_cut_off(
    bed: Bed, misbehaving: MisbehavingPlugin, announced: int, least: int, most: int
) -> None:
    sent = 0

    async def answer_without_end(call: HookCall) -> None:
        nonlocal sent
        await call.write(call.head(), *call.data(b"\0", announced.to_bytes(4)))
        while sent < 64 * MIB and not call.reset.is_set():
            await call.write_within_windows(bytes(FRAME_BYTES))
            sent += FRAME_BYTES

    misbehaving.handler = answer_without_end
    await register_misbehaving(bed, misbehaving, "Fail", "50s")
    before = bed.proxy.resident_bytes()

    reply = await bed.client.call("RunPodSandbox", {"config": POD})

    assert reply.code == "RESOURCE_EXHAUSTED"
    assert least <= sent < most
    assert bed.proxy.resident_bytes() - before < 64 * MIB
    assert await bed.runtime.received("RunPodSandbox") == []


async def test_a_mute_server_costs_no_more_than_its_timeout(bed: Bed, peer_directory: MakeDirectory) -> None:
    directory = peer_directory()
    directory.mkdir()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_unix_server(listen, str(directory / "mute")):
        register(directory / "mute", bed.proxy.plugins, "mute", ["PreRunPodSandbox"], timeout=60)
        await bed.proxy.wait_for_plugins(1)

        reply = await bed.client.call("RunPodSandbox", {"config": POD}, deadline_s=4)
        version = await bed.client.call("Version")

        assert (reply.code, version.code) == ("OK", "OK")
        (bed.proxy.plugins / "mute.json").unlink()
        await bed.proxy.wait_for_plugins(0)


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_a_plugin_that_stops_and_starts_is_called_whenever_it_runs(
    bed: Bed, start_hook_plugin: StartHookPlugin, policy: str
) -> None:
    """An unreachable plugin fails at once, so it is tried each time and its circuit stays closed."""
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "misbehaving"}}})
    await hooked(bed, plugin, failure_policy=policy, hooks=["PreRunPodSandbox"])
    await passes_with_change(bed)
    for _ in range(2):
        await plugin.stop()
        Path(plugin.socket).unlink(missing_ok=True)
        away = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=20, at_once=4)
        assert away.statuses == ({"UNAVAILABLE": 20} if policy == "Fail" else {"OK": 20})
        await plugin.start()
        await passes_with_change(bed)

    assert len(await bed.runtime.received("RunPodSandbox")) == (3 if policy == "Fail" else 43)


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_the_circuit_of_a_hanging_plugin_opens_and_one_call_tries_it(
    bed: Bed, start_hook_plugin: StartHookPlugin, policy: str
) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, failure_policy=policy, timeout="2s", hooks=["PreRunPodSandbox"])

    async def calls(count: int, at_once: int) -> int:
        """Make that many calls and return the number of plugin calls."""
        before = len(await plugin.received())
        seen = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=count, at_once=at_once)
        assert seen.statuses == ({"UNAVAILABLE": count} if policy == "Fail" else {"OK": count})
        return len(await plugin.received()) - before

    async def one_more_is_called() -> int:
        return await calls(10, 10)

    assert await calls(5, 5) == 5
    assert await until(one_more_is_called) == 1
    await plugin.set({"answer": {"annotations": {"by": "misbehaving"}}})

    async def has_recovered() -> bool:
        await bed.client.call("RunPodSandbox", {"config": POD})
        return "OK" in (await plugin.statuses())["PreRunPodSandboxHook"]

    await until(has_recovered)
    before = len(await plugin.received())
    again = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=10, at_once=10)
    assert again.statuses == {"OK": 10}
    assert len(await plugin.received()) == before + 10


async def test_a_plugin_that_closes_slow_calls_is_cut_off(bed: Bed, misbehaving: MisbehavingPlugin) -> None:
    """The time lost counts, not how the call ended, and a new connection does not close the circuit."""

    async def close_slowly(call: HookCall) -> None:
        await asyncio.sleep(0.1)
        call.abort()

    misbehaving.handler = close_slowly
    await register_misbehaving(bed, misbehaving, "Ignore")

    seen = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=40)

    assert seen.statuses == {"OK": 40}
    # Five open the circuit, one tries the new connection, some probe when the backoff allows it.
    assert len(misbehaving.calls) < 12


async def test_a_plugin_is_not_asked_twice_for_one_call(bed: Bed, misbehaving: MisbehavingPlugin) -> None:
    async def close_after_the_first(call: HookCall) -> None:
        if len(misbehaving.calls) == 1:
            await call.answer(CHANGE)
        else:
            call.abort()

    misbehaving.handler = close_after_the_first
    await register_misbehaving(bed, misbehaving, "Fail")
    await passes_with_change(bed)

    assert (await bed.client.call("RunPodSandbox", {"config": POD})).code == "UNAVAILABLE"
    assert len(misbehaving.calls) == 2


async def test_a_restarted_plugin_is_called_although_its_circuit_is_open(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin({"hang": True})
    await hooked(bed, plugin, timeout="0.3s", hooks=["PreRunPodSandbox"])
    seen = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=5, at_once=5)
    assert seen.statuses == {"OK": 5}

    await plugin.set({"answer": {"annotations": {"by": "misbehaving"}}})
    await run_pod(bed)
    assert await annotations_at_the_runtime(bed) == SENT
    await plugin.stop()
    await run_pod(bed)
    await plugin.start()

    await passes_with_change(bed)


async def test_a_deadline_exceeded_status_counts_as_a_timeout(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"status": {"code": "DEADLINE_EXCEEDED", "message": "context deadline exceeded"}})
    await hooked(bed, plugin, hooks=["PreRunPodSandbox"])

    seen = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=5, at_once=1)
    assert seen.statuses == {"OK": 5}
    assert len(await plugin.received()) == 5

    async def one_more_is_called() -> int:
        before = len(await plugin.received())
        await bed.client.repeat("RunPodSandbox", {"config": POD}, count=10, at_once=10)
        return len(await plugin.received()) - before

    assert await until(one_more_is_called) == 1


async def test_several_hanging_plugins_leave_time_for_the_runtime(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"hang": True})
    for number in range(3):
        await hooked(bed, plugin, name=f"p-{number}", timeout=30, hooks=["PreRunPodSandbox"])
    await bed.runtime.set({"method": "RunPodSandbox", "delay_s": 0.5})

    reply = await bed.client.call("RunPodSandbox", {"config": POD}, deadline_s=6)

    assert reply.code == "OK"
    assert len(await plugin.received()) == 3


async def test_fail_lets_no_call_pass_a_failing_plugin_at_any_hook(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin, name="guard", failure_policy="Fail", timeout="2s")
    pod = await run_pod(bed)
    container = await create_container(bed, pod)
    await bed.runtime.forget()
    requests: dict[str, Json] = {
        "RunPodSandbox": {"config": POD},
        "CreateContainer": {"pod_sandbox_id": pod, "config": {}, "sandbox_config": POD},
        "StartContainer": {"container_id": container},
        "UpdateContainerResources": {"container_id": container, "linux": {"cpu_shares": "7"}},
    }
    for rule in ({"hang": True}, {"raw": b"\xff\xff\xff"}, {"status": {"code": "ABORTED", "message": "no"}}):
        await plugin.set(rule)
        replies = await asyncio.gather(*(bed.client.call(method, request) for method, request in requests.items()))
        for method, reply in zip(requests, replies, strict=True):
            assert reply.code != "OK", (rule, method)
            assert reply.message.startswith("plugin guard rejected "), (rule, method)
    await plugin.stop()
    for method, request in requests.items():
        assert (await bed.client.call(method, request)).code == "UNAVAILABLE", method

    for method in requests:  # the proxy's own queries for its records may arrive at any time
        assert await bed.runtime.received(method) == []
