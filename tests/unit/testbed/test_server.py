"""Servers are stopped without a complaint, however quickly they end."""

from pathlib import Path

import pytest

from testbed.server import Server


class Sleeper(Server):
    """Does nothing, and ends at once when it is told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__("sleeper", directory, [])

    def command(self) -> list[str]:
        return ["sleep", "600"]

    async def is_ready(self) -> bool:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes().startswith(b"sleep")


async def test_a_server_that_ends_at_once_is_not_missed_by_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        async with Sleeper(tmp_path):
            pass
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
