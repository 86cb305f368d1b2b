"""Notifications of the running proxy to systemd, ``/healthz``, and the systemd unit."""

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

from governor.runtimeproxy.settings import Settings
from testbed.cri.fixtures import MakeDirectory, StartCriClient, StartFakeRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.pytest_plugin import StartServer
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed

UNITS = Path(__file__).parents[3] / "deploy/systemd"
UNIT = UNITS / "governor-runtime-proxy.service"
SOCKET = UNITS / "governor-runtime-proxy.socket"
WATCHDOG_S = 0.6
WATCHDOG = {"WATCHDOG_USEC": str(int(WATCHDOG_S * 1_000_000))}


class Manager:
    """Notification socket of a service manager, and what it received."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.received: list[str] = []

    def read(self) -> list[str]:
        """Return all notifications so far."""
        while True:
            try:
                self.received += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.received

    async def receives(self, word: str, times: int = 1) -> None:
        """Wait until a notification arrives that many more times."""
        before = self.read().count(word)

        async def has_arrived() -> bool:
            return self.read().count(word) >= before + times

        await until(has_arrived)

    async def receives_nothing_for(self, seconds: float) -> bool:
        """Return whether no notification arrives for this long."""
        before = len(self.read())
        await asyncio.sleep(seconds)
        return len(self.read()) == before


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
    """Return a proxy started by a service manager with a watchdog."""
    with managing(str(tmp_path / "notify")) as manager:
        runtime = await start_fake_runtime()
        proxy = RuntimeProxy(peer_directory(), runtime.socket)
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), **WATCHDOG}
        await start_server(proxy)
        yield Bed(runtime, proxy, await start_cri_client(proxy.socket)), manager


async def test_ready_watchdog_and_stopping_are_notified(managed: tuple[Bed, Manager]) -> None:
    bed, manager = managed
    await manager.receives("WATCHDOG=1", times=3)
    os.kill(bed.proxy.pid, signal.SIGTERM)
    assert await bed.proxy.wait_for_exit() == 0

    received = [line for line in manager.read() if not line.startswith("STATUS=")]

    assert received[0] == "READY=1"
    assert set(received[1:-1]) == {"WATCHDOG=1"}
    assert received[-1] == "STOPPING=1"


async def test_an_abstract_socket_is_notified(
    peer_directory: MakeDirectory, start_server: StartServer, tmp_path: Path
) -> None:
    name = f"governor-test-{os.getpid()}-{tmp_path.name}"
    with managing(f"\0{name}") as manager:
        proxy = RuntimeProxy(peer_directory(), Path("/nowhere"))
        proxy.variables = {"NOTIFY_SOCKET": f"@{name}", **WATCHDOG}
        await start_server(proxy)
        await manager.receives("WATCHDOG=1")


async def test_a_stuck_event_loop_sends_no_notifications_but_a_hanging_runtime_stops_none(
    managed: tuple[Bed, Manager],
) -> None:
    bed, manager = managed
    await manager.receives("WATCHDOG=1")
    await bed.proxy.pause()
    try:
        assert await manager.receives_nothing_for(2 * WATCHDOG_S)
    finally:
        bed.proxy.resume()
    await manager.receives("WATCHDOG=1")

    await bed.runtime.pause()
    try:
        await manager.receives("WATCHDOG=1", times=3)
        assert (await bed.proxy.get("/healthz"))[0] == 200
    finally:
        bed.runtime.resume()


async def test_a_proxy_without_its_socket_is_neither_alive_nor_healthy(managed: tuple[Bed, Manager]) -> None:
    bed, manager = managed

    async def is_notified() -> bool:
        return any(line.startswith("STATUS=not serving") for line in manager.read())

    await manager.receives("WATCHDOG=1")
    bed.proxy.socket.unlink()
    missing = await bed.proxy.get("/healthz")
    await until(is_notified)
    bed.proxy.socket.write_text("precious")
    replaced = await bed.proxy.get("/healthz")

    assert (missing[0], replaced[0]) == (503, 503)
    assert "No such file or directory" in missing[1]
    assert "was replaced by another program" in replaced[1]
    assert (await bed.proxy.get("/readyz"))[0] == 503
    before = manager.read().count("WATCHDOG=1")
    await manager.receives_nothing_for(2 * WATCHDOG_S)
    assert manager.read().count("WATCHDOG=1") == before


async def test_a_proxy_without_free_file_descriptors_is_unhealthy_until_it_has_some(
    managed: tuple[Bed, Manager],
) -> None:
    """Without file descriptors it can accept no connection; it recovers when some are free."""
    bed, manager = managed
    await manager.receives("WATCHDOG=1")
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
        await manager.receives("WATCHDOG=1")
        assert await health() == 200
    finally:
        writer.close()


async def test_without_a_runtime_ready_is_notified_and_no_watchdog_of_another_process(
    peer_directory: MakeDirectory, start_server: StartServer, tmp_path: Path
) -> None:
    with managing(str(tmp_path / "notify")) as manager:
        proxy = RuntimeProxy(peer_directory(), Path("/nowhere"))
        proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_PID": "1", **WATCHDOG}
        await start_server(proxy)

        async def is_ready() -> bool:
            return "READY=1" in manager.read()

        await until(is_ready)
        assert await manager.receives_nothing_for(3 * WATCHDOG_S)


async def test_a_missing_service_manager_does_not_end_the_proxy(own_bed: Bed, tmp_path: Path) -> None:
    own_bed.proxy.variables = {"NOTIFY_SOCKET": str(tmp_path / "missing"), **WATCHDOG}
    await own_bed.proxy.stop()
    await own_bed.proxy.start()

    async def is_logged() -> bool:
        return len(own_bed.proxy.lines("cannot notify the service manager")) == 1

    await until(is_logged)
    assert (await own_bed.client.call("Version", wait_for_ready=True)).code == "OK"


def test_systemd_verifies_the_units(tmp_path: Path) -> None:
    for each in (UNIT, SOCKET):
        (tmp_path / each.name).write_text(each.read_text().replace("/usr/local/bin/governor", "/bin/true"))
    units = [str(tmp_path / each.name) for each in (SOCKET, UNIT)]

    found = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)

    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def _unit(file: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(file.read_text())
    return unit


def test_the_socket_unit_has_the_default_path_of_the_proxy() -> None:
    listen = _unit(SOCKET)["Socket"]["ListenStream"]

    assert os.path.realpath(listen) == os.path.realpath(Settings().listen_path)
    assert _unit(UNIT)["Unit"]["Requires"] == SOCKET.name


def test_the_unit_has_the_settings_that_the_proxy_needs() -> None:
    unit = _unit(UNIT)
    service = unit["Service"]

    assert (unit["Unit"]["After"], unit["Unit"]["Before"]) == (f"{SOCKET.name} containerd.service", "kubelet.service")
    assert service["ExecReload"] == f"{service['ExecStart']} upgrade"
    assert (service["Type"], service["Restart"], service["WatchdogSec"]) == ("notify", "always", "30")
    assert service["ExecStart"].endswith("governor runtime-proxy")
    assert "AF_UNIX" in service["RestrictAddressFamilies"]
