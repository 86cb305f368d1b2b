"""Malicious files in the plugin directory are reported, and calls are served."""

import os
import shutil
from pathlib import Path

from testbed.cri.fixtures import StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, hooked, last, run_pod

MIB = 1024 * 1024
VALID = b'{"remote-endpoint": "/nowhere", "runtime-hooks": ["PreRunPodSandbox"]}'


def put_all(directory: Path) -> int:
    """Write malicious files and return the number of invalid ones."""
    contents = {
        "huge": b'{"remote-endpoint": "' + b"x" * (2 * MIB) + b'"}',
        "deep": b"[" * 500_000,
        "deeper": b'{"selector": ' * 100_000,
        "latin": '{"remote-endpoint": "/für"}'.encode("latin-1"),
        "binary": os.urandom(100_000),
        "nul": b'{"remote-endpoint": "/a\\u0000b", "runtime-hooks": []}',
        "surrogate": b'{"remote-endpoint": "/\\ud800", "runtime-hooks": []}',
        "number": b'{"remote-endpoint": "/x", "order": 1e999, "runtime-hooks": []}',
        "never": b'{"remote-endpoint": "/x", "timeout": "99999999999999999999h", "failure-policy": 7}',
    }
    for name, content in contents.items():
        (directory / f"{name}.json").write_bytes(content)
    sparse = directory / "sparse.json"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(directory / "fifo.json")
    (directory / "directory.json").mkdir()
    links = {"loop": "loop.json", "dangling": "nowhere", "zero": "/dev/zero", "to-fifo": "fifo.json", "up": ".."}
    for name, target in links.items():
        (directory / f"{name}.json").symlink_to(target)
    (directory / "ignored.JSON").write_bytes(b"{")
    return len(contents) + 3 + len(links)


async def test_malicious_plugin_files_do_not_affect_valid_ones(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    plugin = await start_hook_plugin({"answer": {"annotations": {"by": "good"}}})
    await hooked(bed, plugin, name="good", hooks=["PreRunPodSandbox"])
    before = bed.proxy.resident_bytes()
    wrong = put_all(bed.proxy.plugins)
    await bed.proxy.wait_for_metric("governor_proxy_plugin_file_errors", wrong)

    await run_pod(bed)

    assert (await last(bed.runtime, "RunPodSandbox")).request["config"]["annotations"] == {"a": "1", "by": "good"}
    assert await bed.proxy.metric("governor_proxy_plugins") == 1
    assert bed.proxy.resident_bytes() - before < 64 * MIB
    assert max(map(len, bed.proxy.logged().splitlines())) < 4096
    plugin.register(bed.proxy.plugins, "late", ["PreRunPodSandbox"])
    await bed.proxy.wait_for_plugins(2)
    for each in bed.proxy.plugins.iterdir():
        if not each.is_symlink() and each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    await bed.proxy.wait_for_plugins(0)
    assert await bed.proxy.metric("governor_proxy_plugin_file_errors") == 0


async def test_files_with_any_name_register_plugins_with_printable_names(own_bed: Bed) -> None:
    names = [b"\xff\xfe", b"a\nb", b'q"u{o}te\\', b"\xe2\x80\xae", b"x" * 245]
    own_bed.proxy.plugins.mkdir(parents=True, exist_ok=True)
    directory = os.fsencode(own_bed.proxy.plugins)
    for name in names:
        Path(os.fsdecode(directory + b"/" + name + b".json")).write_bytes(VALID)
    await own_bed.proxy.wait_for_plugins(len(names))

    await run_pod(own_bed)

    failed = {each["plugin"] for each in await own_bed.proxy.wait_for_lines("plugin failed", len(names))}
    assert failed == {name.decode(errors="backslashreplace") for name in names}
    status, shown = await own_bed.proxy.get("/metrics")
    called = [line for line in shown.splitlines() if line.startswith("governor_proxy_plugin_calls_total{")]
    assert (status, len(called)) == (200, len(names))
    Path(os.fsdecode(directory + b"/\xff\xfe.json")).write_bytes(VALID.replace(b"}", b', "failure-policy": "Fail"}'))

    async def is_rejected() -> str:
        reply = await own_bed.client.call("RunPodSandbox", {"config": POD})
        return reply.message if reply.code != "OK" else ""

    assert (await until(is_rejected)).startswith("plugin \\xff\\xfe rejected PreRunPodSandbox")
    assert (await own_bed.client.wire()).errors == ()


async def test_a_file_that_alternates_with_a_pipe_blocks_no_call(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    """Between stat and open a file may be replaced by one whose reading never ends."""
    plugin = await start_hook_plugin()
    alternating = bed.proxy.plugins / "alternating.json"
    bed.proxy.plugins.mkdir(parents=True)
    for number in range(300):
        spare = bed.proxy.plugins / "spare"
        if number % 2:
            os.mkfifo(spare)
        else:
            spare.write_bytes(VALID)
        spare.replace(alternating)
        if number % 50 == 0:
            await bed.proxy.get("/healthz")
    alternating.unlink()

    await hooked(bed, plugin, name="good")

    async def is_called() -> bool:
        await run_pod(bed)
        return bool(await plugin.received("PreRunPodSandboxHook"))

    await until(is_called)
