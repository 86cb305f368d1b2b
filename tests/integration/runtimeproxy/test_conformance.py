"""What peers and suites that nobody here wrote expect of the runtime proxy, and it once did not do."""

from testbed.cri.fixtures import StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, StartProxy
from tests.integration.runtimeproxy.calls import POD, hooked


async def test_a_runtime_without_kubelets_interface_is_complained_of_once(
    start_hook_plugin: StartHookPlugin, start_proxy: StartProxy
) -> None:
    """As a containerd that has it switched off; each version of the interface is denied in words of its own."""
    stranger = await start_hook_plugin()
    proxy = await start_proxy(stranger.socket)
    stranger.register(proxy.plugins, "p", ["PreRunPodSandbox"])

    async def was_asked_again() -> bool:
        return len(await stranger.received("ListPodSandbox")) >= 6

    await until(was_asked_again)
    [complaint] = proxy.lines("cannot list the runtime's sandboxes and containers")
    assert complaint["error"] == "unknown method /runtime.v1.RuntimeService/ListPodSandbox"


async def test_a_plugin_is_not_left_alone_for_callers_that_are_in_a_hurry(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    """Of a deadline of 0.2 s it gets the half; that it needs more does not concern those who leave it its time."""
    plugin = await start_hook_plugin({"delay_s": 0.5})
    await hooked(bed, plugin, failure_policy="Fail", timeout=20, hooks=["PreRunPodSandbox"])

    hurried = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=10, at_once=1, deadline_s=0.2)

    assert "OK" not in hurried.statuses
    assert (await bed.client.call("RunPodSandbox", {"config": POD})).code == "OK"
