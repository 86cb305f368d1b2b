"""Regressions found with gRPC's interoperability tests."""

import pytest
from hyperframe.frame import DataFrame, Frame, RstStreamFrame

from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.raw_client import raw_client
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import hooked

CANCEL = 0x8


@pytest.mark.parametrize("method", ["Version", "RunPodSandbox"])
async def test_end_stream_without_a_message_is_relayed_as_the_client_sent_it(
    bed: Bed, start_hook_plugin: StartHookPlugin, method: str
) -> None:
    """grpc-go's servers do not report END_STREAM on HEADERS to the handler."""
    await hooked(bed, await start_hook_plugin())
    async with raw_client(bed.proxy.socket) as caller:
        await caller.send_preface()
        await caller.send(caller.request(1, method), DataFrame(1, b"", flags=["END_STREAM"]))

        async def has_answer() -> Frame | None:
            frame = await caller.read()
            return frame if frame is not None and frame.stream_id and "END_STREAM" in frame.flags else None

        await until(has_answer)
    assert await bed.runtime.open_calls() == 0


async def test_a_call_cancelled_at_once_logs_nothing(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    """grpc-js sends HEADERS and RST_STREAM together if a call is cancelled at once."""
    await hooked(bed, await start_hook_plugin())
    cancelled = 'governor_proxy_held_calls_total{call="RunPodSandbox",outcome="cancelled"}'
    before = await bed.proxy.metric(cancelled)
    async with raw_client(bed.proxy.socket) as caller:
        await caller.send_preface()
        await caller.send(
            b"".join(
                frame.serialize()
                for stream in range(1, 41, 2)
                for frame in (
                    caller.request(stream, "RunPodSandbox"),
                    caller.message(stream),
                    RstStreamFrame(stream, CANCEL),
                )
            )
        )
        await bed.proxy.wait_for_metric(cancelled, before + 20)
    assert await bed.proxy.metric("governor_proxy_streams") == 0
    assert not [line for line in bed.proxy.logged().splitlines() if '"level":"warning"' in line]
