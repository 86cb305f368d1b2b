"""Stopping a server logs no warning, however quickly it exits."""

from pathlib import Path

import pytest

from testbed.server import Server


class Sleeper(Server):
    """A server that exits immediately on SIGTERM."""

    def __init__(self, directory: Path) -> None:
        super().__init__("sleeper", directory, [])

    def command(self) -> list[str]:
        return ["sleep", "600"]

    async def is_ready(self) -> bool:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes().startswith(b"sleep")


async def test_the_event_loop_reaps_a_server_that_exits_immediately(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        async with Sleeper(tmp_path):
            pass
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
