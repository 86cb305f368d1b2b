"""The runtime proxy is transparent to all calls, with and without plugins."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from testbed.cri.client import Progress
from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, StartProxy

MIB = 1024 * 1024


class Recorder:
    """A forwarding socket that records all bytes of each connection in both directions."""

    def __init__(self) -> None:
        self.target = Path()
        self._all: list[tuple[bytearray, bytearray]] = []

    @property
    def conversation(self) -> tuple[bytes, bytes]:
        """Return the bytes of the one connection with data; the proxy's probe sends none."""
        [(up, down)] = [each for each in self._all if each[0]] or [(bytearray(), bytearray())]
        return bytes(up), bytes(down)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        up, down = bytearray(), bytearray()
        self._all.append((up, down))
        far_reader, far_writer = await asyncio.open_unix_connection(str(self.target))
        await asyncio.gather(_copy(reader, far_writer, up), _copy(far_reader, writer, down))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while data := await reader.read(65536):
            kept += data
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_without_plugins_bytes_are_identical_on_both_sides(
    start_fake_runtime: StartFakeRuntime,
    start_proxy: StartProxy,
    start_cri_client: StartCriClient,
    peer_directory: MakeDirectory,
) -> None:
    runtime = await start_fake_runtime()
    places = peer_directory()
    places.mkdir()
    upstream, downstream = Recorder(), Recorder()
    upstream.target = runtime.socket
    async with await asyncio.start_unix_server(upstream.serve, str(places / "upstream")):
        proxy = await start_proxy(places / "upstream")
        downstream.target = proxy.socket
        async with await asyncio.start_unix_server(downstream.serve, str(places / "downstream")):
            client = await start_cri_client(places / "downstream")
            for number in range(20):
                await client.answer("Version", {"version": str(number)})
            await client.call("/testbed.Echo/Any", raw=b"x" * MIB)

            async def at_rest() -> tuple[tuple[bytes, bytes], ...]:
                """Return both recordings while no bytes are in flight; at the close one side may receive more."""
                seen = downstream.conversation, upstream.conversation
                return seen if list(map(len, seen[0])) == list(map(len, seen[1])) else ()

            client_side, runtime_side = await until(at_rest)
            await client.stop()
            await proxy.stop()
    assert len(client_side[0]) > MIB
    assert client_side == runtime_side


async def test_an_unknown_method_passes(either_bed: Bed) -> None:
    reply = await either_bed.client.call("/runtime.v9.Future/Method", raw=b"\x01\x02")
    echoed = await either_bed.client.call("/testbed.Echo/Anything", raw=b"\xff\x00\x01")

    assert reply.code == "UNIMPLEMENTED"
    assert "/runtime.v9.Future/Method" in reply.message
    assert echoed.raw == b"\xff\x00\x01"


async def test_d7_container_events_stream_while_other_calls_pass(either_bed: Bed) -> None:
    client, sandbox = either_bed.client, {"config": {"metadata": {"name": "p", "uid": "u"}}}
    async with client.stream("GetContainerEvents") as events:

        async def is_subscribed() -> bool:
            """Run a pod; the runtime sends its events to streams that it has registered, a moment after the call."""
            await client.answer("RunPodSandbox", sandbox)
            return (await events.progress()).count > 0

        await until(is_subscribed)
        ran = (await client.answer("RunPodSandbox", sandbox))["pod_sandbox_id"]
        seen = await events.until(lambda progress: _pods(progress).count(ran) >= 2)

    assert _pods(seen)[-2:] == [ran] * 2
    assert seen.code == ""


def _pods(progress: Progress) -> list[str]:
    return [each["container_id"] for each in progress.answers]


async def test_d8_a_large_response_passes(either_bed: Bed) -> None:
    size = 16 * MIB
    await either_bed.runtime.set({"method": "ListContainers", "answer_bytes": size})

    reply = await either_bed.client.call("ListContainers")

    assert (reply.code, reply.size) == ("OK", size)


async def test_d9_a_large_request_passes(either_bed: Bed) -> None:
    size = 16 * MIB
    message = bytes(range(256)) * (size // 256)

    reply = await either_bed.client.call("/testbed.Echo/Large", raw=message)

    assert (reply.code, reply.size) == ("OK", size)
    assert reply.sha256 == hashlib.sha256(message).hexdigest()


@pytest.mark.parametrize(("variables", "asked"), [(50, 1), (80, 0)])
async def test_d9_a_large_hooked_request_passes(
    bed: Bed, start_hook_plugin: StartHookPlugin, variables: int, asked: int
) -> None:
    """Plugins are not asked about what Linux would refuse to start: more than 6 MiB."""
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "p"}}})
    plugin.register(bed.proxy.plugins, "p", ["PreRunPodSandbox"])
    await bed.proxy.wait_for_plugins(1)
    annotations = {f"key-{number}": "x" * 100_000 for number in range(variables)}

    reply = await bed.client.call("RunPodSandbox", {"config": {"annotations": annotations}})

    received = (await bed.runtime.received("RunPodSandbox"))[-1]
    assert reply.code == "OK"
    assert received.size > variables * 100_000
    assert len(await plugin.received("PreRunPodSandboxHook")) == asked


async def test_a_request_too_large_for_plugins_is_rejected_with_policy_fail(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    plugin.register(bed.proxy.plugins, "p", ["PreRunPodSandbox"], failure_policy="Fail")
    await bed.proxy.wait_for_plugins(1)

    reply = await bed.client.call("RunPodSandbox", {"config": {"annotations": {"large": "x" * (8 * MIB)}}})

    assert reply.code == "RESOURCE_EXHAUSTED"
    assert reply.message == (
        "plugin p could not be called for PreRunPodSandbox: the request is too large to be held for plugins"
    )
    assert await bed.runtime.received("RunPodSandbox") == []
    assert (await bed.client.call("Version")).code == "OK"


async def test_d10_request_metadata_and_deadlines_pass(either_bed: Bed) -> None:
    metadata = {"traceparent": ["00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"], "x-bin": ["AP8B"]}

    await either_bed.client.answer("Version", metadata=metadata, deadline_s=50)

    received = (await either_bed.runtime.received("Version"))[-1]
    assert received.metadata["traceparent"] == metadata["traceparent"]
    assert received.metadata["x-bin"] == ["AP8B"]
    assert 0 < received.deadline_s <= 50


async def test_d11_response_headers_trailers_and_status_details_pass(either_bed: Bed) -> None:
    details = [{"type_url": "type.example/Reason", "value": b"\x0a\x01x"}]
    status = {"code": "RESOURCE_EXHAUSTED", "message": "zu viel, ja", "details": details}
    rule = {"method": "Status", "headers": {"x-head": ["1", "2"]}, "trailers": {"x-tail-bin": ["AAE="]}}
    await either_bed.runtime.set({**rule, "status": status})

    reply = await either_bed.client.call("Status")

    assert (reply.code, reply.message) == ("RESOURCE_EXHAUSTED", "zu viel, ja")
    assert reply.headers["x-head"] == ["1", "2"]
    assert reply.trailers["x-tail-bin"] == ["AAE="]
    assert reply.details == tuple(details)


async def test_a_cancelled_call_is_cancelled_at_the_runtime(either_bed: Bed) -> None:
    await either_bed.runtime.set({"method": "Status", "hang": True})

    reply = await either_bed.client.call("Status", cancel_after_s=0.2)

    async def is_over() -> bool:
        return await either_bed.runtime.open_calls() == 0

    assert reply.code == "CANCELLED"
    await until(is_over)


async def test_image_calls_go_to_a_separate_socket(
    start_fake_runtime: StartFakeRuntime, start_proxy: StartProxy, start_cri_client: StartCriClient
) -> None:
    runtime, images = await start_fake_runtime(), await start_fake_runtime()
    proxy = await start_proxy(runtime.socket, f"--remote-image-service-endpoint={images.socket}")
    client = await start_cri_client(proxy.socket)

    await client.answer("Version")
    await client.answer("ListImages")

    assert [each.method for each in await runtime.received()] == ["/runtime.v1.RuntimeService/Version"]
    assert [each.method for each in await images.received()] == ["/runtime.v1.ImageService/ListImages"]


async def test_many_calls_at_once_leave_no_protocol_error(either_bed: Bed) -> None:
    repetition = await either_bed.client.repeat("Version", count=500, at_once=50)

    assert repetition.statuses == {"OK": 500}
    assert (await either_bed.client.wire()).errors == ()
