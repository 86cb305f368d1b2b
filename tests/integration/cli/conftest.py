"""A real server for each file, and the command line as its administrator."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.cli.bed import CommandLine
from tests.integration.server.bed import ServerBed, running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    """Run one server for a file; each of its tests uses its own names of runtimes and profiles."""
    async with running(tmp_path_factory.mktemp("server") / "data") as bed:
        yield bed


@pytest.fixture
def governor(server: ServerBed, tmp_path: Path) -> CommandLine:
    """Return the command line; its files are below a new directory."""
    return CommandLine(server, tmp_path)
