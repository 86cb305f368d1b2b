"""The CRI client, the fake runtime and the plugin of the test bed report exactly what passed between them."""

import asyncio
import subprocess

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived

from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest
from testbed.cri.client import V1ALPHA2, CriClient
from testbed.cri.fixtures import StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.peers import FakeRuntime
from toolchain import cache
from toolchain.golang import GO
from toolchain.repository import REPOSITORY

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


async def test_repeated_calls_are_counted_and_timed(runtime: FakeRuntime, client: CriClient) -> None:
    request = {"config": {"metadata": {"name": "pod-{n}"}}}
    seen = await client.repeat("RunPodSandbox", request, count=40, at_once=16)
    assert seen.statuses == {"OK": 40}
    assert 0 < seen.min_s <= seen.p50_s <= seen.p90_s <= seen.p99_s <= seen.max_s
    names = {call.request["config"]["metadata"]["name"] for call in await runtime.received()}
    assert names == {f"pod-{number}" for number in range(40)}


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


async def test_a_plugin_reads_what_the_product_writes(
    start_hook_plugin: StartHookPlugin, start_cri_client: StartCriClient
) -> None:
    plugin = await start_hook_plugin()
    client = await start_cri_client(plugin.socket)
    await client.call(CREATE_HOOK, raw=HOOK_REQUEST.SerializeToString())
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
