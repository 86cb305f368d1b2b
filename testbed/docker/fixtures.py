"""Fixtures that start dockerds."""

from collections.abc import Awaitable, Callable

import pytest

from testbed.cri.fixtures import MakeDirectory
from testbed.docker.dockerd import Dockerd
from testbed.pytest_plugin import StartServer

StartDockerd = Callable[..., Awaitable[Dockerd]]


@pytest.fixture
def start_dockerd(peer_directory: MakeDirectory, start_server: StartServer) -> StartDockerd:
    """Return a function that starts a dockerd, with further arguments of its command line."""
    return lambda *arguments: start_server(Dockerd(peer_directory(), *arguments))
