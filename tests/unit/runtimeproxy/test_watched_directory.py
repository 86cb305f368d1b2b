"""A watched directory, with failures while it is read."""

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from governor.process.clock import VirtualClock
from governor.runtimeproxy import watched_directory
from governor.runtimeproxy.watched_directory import Contents, WatchedDirectory
from testbed.waiting import until

FILE = json.dumps({"remote-endpoint": "/run/a.sock", "runtime-hooks": ["PreRunPodSandbox"]})


async def poll(clock: VirtualClock) -> None:
    """Let the reader poll once; it reads files in threads."""
    await clock.advance(0.5)

    async def is_done() -> bool:
        return clock.sleepers == 1

    await until(is_done)


def _fail(*_arguments: object) -> None:
    raise RuntimeError("unexpected")


class Reader:
    """Keeps the names of the files that it was called with."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def replace(self, contents: Contents) -> None:
        self.use(contents)

    def use(self, contents: Contents) -> None:
        self.names = list(contents)


@pytest.mark.parametrize("failing", ["stamps_in", "contents_of", "use"])
async def test_an_unexpected_exception_keeps_what_was_read_and_the_watch_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    clock, reader = VirtualClock(), Reader()
    watched = WatchedDirectory(tmp_path, (".json",), reader.replace, clock)
    (tmp_path / "a.json").write_text(FILE)
    (tmp_path / "a.txt").write_text(FILE)
    await watched.poll()
    assert reader.names == ["a.json"]
    running = asyncio.create_task(watched.run())
    try:
        (tmp_path / "b.json").write_text(FILE)
        with monkeypatch.context() as patched, capture_logs() as logged:
            patched.setattr(reader if failing == "use" else watched_directory, failing, _fail)
            for _ in range(3):
                await poll(clock)
        assert [each["event"] for each in logged] == ["cannot read a directory; what was read before stays in force"]
        assert reader.names == ["a.json"]
        assert not running.done()

        await poll(clock)
        assert sorted(reader.names) == ["a.json", "b.json"]
    finally:
        running.cancel()
