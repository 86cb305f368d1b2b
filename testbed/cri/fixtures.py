"""Fixtures for the peers of a runtime proxy: real containerds, CRI clients, fake runtimes and plugins."""

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
    """A function that starts a CRI client."""

    async def __call__(self, socket: Path, window_bytes: int = 0) -> CriClient:
        """Start a client on a socket; without a size its flow-control windows grow."""


class StartFakeRuntime(Protocol):
    """A function that starts a fake runtime."""

    async def __call__(self, *rules: Json, window_bytes: int = 0) -> FakeRuntime:
        """Start a fake runtime with these rules."""


class StartHookPlugin(Protocol):
    """A function that starts a plugin."""

    async def __call__(self, *rules: Json) -> HookPlugin:
        """Start a plugin with these rules."""


@pytest.fixture
def peer_directory(tmp_path_factory: pytest.TempPathFactory) -> MakeDirectory:
    """Return a function that returns new paths, short enough for sockets."""
    numbers = count(1)
    parent = tmp_path_factory.mktemp("cri")
    return lambda: parent / str(next(numbers))


@pytest.fixture
def start_cri_runtime(peer_directory: MakeDirectory, start_server: StartServer) -> StartCriRuntime:
    """Return a function that starts a real containerd: ``containerd`` (Debian's 1.6) or ``containerd-2`` (2.4.2)."""
    return lambda recipe: start_server(CriRuntime(peer_directory(), recipe))


@pytest.fixture
def start_cri_client(peer_directory: MakeDirectory, start_server: StartServer) -> StartCriClient:
    """Return a function that starts a CRI client with one connection."""

    async def start(socket: Path, window_bytes: int = 0) -> CriClient:
        return await start_server(CriClient(peer_directory(), socket, window_bytes))

    return start


@pytest.fixture
def start_fake_runtime(peer_directory: MakeDirectory, start_server: StartServer) -> StartFakeRuntime:
    """Return a function that starts a fake runtime."""

    async def start(*rules: Json, window_bytes: int = 0) -> FakeRuntime:
        return await start_server(FakeRuntime(peer_directory(), rules, window_bytes))

    return start


@pytest.fixture
def start_hook_plugin(peer_directory: MakeDirectory, start_server: StartServer) -> StartHookPlugin:
    """Return a function that starts a plugin."""

    async def start(*rules: Json) -> HookPlugin:
        return await start_server(HookPlugin(peer_directory(), rules))

    return start
