"""Memory of the running proxy: libraries that it loads, held requests, and what it keeps of containers."""

import asyncio
import json
from pathlib import Path

from testbed.cri.client import Reply
from testbed.cri.fixtures import StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import ALL, hooked, run_pod

MIB = 1024 * 1024
LIMIT_BYTES = 128 * MIB
"""Memory for held requests."""
MARGIN_BYTES = 24 * MIB
"""Code that is loaded on first use, one message that is processed, and buffers of sockets."""


async def test_the_process_loads_neither_openssl_nor_the_command_line(bed: Bed) -> None:
    assert (await bed.client.call("Version")).code == "OK"
    assert (await bed.proxy.get("/metrics"))[0] == 200

    mapped = Path(f"/proc/{bed.proxy.pid}/maps").read_text()
    assert "libpython" in mapped or "python3" in mapped
    assert "uvloop" in mapped
    assert [word for word in ("libssl", "libcrypto", "_ssl.", "_yaml") if word in mapped] == []


async def test_fields_of_rare_characters_are_decoded_with_the_table_that_is_loaded_for_them(own_bed: Bed) -> None:
    await own_bed.proxy.stop()
    (own_bed.proxy.plugins).mkdir(exist_ok=True)
    plugin = {"remote-endpoint": "/nothing.sock", "runtime-hooks": ["PreRunPodSandbox"]}
    (own_bed.proxy.plugins / "p.json").write_text(json.dumps(plugin))
    await own_bed.proxy.start()
    # Clients use Huffman codes where they shorten a text; those of some of its characters have more than eight bits.
    rare = "some rare characters: !{}"
    assert (await own_bed.client.call("Version", metadata={"x-rare": [rare]}, wait_for_ready=True)).code == "OK"
    [seen] = await own_bed.runtime.received("Version")
    assert seen.metadata["x-rare"] == [rare]


async def test_the_proxy_keeps_the_process_id_of_its_command(bed: Bed) -> None:
    command = Path(f"/proc/{bed.proxy.pid}/cmdline").read_bytes().split(b"\0")
    assert b"governor.runtimeproxy" in command
    assert str(bed.proxy.socket) in command[command.index(b"governor.runtimeproxy") + 1].decode()


def creates(bed: Bed, pod: str, count: int, size: int) -> list["asyncio.Task[Reply]"]:
    """Start creates of containers with an environment of this size."""
    value = b"x" * 100_000
    variables = [{"key": f"V{number}", "value": value} for number in range(size // len(value))]
    request = {"pod_sandbox_id": pod, "config": {"metadata": {"name": "c"}, "envs": variables}, "sandbox_config": {}}
    return [asyncio.create_task(bed.client.call("CreateContainer", request)) for _ in range(count)]


async def all_ok(calls: list["asyncio.Task[Reply]"]) -> bool:
    return {reply.code for reply in await asyncio.gather(*calls)} == {"OK"}


async def is_given_back(bed: Bed, before: int) -> None:
    async def has_shrunk() -> bool:
        return bed.proxy.resident_bytes() - before < MARGIN_BYTES

    await until(has_shrunk)


async def test_held_requests_cost_at_most_three_times_their_size_and_give_it_back(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    count, size = 6, 4 * MIB
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "hang": True})
    await hooked(own_bed, plugin, timeout=60)
    pod = await run_pod(own_bed)
    before = own_bed.proxy.resident_bytes()
    calls = creates(own_bed, pod, count, size)

    async def are_asked() -> bool:
        return await plugin.open_calls() == count

    await until(are_asked)
    held = own_bed.proxy.resident_bytes()
    await plugin.kill()

    assert await all_ok(calls)
    assert held - before < 3 * count * size + MARGIN_BYTES
    await is_given_back(own_bed, before)


async def test_requests_beyond_the_limit_wait_until_there_is_memory(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    count, size = 16, 5 * MIB
    plugin = await start_hook_plugin({"method": "PreCreateContainerHook", "delay_s": 0.5})
    await hooked(own_bed, plugin, failure_policy="Fail", timeout=60)
    pod = await run_pod(own_bed)
    before = own_bed.proxy.resident_bytes()
    calls = creates(own_bed, pod, count, size)

    async def some_wait() -> bool:
        return await own_bed.proxy.metric("governor_proxy_waiting_requests") > 0

    await until(some_wait)
    held = own_bed.proxy.resident_bytes()

    assert await all_ok(calls)
    assert held - before < LIMIT_BYTES + MARGIN_BYTES
    assert len(await plugin.received("PreCreateContainerHook")) == count
    await is_given_back(own_bed, before)


async def test_requests_too_large_to_be_held_take_no_memory(own_bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await hooked(own_bed, await start_hook_plugin())
    pod = await run_pod(own_bed)
    before = own_bed.proxy.resident_bytes()

    assert await all_ok(creates(own_bed, pod, 12, 14 * MIB))

    await is_given_back(own_bed, before)


async def test_records_of_containers_do_not_keep_their_environments(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin()
    await hooked(own_bed, plugin, hooks=ALL)
    pod = await run_pod(own_bed)
    before = own_bed.proxy.resident_bytes()

    for _ in range(10):
        assert await all_ok(creates(own_bed, pod, 2, 5 * MIB))

    assert await own_bed.proxy.metric('governor_proxy_records{kind="container"}') == 20
    await is_given_back(own_bed, before)
