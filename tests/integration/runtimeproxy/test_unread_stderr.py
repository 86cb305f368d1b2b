"""The runtime proxy with a stderr that nothing reads, for example of a stalled journald."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.programs import answers
from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, hooked
from tests.integration.unread_pipe import UnreadPipe

CALLS = 40
DROPPED = "governor_log_lines_dropped_total"


class UnreadProxy(RuntimeProxy):
    """A proxy whose stderr is a pipe."""

    def __init__(self, directory: Path, runtime: Path, pipe: UnreadPipe) -> None:
        super().__init__(directory, runtime)
        self._pipe = pipe

    def command(self) -> list[str]:
        return self._pipe.as_stderr(super().command())

    async def is_ready(self) -> bool:
        return await answers(f"http://127.0.0.1:{self.ports['health']}/healthz")


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[UnreadPipe]:
    with UnreadPipe(tmp_path / "stderr") as made:
        yield made


@pytest.fixture
async def bed(
    pipe: UnreadPipe,
    start_fake_runtime: StartFakeRuntime,
    peer_directory: MakeDirectory,
    start_server: StartServer,
    start_cri_client: StartCriClient,
) -> Bed:
    """Return a fake runtime, a proxy for it whose stderr is not read, and a client."""
    runtime = await start_fake_runtime()
    proxy = await start_server(UnreadProxy(peer_directory(), runtime.socket, pipe))
    return Bed(runtime, proxy, await start_cri_client(proxy.socket))


async def test_calls_are_answered_and_a_signal_stops_the_proxy(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    """The pipe is full after about five calls."""
    answer = {"labels": {"added": "yes"}, "annotations": {"a": "2"}, "cgroup_parent": "/other"}
    await hooked(bed, await start_hook_plugin({"method": "PreRunPodSandboxHook", "answer": answer}))

    codes = {(await bed.client.call("RunPodSandbox", {"config": POD})).code for _ in range(CALLS)}
    os.kill(bed.proxy.pid, signal.SIGTERM)

    assert codes == {"OK"}
    assert len(await bed.runtime.received("RunPodSandbox")) == CALLS
    assert await bed.proxy.wait_for_exit() == 0


async def test_audit_lines_survive_a_flood_of_others_which_are_counted_and_announced(
    bed: Bed, pipe: UnreadPipe, start_hook_plugin: StartHookPlugin
) -> None:
    status = {"code": "INTERNAL", "message": "x" * 6000}
    failing = await start_hook_plugin({"method": "PreRunPodSandboxHook", "status": status})
    for number in range(4):
        await hooked(bed, failing, name=f"failing-{number}")
    tuner = await start_hook_plugin({"method": "PreRunPodSandboxHook", "answer": {"labels": {"added": "yes"}}})
    await hooked(bed, tuner, name="tuner")

    for _ in range(CALLS):
        assert (await bed.client.call("RunPodSandbox", {"config": POD})).code == "OK"
    dropped = await bed.proxy.metric(f'{DROPPED}{{priority="other"}}')
    lost_audit = await bed.proxy.metric(f'{DROPPED}{{priority="audit"}}')

    async def announced() -> list[dict[str, Any]]:
        return lines_of(pipe, "log lines dropped, stderr was not read in time")

    [notice] = await until(announced)
    assert dropped > 0
    assert lost_audit == 0
    assert (notice["lines"], notice["audit_lines"]) == (dropped, 0)
    assert len(lines_of(pipe, "plugin failed")) == 4 * CALLS - dropped

    async def all_are_written() -> bool:
        return len(lines_of(pipe, "plugins changed a call")) == CALLS

    await until(all_are_written)


def lines_of(pipe: UnreadPipe, event: str) -> list[dict[str, Any]]:
    return [line for line in pipe.events() if line["event"] == event]
