"""A node full of pods: records that a restarted proxy rebuilds, and the cost of it."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import pytest

from testbed.cri.control import Json
from testbed.cri.fixtures import StartCriClient, StartHookPlugin
from testbed.cri.peers import HookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import ALL, create_container, hooked, last, run_pod

MIB = 1024 * 1024
WORKERS = 8

Thing = TypeVar("Thing")
Found = TypeVar("Found")


async def for_each(things: Iterable[Thing], act: Callable[[Thing], Awaitable[Found]]) -> list[Found]:
    """Run ``act`` on each item with bounded concurrency and return the results."""
    turn = asyncio.Semaphore(WORKERS)

    async def one(thing: Thing) -> Found:
        async with turn:
            return await act(thing)

    return await asyncio.gather(*map(one, things))


def pod(number: int) -> Json:
    return {
        "metadata": {"name": f"web-{number}", "uid": f"u-{number}", "namespace": f"n-{number % 7}", "attempt": 2},
        "labels": {"app": f"web-{number}", "tier": "x" * (number % 60)},
        "annotations": {"number": str(number), "other": "{}"},
        "linux": {
            "cgroup_parent": f"/kubepods/burstable/pod{number}",
            "overhead": {"cpu_shares": str(number + 1)},
            "resources": {"cpu_shares": str(number + 2), "memory_limit_in_bytes": str(MIB + number)},
        },
    }


def container(number: int, name: str) -> Json:
    resources = {
        "cpu_period": "100000",
        "cpu_quota": str(1000 + number),
        "cpu_shares": str(2 + number),
        "memory_limit_in_bytes": str(MIB + number),
        "oom_score_adj": str(number + 1),
        "cpuset_cpus": "0-1",
        "cpuset_mems": "0",
        "hugepage_limits": [{"page_size": "2MB", "limit": str(number)}] if number else [],
        "unified": {"memory.high": str(number)},
    }
    return {
        "metadata": {"name": name, "attempt": 3},
        "envs": [{"key": "NAME", "value": name.encode()}, {"key": "NUMBER", "value": f"{number}".encode()}],
        "annotations": {"of": name},
        "linux": {"resources": resources},
    }


async def populate(bed: Bed, pods: int) -> tuple[list[str], list[str]]:
    """Run pods with one or two containers; return the ids of pods and containers."""

    async def run(number: int) -> tuple[str, list[str]]:
        answer = await bed.client.answer("RunPodSandbox", {"config": pod(number), "runtime_handler": "runc"})
        names = ["main", "side"][: 1 + number % 2]
        return answer["pod_sandbox_id"], [await make(number, answer["pod_sandbox_id"], name) for name in names]

    async def make(number: int, pod_id: str, name: str) -> str:
        request = {"pod_sandbox_id": pod_id, "config": container(number, name), "sandbox_config": pod(number)}
        return str((await bed.client.answer("CreateContainer", request))["container_id"])

    results = await for_each(range(pods), run)
    return [pod_id for pod_id, _ in results], [each for _, containers in results for each in containers]


def key_of(request: Json) -> tuple[str, str]:
    return request["pod_meta"]["uid"], request["container_meta"]["name"]


async def hook_requests(bed: Bed, plugin: HookPlugin, containers: list[str]) -> dict[str, Json]:
    """Return the hook request for each container and its pod."""
    await plugin.forget()

    async def start(container_id: str) -> None:
        await bed.client.answer("StartContainer", {"container_id": container_id}, wait_for_ready=True)

    await for_each(containers, start)
    requests = [each.request for each in await plugin.received("PreStartContainerHook")]
    return {each["container_meta"]["id"]: each for each in requests}


async def restart(bed: Bed) -> None:
    os.kill(bed.proxy.pid, signal.SIGKILL)
    await bed.proxy.wait_for_exit()
    await bed.proxy.start()


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.soak)])
async def test_records_of_many_pods_are_rebuilt_with_one_query_each(
    own_bed: Bed, start_hook_plugin: StartHookPlugin, count: int
) -> None:
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin, failure_policy="Fail", hooks=[*ALL], remember=["environment"])
    pods, containers = await populate(own_bed, count)
    ran = {each.request["pod_meta"]["uid"]: each.request for each in await plugin.received("PreRunPodSandboxHook")}
    before = {key_of(each.request): each.request for each in await plugin.received("PreCreateContainerHook")}
    full = own_bed.proxy.resident_bytes()
    await own_bed.runtime.forget()

    await restart(own_bed)
    await own_bed.proxy.wait_for_metric('governor_proxy_records{kind="sandbox"}', len(pods))
    await own_bed.proxy.wait_for_metric('governor_proxy_records{kind="container"}', len(containers))
    queries = await own_bed.runtime.statuses()
    after = await hook_requests(own_bed, plugin, containers)
    rebuilt = own_bed.proxy.resident_bytes()

    async def stop(pod_id: str) -> None:
        await own_bed.client.answer("StopPodSandbox", {"pod_sandbox_id": pod_id})

    await for_each(pods, stop)
    stopped = [each.request for each in await plugin.received("PostStopPodSandboxHook")]
    print(f"{count} pods: {full / MIB:.1f} MiB resident, {rebuilt / MIB:.1f} MiB after the rebuild")  # noqa: T201 - a fact
    assert queries == {
        "ListPodSandbox": {"OK": 1},
        "ListContainers": {"OK": 1},
        "PodSandboxStatus": {"OK": len(pods)},
        "ContainerStatus": {"OK": len(containers)},
    }
    assert len(before) == len(after) == len(containers) == count * 3 // 2
    for container_id, known in after.items():
        request = before[key_of(known)]
        # A container has no id before it is created.
        expected = {**request, "container_meta": {**request["container_meta"], "id": container_id}}
        for field in {*known, *expected}:
            assert known.get(field) == expected.get(field), field
    assert {each["pod_meta"]["uid"]: each for each in stopped} == ran
    assert max(full, rebuilt) < 96 * MIB


async def test_a_call_before_the_rebuild_has_finished_fetches_only_its_own_records(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    """Kubelet may call at once, while the runtime is slow to list what it has."""
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin, failure_policy="Fail", hooks=[*ALL])
    ran = await own_bed.client.answer("RunPodSandbox", {"config": pod(1)})
    request = {"pod_sandbox_id": ran["pod_sandbox_id"], "config": container(1, "main"), "sandbox_config": pod(1)}
    containers = [(await own_bed.client.answer("CreateContainer", request))["container_id"] for _ in range(20)]
    await own_bed.runtime.set({"method": "ListPodSandbox", "hang": True})
    await own_bed.runtime.forget()
    await restart(own_bed)

    known = await hook_requests(own_bed, plugin, containers)

    lists = await own_bed.runtime.received("ListContainers")
    assert {each["pod_meta"]["name"] for each in known.values()} == {"web-1"}
    assert len(known) == len(containers)
    assert sorted(each.request["filter"]["id"] for each in lists) == sorted(containers)
    assert len(await own_bed.runtime.received("PodSandboxStatus")) <= WORKERS


async def test_after_an_update_with_unknown_outcome_the_record_is_fetched_again(
    bed: Bed, start_cri_client: StartCriClient, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(bed, plugin)
    pod_id = await run_pod(bed, linux={"resources": {"cpu_shares": "1"}})
    container_id = await create_container(bed, pod_id)
    direct = await start_cri_client(bed.runtime.socket)
    update = {"container_id": container_id, "linux": {"cpu_shares": "900"}}
    pod_update = {"pod_sandbox_id": pod_id, "resources": {"cpu_shares": "800"}}
    await direct.answer("UpdateContainerResources", update)
    await direct.answer("UpdatePodSandboxResources", pod_update)
    await bed.runtime.set({"method": "UpdateContainerResources", "hang": True}, {"status": {"code": "UNKNOWN"}})

    async with bed.client.stream("UpdateContainerResources", update) as call:
        await until(bed.runtime.open_calls)
        lost = await call.end()
    failed = await bed.client.call("UpdatePodSandboxResources", pod_update)
    await bed.runtime.set()
    await bed.client.answer("StopContainer", {"container_id": container_id})

    hook_request = (await last(plugin, "PostStopContainerHook")).request
    assert (lost.code, failed.code) == ("CANCELLED", "UNKNOWN")
    assert hook_request["container_resources"]["cpu_shares"] == "900"
    assert hook_request["pod_resources"]["cpu_shares"] == "800"
