"""Regressions found with other implementations and conformance suites."""

from testbed.cri.fixtures import StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed, StartProxy
from tests.integration.runtimeproxy.calls import POD, hooked


async def test_a_runtime_without_cri_is_logged_once(
    start_hook_plugin: StartHookPlugin, start_proxy: StartProxy
) -> None:
    """Like a containerd with CRI disabled; each version of the service fails with its own message."""
    other_server = await start_hook_plugin()
    proxy = await start_proxy(other_server.socket)
    other_server.register(proxy.plugins, "p", ["PreRunPodSandbox"])

    async def was_queried_again() -> bool:
        return len(await other_server.received("ListPodSandbox")) >= 4

    await until(was_queried_again)
    [line] = await proxy.wait_for_lines("cannot list the runtime's sandboxes and containers")
    assert line["error"] == "unknown method /runtime.v1.RuntimeService/ListPodSandbox"


async def test_short_deadlines_do_not_open_a_plugins_circuit(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    """The plugin gets half of a deadline of 0.2 s; a timeout after that does not count as a failure."""
    plugin = await start_hook_plugin({"delay_s": 0.5})
    await hooked(bed, plugin, failure_policy="Fail", timeout=20, hooks=["PreRunPodSandbox"])

    short = await bed.client.repeat("RunPodSandbox", {"config": POD}, count=10, at_once=1, deadline_s=0.2)

    assert "OK" not in short.statuses
    assert (await bed.client.call("RunPodSandbox", {"config": POD})).code == "OK"
