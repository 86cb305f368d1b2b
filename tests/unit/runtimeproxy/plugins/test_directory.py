"""The watched directory of plugin files, with failures while it is read."""

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from governor.process.clock import VirtualClock
from governor.runtimeproxy.plugins import directory
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.plugins.directory import HookDirectory
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


@pytest.mark.parametrize("failing", ["stamps_in", "contents_of", "reload"])
async def test_an_unexpected_exception_keeps_the_plugins_and_the_reader_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    clock = VirtualClock()
    plugins = Plugins(clock, 2.0)
    hooks = HookDirectory(tmp_path, plugins, clock)
    (tmp_path / "a.json").write_text(FILE)
    await hooks.poll()
    assert list(plugins.registrations.by_file) == ["a.json"]
    running = asyncio.create_task(hooks.run())
    try:
        (tmp_path / "b.json").write_text(FILE)
        with monkeypatch.context() as patched, capture_logs() as logged:
            patched.setattr(directory, failing, _fail)
            for _ in range(3):
                await poll(clock)
        assert [each["event"] for each in logged] == ["cannot read the plugin directory; plugins stay as they are"]
        assert list(plugins.registrations.by_file) == ["a.json"]
        assert not running.done()

        await poll(clock)
        assert list(plugins.registrations.by_file) == ["a.json", "b.json"]
    finally:
        running.cancel()
