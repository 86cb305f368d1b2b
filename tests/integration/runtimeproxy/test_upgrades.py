"""Stopping and replacing the proxy under load: kubelet's socket never disappears, and no call fails."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from testbed.cri.client import CriClient
from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime, StartHookPlugin
from testbed.cri.runtime_proxy import RuntimeProxy, ended
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, create_container, hooked, last, run_pod
from tests.integration.runtimeproxy.test_watchdog import managing

TAKES_TIME = {"delay_s": 0.02}
"""Rule of a runtime under load: calls are under way at any moment, and the processor is left to the new version."""


class Load:
    """Workers that make calls of several kinds, one after another, until stopped."""

    def __init__(self, client: CriClient, workers: int = 8) -> None:
        self._client = client
        self._workers = workers
        self._stopped = asyncio.Event()
        self.codes: Counter[tuple[str, str, str]] = Counter()

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        await asyncio.gather(*self._tasks)

    @property
    def calls(self) -> int:
        return sum(self.codes.values())

    async def more(self, calls: int) -> None:
        """Wait until that many more calls have ended."""
        target = self.calls + calls

        async def are_made() -> bool:
            return self.calls >= target

        await until(are_made)

    async def _work(self) -> None:
        while not self._stopped.is_set():
            ran = await self._call("RunPodSandbox", {"config": POD})
            await self._call("ListContainers")
            await self._call("StopPodSandbox", {"pod_sandbox_id": ran.get("pod_sandbox_id", "")})
            await self._call("RemovePodSandbox", {"pod_sandbox_id": ran.get("pod_sandbox_id", "")})

    async def _call(self, method: str, request: dict[str, object] | None = None) -> dict[str, object]:
        reply = await self._client.call(method, request)
        self.codes[method, reply.code, reply.message] += 1
        return reply.answer


@pytest.mark.parametrize(
    ("mode", "upgrades"),
    [
        ("copied", 1),
        ("relayed", 2),
        pytest.param("copied", 20, marks=pytest.mark.soak),
        pytest.param("relayed", 20, marks=pytest.mark.soak),
    ],
)
async def test_upgrades_under_load_fail_no_call(
    own_bed: Bed, start_hook_plugin: StartHookPlugin, mode: str, upgrades: int
) -> None:
    proxy = own_bed.proxy
    await own_bed.runtime.set(TAKES_TIME)
    if mode == "relayed":
        plugin = await start_hook_plugin({"method": "PreRunPodSandboxHook", "answer": {"annotations": {"by": "p"}}})
        await hooked(own_bed, plugin, failure_policy="Fail")
    inode = proxy.socket.stat().st_ino
    replaced: list[int] = []
    async with Load(own_bed.client) as load:
        await load.more(20)
        for _ in range(upgrades):
            replaced.append(await proxy.upgrade())
            await load.more(20)
            assert proxy.socket.stat().st_ino == inode
    await asyncio.gather(*map(ended, replaced))

    assert {code for _, code, _ in load.codes} == {"OK"}, load.codes
    assert len({*replaced, proxy.pid}) == upgrades + 1
    assert (await proxy.get("/healthz"))[0] == 200
    if mode == "relayed":
        assert (await last(own_bed.runtime, "RunPodSandbox")).request["config"]["annotations"]["by"] == "p"


@pytest.mark.parametrize("mode", ["copied", "relayed"])
async def test_an_upgrade_ends_watches_at_once_and_lets_calls_finish(
    own_bed: Bed, start_hook_plugin: StartHookPlugin, mode: str
) -> None:
    if mode == "relayed":
        await hooked(own_bed, await start_hook_plugin())
    await own_bed.runtime.set({"method": "Status", "hang": True})
    async with own_bed.client.stream("Status") as call, own_bed.client.stream("GetContainerEvents") as watch:

        async def are_open() -> bool:
            return await own_bed.runtime.open_calls() == 2

        await until(are_open)
        replaced = await own_bed.proxy.upgrade()
        over = await watch.until(lambda seen: bool(seen.code))

        assert (over.code, "reconnect to continue" in over.message) == ("UNAVAILABLE", True)
        assert (await call.progress()).code == ""
        async with own_bed.client.stream("GetContainerEvents") as again:
            await until(are_open)
            container = await create_container(own_bed, await run_pod(own_bed))
            # The pod has events, too.
            await again.until(lambda seen: container in str(seen.answers))
    await ended(replaced)


@pytest.mark.parametrize("mode", ["copied", "relayed"])
async def test_a_stop_does_not_wait_for_watches(own_bed: Bed, start_hook_plugin: StartHookPlugin, mode: str) -> None:
    if mode == "relayed":
        await hooked(own_bed, await start_hook_plugin())
    async with own_bed.client.stream("GetContainerEvents") as watch:
        await until(own_bed.runtime.open_calls)
        os.kill(own_bed.proxy.pid, signal.SIGTERM)
        assert await own_bed.proxy.wait_for_exit() == 0
        assert (await watch.until(lambda seen: bool(seen.code))).code == "UNAVAILABLE"

    assert own_bed.proxy.lines("connections did not end in time") == []


async def test_a_version_that_does_not_start_replaces_nothing(
    start_fake_runtime: StartFakeRuntime,
    start_server: StartServer,
    start_cri_client: StartCriClient,
    peer_directory: MakeDirectory,
) -> None:
    runtime = await start_fake_runtime(TAKES_TIME)
    directory = peer_directory()
    directory.mkdir()
    config = directory / "config.yaml"
    config.write_text("log-level: info\n")
    proxy = await start_server(RuntimeProxy(directory, runtime.socket, f"--config={config}"))
    client = await start_cri_client(proxy.socket)
    pid = proxy.pid
    async with Load(client, 2) as load:
        await load.more(4)
        config.write_text("log-level: nonsense\n")
        failed = await upgrade_by_socket(proxy)
        assert "the new version exited with code" in failed
        await load.more(4)
        config.write_text("log-level: info\n")
        await proxy.upgrade()
        await load.more(4)

    assert {code for _, code, _ in load.codes} == {"OK"}, load.codes
    assert proxy.pid != pid


class InstalledProxy(RuntimeProxy):
    """A proxy that is started by a script, which a test replaces as an installation of another version does."""

    _WORKS = "from governor.cli.main import main\nmain()\n"

    def __init__(self, directory: Path, runtime: Path) -> None:
        super().__init__(directory, runtime)
        self._script = directory / "governor"
        directory.mkdir()
        self.install()

    def install(self, version: str = "") -> None:
        """Install a version that begins with these lines of Python."""
        self._script.write_text(f"#!{sys.executable}\n{version}\n{self._WORKS}")
        self._script.chmod(0o755)

    def command(self) -> list[str]:
        """Return the command line."""
        *_, last = (index for index, word in enumerate(super().command()) if word == "governor.cli.main")
        return [str(self._script), *super().command()[last + 1 :]]


_STARTED = """
import json, os, signal, socket
channel = socket.socket(fileno=json.loads(os.environ["GOVERNOR_HANDOVER"])["channel"])
channel.sendall(b"started\\n")
assert channel.recv(64) == b"serve\\n"
"""
_FEW_DESCRIPTORS = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))"


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        pytest.param("raise SystemExit(3)", "exited with code 3", id="exits-at-once"),
        # The address is for documentation only (RFC 5737); the sockets have been taken by then.
        pytest.param(
            "import sys\nsys.argv.append('--health-listen=203.0.113.1:1')", "exited with code", id="exits-late"
        ),
        pytest.param(f"{_STARTED}os._exit(3)", "exited with code 3", id="exits-before-it-accepts"),
        pytest.param(f"{_STARTED}os.kill(os.getpid(), 9)", "was terminated by SIGKILL", id="is-killed"),
        pytest.param(_FEW_DESCRIPTORS, "exited with code 1", id="cannot-accept"),
        pytest.param("import signal\nsignal.pause()", "did not start within", id="hangs", marks=pytest.mark.soak),
        pytest.param(f"{_STARTED}signal.pause()", "did not serve within", id="never-accepts", marks=pytest.mark.soak),
        pytest.param(
            f"{_STARTED}channel.close()\nsignal.pause()", "did not exit within", id="gives-up", marks=pytest.mark.soak
        ),
    ],
)
async def test_a_version_that_fails_replaces_nothing(
    start_fake_runtime: StartFakeRuntime,
    start_server: StartServer,
    start_cri_client: StartCriClient,
    peer_directory: MakeDirectory,
    version: str,
    reason: str,
) -> None:
    runtime = await start_fake_runtime(TAKES_TIME)
    proxy = InstalledProxy(peer_directory(), runtime.socket)
    await start_server(proxy)
    client, pid, inode = await start_cri_client(proxy.socket), proxy.pid, proxy.socket.stat().st_ino
    async with Load(client, 2) as load:
        await load.more(4)
        proxy.install(version)
        assert reason in await upgrade_by_socket(proxy)
        await load.more(4)
        later = await start_cri_client(proxy.socket)
        assert (await later.call("Version", wait_for_ready=True)).code == "OK"
        # A check that began while neither process accepted connections may have failed.
        await until(lambda: _is_healthy(proxy))
        assert (proxy.pid, proxy.socket.stat().st_ino) == (pid, inode)
        proxy.install()
        await proxy.upgrade()
        await load.more(4)

    assert {code for _, code, _ in load.codes} == {"OK"}, load.codes
    assert proxy.pid != pid


async def _is_healthy(proxy: RuntimeProxy) -> bool:
    return (await proxy.get("/healthz"))[0] == 200


async def upgrade_by_socket(proxy: RuntimeProxy) -> str:
    """Ask for an upgrade without the command, which reads the same settings, and return the response."""
    control = proxy.socket.with_name(f"{proxy.socket.stem}-control.sock")
    reader, writer = await asyncio.open_unix_connection(str(control))
    writer.write(b"POST /v1/upgrade HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def test_systemd_learns_which_process_is_the_main_one(
    start_fake_runtime: StartFakeRuntime, start_server: StartServer, peer_directory: MakeDirectory, tmp_path: Path
) -> None:
    with managing(str(tmp_path / "notify")) as manager:
        runtime = await start_fake_runtime()
        proxy = RuntimeProxy(peer_directory(), runtime.socket)
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        await start_server(proxy)
        replaced = await proxy.upgrade()
        await ended(replaced)

        # Neither process says that the service stops.
        assert [each for each in manager.read() if not each.startswith("STATUS")] == [
            "READY=1",
            "READY=1",
            f"MAINPID={proxy.pid}",
        ]


async def test_a_socket_of_systemd_is_used_and_stays(
    start_fake_runtime: StartFakeRuntime, start_cri_client: StartCriClient, peer_directory: MakeDirectory
) -> None:
    runtime = await start_fake_runtime()
    proxy = RuntimeProxy(peer_directory(), runtime.socket)
    proxy.directory.mkdir()
    proxy.ports = {"health": 0}
    activator = await asyncio.create_subprocess_exec(
        *("systemd-socket-activate", f"--listen={proxy.socket}", *proxy.command()),
        stderr=subprocess.DEVNULL,
        env={**proxy.environment()},
    )
    try:

        async def listens() -> bool:
            return proxy.socket.exists()

        await until(listens)
        client = await start_cri_client(proxy.socket)
        assert (await client.call("Version", wait_for_ready=True)).code == "OK"
        activator.terminate()
        assert await activator.wait() == 0
        assert proxy.socket.exists()
    finally:
        if activator.returncode is None:
            activator.kill()
            await activator.wait()
