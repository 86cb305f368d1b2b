"""All kinds of calls at once on one connection with small windows leave nothing behind."""

import re

import msgspec
import pytest

from testbed.cri.client import CriClient, Kind
from testbed.cri.fixtures import StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.peers import FakeRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import StartProxy

WINDOW = 64 * 1024
LIST_BYTES = 16 * 1024 * 1024
PEERS = ("client", "runtime")
KINDS = (
    Kind("plain"),
    Kind("refused"),
    Kind("cancelled", cancel_after_s=0.05),
    Kind("longer"),
    Kind("shorter", padding_bytes=200_000),
)


def _when(prefix: str) -> dict[str, object]:
    when = {"path": ["container_meta", "name"], "prefix": prefix}
    return {"method": "PreCreateContainerHook", "when": when}


class FlowMetrics(msgspec.Struct, frozen=True):
    """Flow-control metrics of the proxy's connections with the client and the runtime."""

    streams: float
    held: float
    unread: tuple[float, ...]
    receivable: tuple[float, ...]
    """Receive windows."""
    sendable: tuple[float, ...]
    """Send windows."""

    @property
    def is_idle(self) -> bool:
        return not (self.streams or self.held or any(self.unread))


async def _flow_metrics(proxy: RuntimeProxy) -> FlowMetrics:
    _, text = await proxy.get("/metrics")

    def shown(name: str) -> float:
        found = re.search(rf"^governor_proxy_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"no {name} in {text}"
        return float(found[1])

    return FlowMetrics(
        shown("streams"),
        shown("held_bytes"),
        tuple(shown(f'unread_bytes{{peer="{peer}"}}') for peer in PEERS),
        tuple(shown(f'window_bytes{{peer="{peer}",direction="receive"}}') for peer in PEERS),
        tuple(shown(f'window_bytes{{peer="{peer}",direction="send"}}') for peer in PEERS),
    )


async def _when_idle(runtime: FakeRuntime, proxy: RuntimeProxy, client: CriClient) -> FlowMetrics:
    """Return the metrics once no call is in progress; the client's windows are those that its frames imply."""

    async def idle() -> tuple[FlowMetrics, ...]:
        accounts, wire = await _flow_metrics(proxy), await client.wire()
        may_send, may_receive = accounts.receivable[0], accounts.sendable[0]
        # The proxy sends WINDOW_UPDATE only when half of the window is due.
        is_agreed = wire.receive_window == may_receive and may_send / 2 < wire.send_window <= may_send
        return (accounts,) if accounts.is_idle and is_agreed and await runtime.open_calls() == 0 else ()

    return (await until(idle))[0]


async def _storm(
    creates: int,
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
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
    await proxy.wait_for_plugins(1)
    client = await start_cri_client(proxy.socket, WINDOW)
    pod = (await client.answer("RunPodSandbox", {"config": {"metadata": {"name": "p"}}}))["pod_sandbox_id"]
    before = await _when_idle(runtime, proxy, client)
    create = {
        "pod_sandbox_id": pod,
        "config": {"metadata": {"name": "{name}"}, "annotations": {"padding": "{padding}"}},
        "sandbox_config": {"metadata": {"name": "p"}},
    }
    storm = await client.storm(create, KINDS, creates=creates, at_once=50, lists=creates // 50)

    each = creates // len(KINDS)
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
    after = await _when_idle(runtime, proxy, client)
    assert after.receivable == before.receivable
    # Go's peers send WINDOW_UPDATE when a quarter of the window is due; what is missing does not grow with calls.
    for sendable in (*before.sendable, *after.sendable):
        assert WINDOW - WINDOW // 4 < sendable <= WINDOW


async def test_held_refused_cancelled_and_rewritten_calls_share_a_connection(
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    await _storm(250, start_fake_runtime, start_proxy, start_cri_client, start_hook_plugin)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_ten_thousand_such_calls_leave_nothing_behind(
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    start_hook_plugin: StartHookPlugin,
) -> None:
    await _storm(10_000, start_fake_runtime, start_proxy, start_cri_client, start_hook_plugin)
