"""Defects of koord-runtime-proxy's Docker mode that ours must not have, and requests at the edge of what is held."""

import asyncio
import json
from typing import Any

import pytest

from testbed.cri.fixtures import StartHookPlugin
from testbed.docker.engine import EngineError, connected
from tests.integration.runtimeproxy.docker.bed import IDENTITY, DockerBed
from tests.integration.runtimeproxy.docker.test_hooks import hooked, received


async def test_a_name_of_seven_parts_and_one_of_five_are_created(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin)
    sandbox = await docker_bed.create_sandbox()

    await docker_bed.create_container(sandbox, name="k8s_app_web_shop_uid-1_3_3f9a2b1c")
    other = await docker_bed.engine(
        "POST", "/containers/create", {"Image": docker_bed.dockerd.image}, {"name": "k8s_app_web_shop_uid-1"}
    )

    [seen] = await plugin.received("PreCreateContainerHook")
    assert seen.request["container_meta"] == {"name": "app", "attempt": 3}
    assert (await docker_bed.inspect(other["Id"]))["Name"] == "/k8s_app_web_shop_uid-1"


@pytest.mark.parametrize("operation", ["start", "stop", "kill", "restart", "update"])
async def test_an_unknown_id_is_forwarded_and_dockerd_answers(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin, operation: str
) -> None:
    await hooked(docker_bed, await start_hook_plugin(), failure_policy="Fail")

    with pytest.raises(EngineError, match=r"No such container: no-such.one") as raised:
        await docker_bed.engine("POST", f"/containers/no-such.one/{operation}", {})

    assert raised.value.status == 404


async def test_zeros_of_a_plugin_overwrite_nothing(docker_bed: DockerBed, start_hook_plugin: StartHookPlugin) -> None:
    zeros: dict[str, Any] = {"cpu_shares": "0", "cpu_quota": "0", "memory_limit_in_bytes": "0", "oom_score_adj": "0"}
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "answer": {"container_resources": {**zeros, "cpu_period": "20000"}}},
        {"method": "PreUpdateContainerResourcesHook", "answer": {"container_resources": zeros}},
    )
    await hooked(docker_bed, plugin)
    given = {"CpuShares": 512, "CpuQuota": 40_000, "Memory": 2**26, "OomScoreAdj": 9, "CpusetCpus": "0"}

    made = await docker_bed.create_container(await docker_bed.create_sandbox(), HostConfig=given)
    await docker_bed.engine("POST", f"/containers/{made}/update", {"CpuShares": 300})

    host = (await docker_bed.inspect(made))["HostConfig"]
    assert {name: host[name] for name in given} == {**given, "CpuShares": 300}
    assert host["CpuPeriod"] == 20_000


@pytest.mark.parametrize("version", ["", "/v1.30", "/v1.41"])
async def test_names_with_dots_and_dashes_are_hooked_in_any_version(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin, version: str
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin)
    name = "k8s_side.car-1_web-0.a_shop_uid-1_0"
    sandbox = await docker_bed.create_sandbox()
    await docker_bed.create_container(sandbox, name=name)

    status = await _status(docker_bed, f"POST {version}/containers/{name.replace('.', '%2e')}/start HTTP/1.1\r\n")

    assert status == 204
    assert (await received(plugin))[-2:] == ["PreStartContainer", "PostStartContainer"]


async def _status(bed: DockerBed, request_line: str, more: bytes = b"Content-Length: 0\r\n\r\n") -> int:
    async with connected(bed.proxy.socket) as (reader, writer):
        writer.write(f"{request_line}Host: docker\r\n".encode() + more)
        return int((await reader.readline()).split()[1])


async def test_events_and_logs_arrive_as_they_happen(docker_bed: DockerBed) -> None:
    sandbox = await docker_bed.create_sandbox()
    command: dict[str, Any] = {"Cmd": ["-c", "echo first; read line; echo $line; exec sleep 1000"], "OpenStdin": True}
    made = await docker_bed.create_container(sandbox, **command)
    async with docker_bed.engine.stream("GET", "/events", query={"filters": '{"type":["container"]}'}) as events:
        await docker_bed.engine("POST", f"/containers/{made}/start")
        assert json.loads(await events.content.readline())["Action"] == "start"
        async with docker_bed.engine.stream("GET", f"/containers/{made}/logs?follow=1&stdout=1") as logs:
            assert b"first" in await logs.content.readline()
            async with docker_bed.cli.running("attach", made) as attached:
                assert attached.stdin is not None
                attached.stdin.write(b"second\n")
                await attached.stdin.drain()
                assert b"second" in await logs.content.readline()


async def test_chunked_and_expected_bodies_are_hooked(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "answer": {"container_envs": {"BY": "p"}}},
    )
    await hooked(docker_bed, plugin)
    sandbox = await docker_bed.create_sandbox()
    labels = {
        **IDENTITY,
        "io.kubernetes.container.name": "app",
        "io.kubernetes.docker.type": "container",
        "io.kubernetes.sandbox.id": sandbox,
    }
    body = json.dumps({"Image": docker_bed.dockerd.image, "Labels": labels, "Env": ["A=1"]}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (body[:10], body[10:])) + b"0\r\n\r\n"
    head = b"POST /containers/create HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"

    async with connected(docker_bed.proxy.socket) as (reader, writer):
        writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        first = await _created(reader)
        writer.write(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        second = await _created(reader)

    for made in (first, second):
        environment = (await docker_bed.inspect(made))["Config"]["Env"]
        assert [each for each in environment if not each.startswith("PATH")] == ["A=1", "BY=p"]


async def _created(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 "), head
    [length] = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    return str(json.loads(await reader.readexactly(length))["Id"])


async def test_a_request_too_large_to_be_held_is_refused_or_passes_by_the_failure_policy(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin, hooks=["PreCreateContainer", "PreRunPodSandbox"])
    large = {"x": "y" * (7 * 2**20)}
    name = "k8s_POD_web_shop_uid-1_0"

    passed = await docker_bed.create_sandbox(Labels2=large)
    plugin.register(docker_bed.proxy.plugins, "p", ["PreCreateContainer", "PreRunPodSandbox"], failure_policy="Fail")

    async def refused() -> EngineError:
        while True:
            try:
                await docker_bed.direct("DELETE", f"/containers/{name}")
                await docker_bed.create_sandbox(Labels2=large)
            except EngineError as error:
                return error

    error = await refused()
    assert (await docker_bed.direct("GET", "/containers/json", query={"all": "1"})) == []
    assert passed
    assert error.status == 413
    assert "the request is too large to be held for plugins" in json.loads(str(error).partition(": ")[2])["message"]
    assert await received(plugin) == []


async def test_a_body_that_is_no_configuration_is_left_to_dockerd_or_refused(
    docker_bed: DockerBed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(docker_bed, plugin, hooks=["PreCreateContainer"])
    bodies = [b"", b"{", b"null", b"[1]", b'{"Labels": 3}', b'{"Labels": {"a": null}}', b"\xff"]

    for body in bodies:
        more = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert await _status(docker_bed, "POST /containers/create HTTP/1.1\r\n", more + body) in (400, 500), body

    assert await docker_bed.proxy.metric("governor_proxy_held_bytes") == 0
    assert await received(plugin) == []


async def test_a_prune_leaves_no_records(docker_bed: DockerBed, start_hook_plugin: StartHookPlugin) -> None:
    await hooked(docker_bed, await start_hook_plugin())
    kept = await docker_bed.create_sandbox()
    await docker_bed.engine("POST", f"/containers/{kept}/start")
    for uid in ("uid-2", "uid-3"):
        sandbox = await docker_bed.create_sandbox(name=f"k8s_POD_web_shop_{uid}_0")
        await docker_bed.create_container(sandbox, name=f"k8s_app_web_shop_{uid}_0")
    await docker_bed.proxy.wait_for_metric('governor_proxy_records{kind="sandbox"}', 3)

    pruned = await docker_bed.engine("POST", "/containers/prune")

    assert len(pruned["ContainersDeleted"]) == 4
    async with asyncio.timeout(30):  # before the next periodic comparison with dockerd
        await docker_bed.proxy.wait_for_metric('governor_proxy_records{kind="sandbox"}', 1)
        await docker_bed.proxy.wait_for_metric('governor_proxy_records{kind="container"}', 0)
