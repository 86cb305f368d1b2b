"""A killed build does not disturb later ones: its step is waited for, and its scratch directory removed."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from toolchain import cache
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY
from toolchain.steps import Steps

BUILDER = """
import sys
from pathlib import Path
from toolchain import cache
from toolchain.recipe import Recipe

version, gate = sys.argv[1:]

def build(result, steps):
    steps.run("wait at the gate", ["cat", gate])
    (result / "tool").touch()

print(cache.ensure(Recipe("tiny", version, "tool", build)), flush=True)
"""


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A pipe on which a build blocks until the test opens it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


async def start_builder(version: str, gate: Path) -> Process:
    arguments = (sys.executable, "-c", BUILDER, version, gate)
    return await asyncio.create_subprocess_exec(*arguments, cwd=REPOSITORY, stdout=PIPE, stderr=PIPE)


async def read_until(stream: asyncio.StreamReader | None, words: str) -> None:
    assert stream is not None
    async with asyncio.timeout(60):
        while words not in (line := (await stream.readline()).decode()):
            assert line, f"exited without printing {words!r}"


async def kill_at_the_gate(version: str, gate: Path) -> None:
    builder = await start_builder(version, gate)
    await read_until(builder.stderr, "wait at the gate")
    builder.kill()
    await builder.communicate()


async def open_gate(gate: Path) -> None:
    await asyncio.to_thread(gate.write_bytes, b"")


async def test_a_step_that_outlives_its_killed_run_is_waited_for(gate: Path) -> None:
    await kill_at_the_gate("1", gate)
    following = await start_builder("1", Path(os.devnull))
    await read_until(following.stderr, "waiting for another run")
    assert len(list(cache.root().glob(".tiny-1-*"))) == 1, "the step still works there"
    assert list(cache.root().glob("tiny-*")) == [], "nothing looks finished"
    await open_gate(gate)
    printed, stderr = await following.communicate()
    assert Path(printed.decode().strip()).is_file(), stderr
    assert list(cache.root().glob(".tiny-*")) == []


async def test_any_next_build_removes_the_files_of_a_killed_build(gate: Path) -> None:
    await kill_at_the_gate("1", gate)
    other = await start_builder("2", Path(os.devnull))
    await other.communicate()
    assert len(list(cache.root().glob(".tiny-1-*"))) == 1, "its step still works there"
    await open_gate(gate)
    with cache.locked(Recipe("tiny", "1", "tool", lambda *_: None).key):  # released when the step has ended
        pass
    another = await start_builder("3", Path(os.devnull))
    await another.communicate()
    assert list(cache.root().glob(".tiny-*")) == []


def test_temporary_files_of_a_step_are_in_its_scratch_directory(tmp_path: Path) -> None:
    def build(result: Path, steps: Steps) -> None:
        steps.run(
            "leave a file",
            ["sh", "-c", 'mktemp >tool && case $(cat tool) in "$TMPDIR"/*) ;; *) exit 1; esac'],
            cwd=result,
        )

    left = Path(cache.ensure(Recipe("tiny", "1", "tool", build)).read_text(encoding="utf-8").strip())
    assert left.is_relative_to(tmp_path)
    assert not left.exists()
