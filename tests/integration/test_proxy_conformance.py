"""What peers and suites that nobody here wrote expect of the runtime proxy, and it once did not do."""

from testbed.cri_fixtures import StartHookPlugin
from testbed.waiting import until
from tests.integration.proxy_bed import StartProxy


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
    [complaint] = proxy.lines("cannot ask the runtime what it has")
    assert complaint["error"] == "unknown method /runtime.v1.RuntimeService/ListPodSandbox"
