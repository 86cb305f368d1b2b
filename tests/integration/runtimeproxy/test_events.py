"""Events of real containers (containerd 2) through the runtime proxy while its plugins change."""

import pytest

from testbed.cri.client import CriClient, Progress
from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.pods import Pod, container, sandbox
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import ended
from tests.integration.runtimeproxy.bed import RealBed, StartRealBed
from tests.integration.runtimeproxy.calls import ALL

LIFE_CYCLE = {"CREATED", "STARTED", "STOPPED", "DELETED"}


async def run_and_remove(client: CriClient, runtime: CriRuntime, name: str) -> str:
    """Run and remove a pod with a container; return the container's id."""
    pod = await Pod.run(client, sandbox(name, runtime.cgroup))
    created = await pod.create(container("short"))
    await pod.start(created)
    await pod.stop(created)
    await pod.remove(created)
    await pod.end()
    return created


def events_of(container_id: str, seen: Progress) -> set[str]:
    kinds = [each.get("container_event_type", "") for each in seen.answers if each["container_id"] == container_id]
    # The zero value of an enumeration is left out of JSON.
    return {kind.removeprefix("CONTAINER_").removesuffix("_EVENT") or "CREATED" for kind in kinds}


@pytest.mark.parametrize("recipe", ["containerd-2"])
async def test_d7_events_of_real_containers_arrive_while_plugins_are_added_and_removed(
    real_bed: RealBed, start_hook_plugin: StartHookPlugin
) -> None:
    runtime, proxy, client = real_bed.runtime, real_bed.proxy, real_bed.client
    plugin = await start_hook_plugin()
    async with client.stream("GetContainerEvents") as from_copied:
        first = await run_and_remove(client, runtime, "copied")
        await from_copied.until(lambda seen: events_of(first, seen) == LIFE_CYCLE)
        file = plugin.register(proxy.plugins, "p", ALL, failure_policy="Fail")
        await proxy.wait_for_plugins(1)
        async with client.stream("GetContainerEvents") as from_relayed:
            second = await run_and_remove(client, runtime, "relayed")
            for events in (from_copied, from_relayed):
                await events.until(lambda seen: events_of(second, seen) == LIFE_CYCLE)
            other = plugin.register(proxy.plugins, "q", ["PreRunPodSandbox"])
            await proxy.wait_for_plugins(2)
            file.unlink()
            other.unlink()
            await proxy.wait_for_plugins(0)
            third = await run_and_remove(client, runtime, "unhooked")
            for events in (from_copied, from_relayed):
                assert (await events.until(lambda seen: events_of(third, seen) == LIFE_CYCLE)).code == ""

    assert len(await plugin.received()) == len(ALL) - 1  # nothing was updated
    assert (await client.wire()).errors == ()


@pytest.mark.parametrize("mode", ["copied", "relayed"])
async def test_a_watch_of_real_containers_ends_with_an_upgrade_and_reconnects(
    mode: str, start_real_bed: StartRealBed, start_hook_plugin: StartHookPlugin
) -> None:
    bed = await start_real_bed("containerd-2")
    if mode == "relayed":
        (await start_hook_plugin()).register(bed.proxy.plugins, "p", ALL, failure_policy="Fail")
        await bed.proxy.wait_for_plugins(1)
    async with bed.client.stream("GetContainerEvents") as watch:
        before = await run_and_remove(bed.client, bed.runtime, "before")
        await watch.until(lambda seen: events_of(before, seen) == LIFE_CYCLE)
        replaced = await bed.proxy.upgrade()
        assert (await watch.until(lambda seen: bool(seen.code))).code == "UNAVAILABLE"
    # What happens in between containerd may or may not deliver later, without a proxy too.
    async with bed.client.stream("GetContainerEvents") as again:
        after = await run_and_remove(bed.client, bed.runtime, "after")
        assert (await again.until(lambda seen: events_of(after, seen) == LIFE_CYCLE)).code == ""
    await ended(replaced)
