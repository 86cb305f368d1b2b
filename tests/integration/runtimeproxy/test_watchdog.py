"""What the running proxy tells systemd, and ``/healthz``; the unit with which systemd runs it."""

import asyncio
import configparser
import os
import resource
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed

UNIT = Path(__file__).parents[3] / "deploy/systemd/governor-runtime-proxy.service"
PATIENCE_S = 0.6
PATIENCE = {"WATCHDOG_USEC": str(int(PATIENCE_S * 1_000_000))}


class Manager:
    """The socket of a service manager, and what it was told."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.told: list[str] = []

    def hear(self) -> list[str]:
        """All that was told until now."""
        while True:
            try:
                self.told += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.told

    async def hears(self, word: str, times: int = 1) -> None:
        """Wait until it was told something so often from now on."""
        before = self.hear().count(word)

        async def look() -> bool:
            return self.hear().count(word) >= before + times

        await until(look)

    async def hears_nothing_for(self, seconds: float) -> bool:
        """Whether nobody says anything for so long."""
        before = len(self.hear())
        await asyncio.sleep(seconds)
        return len(self.hear()) == before


@contextmanager
def managing(address: str) -> Iterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.bind(address)
        yield Manager(sock)


@pytest.fixture
async def managed(
    start_fake_runtime: StartFakeRuntime,
    start_cri_client: StartCriClient,
    start_server: StartServer,
    peer_directory: MakeDirectory,
    tmp_path: Path,
) -> AsyncIterator[tuple[Bed, Manager]]:
    """A proxy that was started by a service manager with a watchdog."""
    with managing(str(tmp_path / "notify")) as manager:
        runtime = await start_fake_runtime()
        proxy = RuntimeProxy(peer_directory(), runtime.socket)
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), **PATIENCE}
        await start_server(proxy)
        yield Bed(runtime, proxy, await start_cri_client(proxy.socket)), manager


async def test_it_is_ready_when_it_serves_then_alive_and_says_when_it_stops(managed: tuple[Bed, Manager]) -> None:
    bed, manager = managed
    await manager.hears("WATCHDOG=1", times=3)
    os.kill(bed.proxy.pid, signal.SIGTERM)
    assert await bed.proxy.wait_for_exit() == 0

    told = [line for line in manager.hear() if not line.startswith("STATUS=")]

    assert told[0] == "READY=1"
    assert set(told[1:-1]) == {"WATCHDOG=1"}
    assert told[-1] == "STOPPING=1"


async def test_it_is_ready_though_the_runtime_is_away(
    peer_directory: MakeDirectory, start_server: StartServer, tmp_path: Path
) -> None:
    with managing(str(tmp_path / "notify")) as manager:
        proxy = RuntimeProxy(peer_directory(), Path("/nowhere"))
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        await start_server(proxy)

        async def is_ready() -> bool:
            return "READY=1" in manager.hear()

        await until(is_ready)


async def test_an_abstract_socket_is_told_too(
    peer_directory: MakeDirectory, start_server: StartServer, tmp_path: Path
) -> None:
    name = f"governor-test-{os.getpid()}-{tmp_path.name}"
    with managing(f"\0{name}") as manager:
        proxy = RuntimeProxy(peer_directory(), Path("/nowhere"))
        proxy.variables = {"NOTIFY_SOCKET": f"@{name}", **PATIENCE}
        await start_server(proxy)
        await manager.hears("WATCHDOG=1")


async def test_a_loop_that_is_stuck_says_nothing(managed: tuple[Bed, Manager]) -> None:
    bed, manager = managed
    await manager.hears("WATCHDOG=1")
    await bed.proxy.pause()
    try:
        assert await manager.hears_nothing_for(2 * PATIENCE_S)
    finally:
        bed.proxy.resume()
    await manager.hears("WATCHDOG=1")


async def test_a_hanging_runtime_is_not_held_against_the_proxy(managed: tuple[Bed, Manager]) -> None:
    bed, manager = managed
    await bed.runtime.pause()
    try:
        await manager.hears("WATCHDOG=1", times=3)
        assert (await bed.proxy.get("/healthz"))[0] == 200
    finally:
        bed.runtime.resume()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_proxy_whose_socket_is_gone_is_neither_alive_nor_healthy(
    managed: tuple[Bed, Manager], replaced: bool
) -> None:
    bed, manager = managed

    async def has_told() -> bool:
        return any(line.startswith("STATUS=not serving") for line in manager.hear())

    await manager.hears("WATCHDOG=1")
    bed.proxy.socket.unlink()
    if replaced:
        bed.proxy.socket.write_text("precious")

    status, why = await bed.proxy.get("/healthz")
    await until(has_told)

    assert status == 503
    assert ("was replaced by another program" if replaced else "No such file or directory") in why
    assert (await bed.proxy.get("/readyz"))[0] == 503
    before = manager.hear().count("WATCHDOG=1")
    await manager.hears_nothing_for(2 * PATIENCE_S)
    assert manager.hear().count("WATCHDOG=1") == before


async def test_a_proxy_that_can_open_nothing_more_is_neither_alive_nor_healthy(managed: tuple[Bed, Manager]) -> None:
    """Out of file descriptors it can accept nobody; when there are some again, it is well again."""
    bed, manager = managed
    await manager.hears("WATCHDOG=1")
    reader, writer = await asyncio.open_connection("127.0.0.1", bed.proxy.ports["health"])

    async def health() -> int:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"\n")
        return int(head.split()[1])

    async def is_unhealthy() -> bool:
        return await health() == 503

    try:
        assert await health() == 200
        resource.prlimit(bed.proxy.pid, resource.RLIMIT_NOFILE, (3, 1024))
        await until(is_unhealthy)
        resource.prlimit(bed.proxy.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        await manager.hears("WATCHDOG=1")
        assert await health() == 200
    finally:
        writer.close()


async def test_a_watchdog_that_is_meant_for_another_process_is_not_fed(
    peer_directory: MakeDirectory, start_server: StartServer, tmp_path: Path
) -> None:
    with managing(str(tmp_path / "notify")) as manager:
        proxy = RuntimeProxy(peer_directory(), Path("/nowhere"))
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_PID": "1", **PATIENCE}
        await start_server(proxy)

        async def is_ready() -> bool:
            return "READY=1" in manager.hear()

        await until(is_ready)
        assert await manager.hears_nothing_for(3 * PATIENCE_S)


async def test_a_service_manager_that_is_gone_is_no_reason_to_end(bed: Bed, tmp_path: Path) -> None:
    bed.proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "nobody"), **PATIENCE}
    await bed.proxy.stop()
    await bed.proxy.start()

    async def has_complained() -> bool:
        return len(bed.proxy.lines("cannot notify the service manager")) == 1

    await until(has_complained)
    assert (await bed.client.call("Version", wait_for_ready=True)).code == "OK"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/governor", "/bin/true"))

    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)

    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_unit_is_what_the_proxy_needs() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]

    assert (unit["Unit"]["After"], unit["Unit"]["Before"]) == ("containerd.service", "kubelet.service")
    assert (service["Type"], service["Restart"], service["WatchdogSec"]) == ("notify", "always", "30")
    assert service["ExecStart"].endswith("governor runtime-proxy")
    assert "AF_UNIX" in service["RestrictAddressFamilies"]
