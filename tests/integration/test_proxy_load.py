"""Everything at once on one connection with small windows, and what remains of it."""

import pytest

from testbed.cri_client import Kind
from testbed.cri_fixtures import StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri_peers import FakeRuntime
from testbed.waiting import until
from tests.integration.proxy_bed import RuntimeProxy, StartProxy

WINDOW = 64 * 1024
LIST_BYTES = 16 * 1024 * 1024


def _when(prefix: str) -> dict[str, object]:
    when = {"path": ["container_meta", "name"], "prefix": prefix}
    return {"method": "PreCreateContainerHook", "when": when}


async def _storm(
    creates: int,
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> tuple[FakeRuntime, RuntimeProxy]:
    runtime = await start_fake_runtime(
        {"method": "ListContainers", "answer": {}, "answer_bytes": LIST_BYTES}, window_bytes=WINDOW
    )
    proxy = await start_proxy(runtime.socket)
    plugin = await start_hook_plugin(
        {**_when("refused"), "status": {"code": "PERMISSION_DENIED", "message": "no"}},
        {**_when("cancelled"), "hang": True},
        {**_when("longer"), "answer": {"container_annotations": {"long": "x" * 200_000}}},
        {**_when("shorter"), "answer": {"container_annotations": {"padding": ""}}},
    )
    plugin.register(proxy.plugins, "p", ["PreCreateContainer"], failure_policy="Fail", timeout=30)
    await proxy.knows(1)
    client = await start_cri_client(proxy.socket, WINDOW)
    pod = (await client.answer("RunPodSandbox", {"config": {"metadata": {"name": "p"}}}))["pod_sandbox_id"]
    create = {
        "pod_sandbox_id": pod,
        "config": {"metadata": {"name": "{name}"}, "annotations": {"padding": "{padding}"}},
        "sandbox_config": {"metadata": {"name": "p"}},
    }
    kinds = [
        Kind("plain"),
        Kind("refused"),
        Kind("cancelled", cancel_after_s=0.05),
        Kind("longer"),
        Kind("shorter", padding_bytes=200_000),
    ]
    storm = await client.storm(create, kinds, creates=creates, at_once=50, lists=creates // 50)

    each = creates // len(kinds)
    assert storm.creates == {
        "plain": {"OK": each},
        "refused": {"PERMISSION_DENIED": each},
        "cancelled": {"CANCELLED": each},
        "longer": {"OK": each},
        "shorter": {"OK": each},
    }
    assert storm.list_sizes.keys() == {LIST_BYTES}
    assert storm.lists.keys() == {"OK"}
    assert storm.lists["OK"] >= creates // 50
    assert storm.events > 0
    assert storm.wire.errors == ()
    assert storm.wire.connections == 1
    return runtime, proxy


async def _is_calm(runtime: FakeRuntime, proxy: RuntimeProxy) -> None:
    async def look() -> bool:
        return await runtime.open_calls() == 0 and await proxy.metric("governor_proxy_held_bytes") == 0

    await until(look)


async def test_held_refused_cancelled_and_rewritten_calls_share_a_connection(
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    await _is_calm(*await _storm(500, start_fake_runtime, start_proxy, start_cri_client, start_hook_plugin))


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_ten_thousand_such_calls_leave_nothing_behind(
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    await _is_calm(*await _storm(10_000, start_fake_runtime, start_proxy, start_cri_client, start_hook_plugin))
