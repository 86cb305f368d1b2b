"""Fixtures: each starts real servers for one test, keeps their logs for its report, and stops them.

A server that cannot be provided or started is an error of the test that asked for it, never a skip.
"""

import asyncio
import inspect
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from testbed.daprd import Daprd, Sidecar
from testbed.kube.control_plane import PROGRAMS, ControlPlane, Options
from testbed.linux import killed_runs
from testbed.recipes import provide
from testbed.redis import Redis
from testbed.server import Server
from testbed.waiting import until
from toolchain.errors import tail

_LOG_LINES = 60
_DISCONNECTED_WITHIN_S = 20.0
_LOGS = pytest.StashKey[list[Path]]()

AnyServer = TypeVar("AnyServer", bound=Server)
StartRedis = Callable[[], Awaitable[Redis]]
StartDaprd = Callable[[Sidecar], Awaitable[Daprd]]


class StartServer(Protocol):
    """Starts a server, which is stopped when the test has ended."""

    async def __call__(self, server: AnyServer) -> AnyServer:
        """Start a server and return it once it is ready."""


class StartControlPlane(Protocol):
    """Starts a control plane, which is stopped when the test has ended."""

    async def __call__(self, options: Options | None = None) -> ControlPlane:
        """Start a control plane and return it once it is ready."""


@pytest.fixture(scope="session", autouse=True)
def _no_killed_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Remove what killed runs left on this machine."""
    directory = tmp_path_factory.getbasetemp()
    run = directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory
    killed_runs.clear(run.parent)


@pytest.fixture(scope="session")
def redis_binary() -> Path:
    """Return the path of redis-server."""
    return provide(["redis"])["redis"]


@pytest.fixture(scope="session")
def daprd_binary() -> Path:
    """Return the path of daprd."""
    return provide(["daprd"])["daprd"]


@pytest.fixture(scope="session")
def daprd_1_16_binary() -> Path:
    """Return the path of a daprd without hot reload."""
    return provide(["daprd-1.16"])["daprd-1.16"]


@pytest.fixture(scope="session")
def kubernetes_binaries() -> dict[str, Path]:
    """Return the paths of a control plane's programs, by name."""
    return provide(PROGRAMS)


@pytest.fixture
def server_logs(request: pytest.FixtureRequest) -> list[Path]:
    """Log files whose ends are shown if the test fails; a test adds those of programs that it starts itself."""
    logs: list[Path] = request.node.stash.setdefault(_LOGS, [])
    return logs


@pytest.fixture
async def start_server(server_logs: list[Path]) -> AsyncIterator[StartServer]:
    """Starts any server and stops it, last come first gone, when the test has ended."""
    async with AsyncExitStack() as stack:

        async def start(server: AnyServer) -> AnyServer:
            server_logs.append(server.log)
            stack.push_async_callback(server.stop)
            return await server.start()

        yield start


@pytest.fixture
def start_redis(redis_binary: Path, tmp_path: Path, start_server: StartServer) -> StartRedis:
    """Starts any number of Redis servers, each empty and with a password of its own."""
    numbers = count(1)
    return lambda: start_server(Redis(redis_binary, tmp_path / f"redis-{next(numbers)}"))


@pytest.fixture
async def redis_server(start_redis: StartRedis) -> Redis:
    """Yield an empty Redis with a password."""
    return await start_redis()


@pytest.fixture
def start_daprd(daprd_binary: Path, tmp_path: Path, start_server: StartServer) -> StartDaprd:
    """Starts any number of sidecars, each alone."""
    numbers = count(1)
    return lambda sidecar: start_server(Daprd(daprd_binary, tmp_path / f"daprd-{next(numbers)}", sidecar))


@pytest.fixture
async def start_control_plane(
    kubernetes_binaries: dict[str, Path], tmp_path: Path, server_logs: list[Path]
) -> AsyncIterator[StartControlPlane]:
    """Starts any number of control planes, each empty: for tests that break theirs or need more than objects."""
    numbers = count(1)
    async with AsyncExitStack() as stack:

        async def start(options: Options | None = None) -> ControlPlane:
            plane = ControlPlane(kubernetes_binaries, tmp_path / f"control-plane-{next(numbers)}", options)
            server_logs.extend(server.log for server in plane.servers)
            return await stack.enter_async_context(plane)

        yield start


@pytest.fixture
async def _connections_end() -> AsyncIterator[None]:
    """Wait until closing connections are closed before the test's loop ends.

    A TLS connection that is abandoned during a response is not awaited; it would be reported as open in a later test.
    """
    yield
    with suppress(TimeoutError):  # a connection left open is reported by pytest
        await until(_is_disconnected, within_s=_DISCONNECTED_WITHIN_S)


async def _is_disconnected() -> bool:
    loop: Any = asyncio.get_running_loop()
    return not any(map(_is_connection, list(loop._selector.get_map())))  # noqa: SLF001 - the only list of all of them


def _is_connection(descriptor: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    with socket.socket(fileno=os.dup(descriptor)) as opened:
        return opened.family in (socket.AF_INET, socket.AF_INET6)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test with a loop the fixture that is set up first and torn down last."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.fixturenames.insert(0, "_connections_end")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the servers' logs below a failure."""
    report = yield
    if report.failed:
        for log in item.stash.get(_LOGS, []):
            report.sections.append((f"end of {log}", tail(log, _LOG_LINES)))
    return report
