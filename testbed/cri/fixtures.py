"""Fixtures of the peers of a runtime proxy: real containerds, a caller, a runtime that runs nothing, and plugins."""

from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from testbed.cri.client import CriClient
from testbed.cri.control import Json
from testbed.cri.peers import FakeRuntime, HookPlugin
from testbed.cri.runtime import CriRuntime
from testbed.pytest_plugin import StartServer

StartCriRuntime = Callable[[str], Awaitable[CriRuntime]]
MakeDirectory = Callable[[], Path]


class StartCriClient(Protocol):
    """Starts a caller on a socket."""

    async def __call__(self, socket: Path, window_bytes: int = 0) -> CriClient:
        """The caller; without a size its flow-control windows grow."""


class StartFakeRuntime(Protocol):
    """Starts a runtime that runs nothing."""

    async def __call__(self, *rules: Json, window_bytes: int = 0) -> FakeRuntime:
        """The runtime, with rules from its start."""


class StartHookPlugin(Protocol):
    """Starts a plugin."""

    async def __call__(self, *rules: Json) -> HookPlugin:
        """The plugin, with rules from its start."""


@pytest.fixture
def peer_directory(tmp_path_factory: pytest.TempPathFactory) -> MakeDirectory:
    """Makes directories of short names, for sockets lie in them."""
    numbers = count(1)
    parent = tmp_path_factory.mktemp("cri")
    return lambda: parent / str(next(numbers))


@pytest.fixture
def start_cri_runtime(peer_directory: MakeDirectory, start_server: StartServer) -> StartCriRuntime:
    """Starts any number of real containerds: Debian's 1.6 as ``containerd``, 2.4.2 as ``containerd-2``."""
    return lambda recipe: start_server(CriRuntime(peer_directory(), recipe))


@pytest.fixture
def start_cri_client(peer_directory: MakeDirectory, start_server: StartServer) -> StartCriClient:
    """Starts any number of callers, each with one connection."""

    async def start(socket: Path, window_bytes: int = 0) -> CriClient:
        return await start_server(CriClient(peer_directory(), socket, window_bytes))

    return start


@pytest.fixture
def start_fake_runtime(peer_directory: MakeDirectory, start_server: StartServer) -> StartFakeRuntime:
    """Starts any number of runtimes that run nothing."""

    async def start(*rules: Json, window_bytes: int = 0) -> FakeRuntime:
        return await start_server(FakeRuntime(peer_directory(), rules, window_bytes))

    return start


@pytest.fixture
def start_hook_plugin(peer_directory: MakeDirectory, start_server: StartServer) -> StartHookPlugin:
    """Starts any number of plugins."""

    async def start(*rules: Json) -> HookPlugin:
        return await start_server(HookPlugin(peer_directory(), rules))

    return start
