"""The CRI client, the fake runtime and the plugin of the test bed report exactly what passed between them."""

import asyncio
import subprocess

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived

from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest, ContainerResourceHookResponse
from testbed.cri.client import V1ALPHA2, CriClient, Kind
from testbed.cri.fixtures import StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.peers import FakeRuntime, HookPlugin
from testbed.cri.pods import Pod, container, sandbox
from testbed.waiting import until
from toolchain import cache
from toolchain.golang import GO
from toolchain.repository import REPOSITORY

LARGE = 16 << 20
SMALL_WINDOW = 64 << 10
UNKNOWN_FIELD = b"\xf2\xc8\x3a\x03new"
CREATE_HOOK = "/runtime.v1alpha1.RuntimeHookService/PreCreateContainerHook"
HOOK_REQUEST = ContainerResourceHookRequest(
    pod_meta={"name": "one", "namespace": "default", "uid": "u", "attempt": 2},
    container_meta={"name": "sleeper", "attempt": 1},
    container_annotations={"a": "1"},
    container_resources={"cpu_shares": 300, "oom_score_adj": -5, "unified": {"memory.high": "1"}},
    pod_resources={
        "cpu_quota": -1,
        "memory_swap_limit_in_bytes": 7,
        "hugepage_limits": [{"page_size": "2MB", "limit": 8}],
    },
    pod_annotations={"b": "2"},
    pod_labels={"c": "3"},
    pod_cgroup_parent="/one",
    container_envs={"d": "4"},
)


def test_the_programs_are_formatted() -> None:
    gofmt = cache.provide(GO).with_name("gofmt")
    module = REPOSITORY / "testbed" / "go"
    unformatted = subprocess.run([gofmt, "-l", module], capture_output=True, text=True, check=True)
    assert unformatted.stdout == ""


@pytest.fixture
async def runtime(start_fake_runtime: StartFakeRuntime) -> FakeRuntime:
    return await start_fake_runtime()


@pytest.fixture
async def client(runtime: FakeRuntime, start_cri_client: StartCriClient) -> CriClient:
    return await start_cri_client(runtime.socket)


@pytest.fixture
async def plugin(start_hook_plugin: StartHookPlugin) -> HookPlugin:
    return await start_hook_plugin()


@pytest.fixture
async def proxy(plugin: HookPlugin, start_cri_client: StartCriClient) -> CriClient:
    """A client of the plugin, in place of the proxy."""
    return await start_cri_client(plugin.socket)


async def test_a_fake_pod_runs_through_its_life_cycle(runtime: FakeRuntime, client: CriClient) -> None:
    async with client.stream("GetContainerEvents") as events:
        await until(runtime.open_calls)
        pod = await Pod.run(client, sandbox("one", "cgroup"))
        created = await pod.create(container("sleeper", linux={"resources": {"cpu_shares": 300}}))
        await pod.start(created)
        await runtime.exit(created)
        await events.until(lambda seen: seen.count == 5)
    listed = await client.answer("ListContainers")
    assert [each["state"] for each in listed["containers"]] == ["CONTAINER_EXITED"]
    update = {"container_id": created, "linux": {"cpu_quota": 9}}
    await client.answer("UpdateContainerResources", update)
    status = await client.answer("ContainerStatus", {"container_id": created, "verbose": True})
    assert status["status"]["resources"]["linux"] == {"cpu_shares": "300", "cpu_quota": "9"}
    assert '"name":"sleeper"' in status["info"]["info"]
    await pod.end()
    assert await client.answer("ListContainers") == {}
    assert (await client.call("ContainerStatus", {"container_id": created})).code == "NOT_FOUND"


async def test_the_runtime_records_exactly_what_it_received(runtime: FakeRuntime, client: CriClient) -> None:
    request = {"config": {"linux": {"resources": {"unified": {"memory.high": "1"}}}}}
    metadata = {"traceparent": ["00-1-2-03"], "secret-bin": ["AP8="], "twice": ["a", "b"]}
    sent = {"raw": UNKNOWN_FIELD, "metadata": metadata, "deadline_s": 70.0, "compressor": "gzip"}
    await client.answer("RunPodSandbox", request, package=V1ALPHA2, **sent)
    (call,) = await runtime.received("RunPodSandbox")
    assert call.method == "/runtime.v1alpha2.RuntimeService/RunPodSandbox"
    assert call.request == request
    assert call.unknown == {"": UNKNOWN_FIELD}
    assert call.raw.endswith(UNKNOWN_FIELD)
    assert {name: call.metadata[name] for name in metadata} == metadata
    assert call.metadata["content-type"] == ["application/grpc"]
    assert 0 < call.deadline_s <= 70
    assert call.status["code"] == "OK"
    assert await runtime.statuses() == {"RunPodSandbox": {"OK": 1}}


async def test_the_client_reports_exactly_what_it_received(runtime: FakeRuntime, client: CriClient) -> None:
    detail = {"type_url": "type.googleapis.com/reason", "value": b"\x00\xff"}
    await runtime.set(
        {
            "method": "StopContainer",
            "headers": {"early": ["1"]},
            "trailers": {"late-bin": ["AP8="]},
            "status": {"code": "ABORTED", "message": "not näw", "details": [detail]},
        }
    )
    reply = await client.call("StopContainer", {"container_id": "x"})
    assert (reply.code, reply.message, reply.details) == ("ABORTED", "not näw", (detail,))
    assert reply.headers["early"] == ["1"]
    assert reply.trailers["late-bin"] == ["AP8="]


async def test_rules_apply_to_matching_calls_a_limited_number_of_times(runtime: FakeRuntime, client: CriClient) -> None:
    path = {"path": ["config", "metadata", "name"], "prefix": "bad-"}
    refused = {"method": "RunPodSandbox", "when": path, "times": 1, "status": {"code": "UNAVAILABLE"}}
    await runtime.set(refused)
    names = ["good-1", "bad-1", "bad-2"]
    replies = [await client.call("RunPodSandbox", {"config": {"metadata": {"name": name}}}) for name in names]
    assert [reply.code for reply in replies] == ["OK", "UNAVAILABLE", "OK"]


@pytest.mark.parametrize("window_bytes", [0, SMALL_WINDOW])
async def test_large_messages_pass_both_ways(
    window_bytes: int, start_fake_runtime: StartFakeRuntime, start_cri_client: StartCriClient
) -> None:
    runtime = await start_fake_runtime({"method": "ListContainers", "answer_bytes": LARGE}, window_bytes=window_bytes)
    client = await start_cri_client(runtime.socket, window_bytes)
    replies = [await client.call("ListContainers") for _ in range(2)]
    assert [reply.size for reply in replies] == [LARGE, LARGE]
    assert replies[0].sha256 == replies[1].sha256
    request = {"config": {"annotations": {"long": "x" * LARGE}}}
    assert (await client.call("RunPodSandbox", request)).code == "OK"
    assert (await runtime.received("RunPodSandbox"))[0].size > LARGE


async def test_unknown_methods_and_services_can_be_scripted(runtime: FakeRuntime, client: CriClient) -> None:
    assert (await client.call("/runtime.v1.RuntimeService/Later", raw=b"x")).code == "UNIMPLEMENTED"
    await runtime.set({"method": "Later", "raw": b"answer", "repeat": 3})
    async with client.stream("/later.v9.Service/Later", raw=b"x") as later:
        assert (await later.until(lambda seen: seen.code == "OK")).raw == (b"answer",) * 3
    async with client.stream("/testbed.Echo/Both", raw=b"1", more=[b"2", b""]) as both:
        assert (await both.until(lambda seen: seen.code == "OK")).raw == (b"1", b"2", b"")
    assert [call.raw for call in await runtime.received("Later")] == [b"x", b"x"]


async def test_a_cancelled_call_ends_on_both_sides(runtime: FakeRuntime, client: CriClient) -> None:
    await runtime.set({"method": "StopContainer", "hang": True})
    replies = await asyncio.gather(
        client.call("StopContainer", deadline_s=3), client.call("StopContainer", cancel_after_s=3)
    )
    assert [reply.code for reply in replies] == ["DEADLINE_EXCEEDED", "CANCELLED"]

    async def both_ended() -> bool:
        return await runtime.open_calls() == 0

    await until(both_ended)
    wire = await client.wire()
    assert wire.endings["sent RST_STREAM CANCEL"] >= 1  # the runtime may notice the deadline first
    assert wire.errors == ()


async def test_repeated_calls_are_counted_and_timed(runtime: FakeRuntime, client: CriClient) -> None:
    request = {"config": {"metadata": {"name": "pod-{n}"}}}
    seen = await client.repeat("RunPodSandbox", request, count=40, at_once=16)
    assert seen.statuses == {"OK": 40}
    assert 0 < seen.min_s <= seen.p50_s <= seen.p90_s <= seen.p99_s <= seen.max_s
    names = {call.request["config"]["metadata"]["name"] for call in await runtime.received()}
    assert names == {f"pod-{number}" for number in range(40)}


async def test_a_storm_on_one_connection_with_small_windows_is_counted(
    start_fake_runtime: StartFakeRuntime, start_cri_client: StartCriClient
) -> None:
    held = {"path": ["config", "metadata", "name"], "prefix": "given-up"}
    refused = {"path": ["config", "metadata", "name"], "prefix": "refused"}
    runtime = await start_fake_runtime(
        {"method": "ListContainers", "answer_bytes": LARGE},
        {"method": "CreateContainer", "when": held, "hang": True},
        {"method": "CreateContainer", "when": refused, "status": {"code": "PERMISSION_DENIED", "message": "no"}},
        window_bytes=SMALL_WINDOW,
    )
    client = await start_cri_client(runtime.socket, SMALL_WINDOW)
    pod = await Pod.run(client, sandbox("one", "cgroup"))
    create = {
        "pod_sandbox_id": pod.id,
        "config": {"metadata": {"name": "{name}"}, "annotations": {"long": "{padding}"}},
    }
    kinds = [
        Kind("plain", padding_bytes=100_000),
        Kind("refused", padding_bytes=10),
        Kind("given-up", cancel_after_s=0.05),
    ]
    seen = await client.storm(create, kinds, creates=150, lists=4)
    assert seen.creates == {
        "plain": {"OK": 50},
        "refused": {"PERMISSION_DENIED": 50},
        "given-up": {"CANCELLED": 50},
    }
    assert seen.messages["refused"] == ["no"]
    assert seen.list_sizes == {LARGE: seen.lists["OK"]}
    assert seen.lists["OK"] >= 4
    (events,) = await runtime.received("GetContainerEvents")
    assert 0 < seen.events <= events.answers
    assert seen.events_ended is None
    assert (seen.wire.connections, seen.wire.errors) == (1, ())


async def test_an_unexpected_reset_is_an_error_on_the_wire(
    tmp_path_factory: pytest.TempPathFactory, start_cri_client: StartCriClient
) -> None:
    socket = tmp_path_factory.mktemp("bad") / "socket"
    server = await asyncio.start_unix_server(_reset_everything, socket)
    client = await start_cri_client(socket)
    assert (await client.call("Version")).code == "INTERNAL"
    assert (await client.wire()).errors == ("received RST_STREAM PROTOCOL_ERROR on stream 1 ",)
    server.close()


async def _reset_everything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset every request with PROTOCOL_ERROR."""
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    while data := await reader.read(65536):
        for event in connection.receive_data(data):
            if isinstance(event, RequestReceived):
                connection.reset_stream(event.stream_id, ErrorCodes.PROTOCOL_ERROR)
        writer.write(connection.data_to_send())
    writer.close()


async def test_a_plugin_without_rules_changes_nothing(plugin: HookPlugin, proxy: CriClient) -> None:
    reply = await proxy.call(CREATE_HOOK, raw=HOOK_REQUEST.SerializeToString())
    assert (reply.code, reply.raw) == ("OK", b"")
    assert (await proxy.call("/runtime.v1alpha1.RuntimeHookService/Later")).code == "UNIMPLEMENTED"


async def test_a_plugin_reads_what_the_product_writes(plugin: HookPlugin, proxy: CriClient) -> None:
    await proxy.call(CREATE_HOOK, raw=HOOK_REQUEST.SerializeToString())
    (call,) = await plugin.received()
    assert call.unknown == {}
    assert call.request == {
        "pod_meta": {"name": "one", "namespace": "default", "uid": "u", "attempt": 2},
        "container_meta": {"name": "sleeper", "attempt": 1},
        "container_annotations": {"a": "1"},
        "container_resources": {"cpu_shares": "300", "oom_score_adj": "-5", "unified": {"memory.high": "1"}},
        "pod_resources": {
            "cpu_quota": "-1",
            "memory_swap_limit_in_bytes": "7",
            "hugepage_limits": [{"page_size": "2MB", "limit": "8"}],
        },
        "pod_annotations": {"b": "2"},
        "pod_labels": {"c": "3"},
        "pod_cgroup_parent": "/one",
        "container_envs": {"d": "4"},
    }


async def test_a_plugin_echoes_and_sets_fields(plugin: HookPlugin, proxy: CriClient) -> None:
    await plugin.set({"echo": True, "answer": {"container_resources": {"cpu_shares": 5}, "container_envs": {"e": "5"}}})
    reply = await proxy.call(CREATE_HOOK, raw=HOOK_REQUEST.SerializeToString())
    assert ContainerResourceHookResponse.FromString(reply.raw) == ContainerResourceHookResponse(
        container_annotations={"a": "1"},
        container_resources={"cpu_shares": 5, "oom_score_adj": -5, "unified": {"memory.high": "1"}},
        pod_cgroup_parent="/one",
        container_envs={"d": "4", "e": "5"},
    )


async def test_a_plugin_misbehaves_as_scripted(plugin: HookPlugin, proxy: CriClient) -> None:
    await plugin.set({"raw": b"\xff\xff"})
    assert (await proxy.call(CREATE_HOOK)).raw == b"\xff\xff"
    await plugin.set({"delay_s": 5})
    assert (await proxy.call(CREATE_HOOK, deadline_s=0.1)).code == "DEADLINE_EXCEEDED"
    await plugin.set({"crash": True})
    assert (await proxy.call(CREATE_HOOK)).code == "UNAVAILABLE"
    assert await plugin.ended() == 3
    await plugin.kill()
    await plugin.start()
    assert (await proxy.call(CREATE_HOOK, wait_for_ready=True)).code == "UNAVAILABLE"
