"""Tools are found, or built once and atomically; a user who cannot build them gets instructions."""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from testbed import recipes, redis
from testbed.builds.dapr import VERSION, VERSION_1_16, daprd
from toolchain import cache, debian, golang
from toolchain.errors import StepError, TestbedError
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY
from toolchain.steps import Steps

BUILDER = """
import sys
from pathlib import Path
from toolchain import cache
from toolchain.recipe import Recipe

gate, builds = map(Path, sys.argv[1:])

def build(result, steps):
    with builds.open("a") as file:
        file.write("built ")
    steps.run("wait at the gate", ["cat", gate])
    (result / "tool").touch()

print(cache.ensure(Recipe("tiny", "1", "tool", build)), flush=True)
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


async def open_gate(gate: Path) -> None:
    await asyncio.to_thread(gate.write_bytes, b"")


async def start_builder(gate: Path) -> Process:
    arguments = (sys.executable, "-c", BUILDER, gate, gate.with_name("builds"))
    return await asyncio.create_subprocess_exec(*arguments, cwd=REPOSITORY, stdout=PIPE, stderr=PIPE)


def built_by(printed: tuple[bytes, bytes]) -> Path:
    return Path(printed[0].decode().strip().splitlines()[-1])


async def read_until(stream: asyncio.StreamReader | None, words: str) -> None:
    assert stream is not None
    async with asyncio.timeout(60):
        while words not in (line := (await stream.readline()).decode()):
            assert line, f"exited without printing {words!r}"


def tool(build_argv: list[str]) -> Recipe:
    def build(result: Path, steps: Steps) -> None:
        steps.run("compile", build_argv, cwd=result)

    return Recipe("tiny", "1", "tool", build)


def put_executable(directory: Path, name: str, printed: str) -> Path:
    directory.mkdir(parents=True)
    file = directory / name
    file.write_text(f"#!/bin/sh\necho '{printed}'\n", encoding="utf-8")
    file.chmod(0o755)
    return file


async def test_concurrent_runs_build_once(gate: Path) -> None:
    first = await start_builder(gate)
    await read_until(first.stderr, "wait at the gate")
    second = await start_builder(gate)
    await read_until(second.stderr, "waiting for another run")
    await open_gate(gate)
    one, two = await asyncio.gather(first.communicate(), second.communicate())
    assert built_by(one) == built_by(two)
    assert built_by(one).is_file()
    assert gate.with_name("builds").read_text() == "built "


async def test_an_interrupted_build_ends_its_step(gate: Path) -> None:
    builder = await start_builder(gate)
    await read_until(builder.stderr, "wait at the gate")
    builder.send_signal(signal.SIGINT)
    await builder.communicate()
    with pytest.raises(OSError, match="No such device"):
        os.open(gate, os.O_WRONLY | os.O_NONBLOCK)  # no process waits at the gate any more
    assert not list(cache.root().glob("*tiny-*"))


def test_a_failing_step_names_itself_and_its_log() -> None:
    recipe = tool(["sh", "-c", "echo no such header >&2; exit 3"])
    with pytest.raises(StepError, match='tiny 1: step "compile" failed') as caught:
        cache.ensure(recipe)
    assert str(caught.value.log) in str(caught.value)
    assert "exit status 3" in str(caught.value)
    assert "no such header" in caught.value.log.read_text()
    assert not cache.executable_of(recipe).exists()


def test_a_step_with_a_missing_program_names_itself() -> None:
    with pytest.raises(StepError, match=r'step "compile" failed \(.*no-such-compiler'):
        cache.ensure(tool(["no-such-compiler"]))


def test_a_failed_build_is_retried() -> None:
    with pytest.raises(StepError):
        cache.ensure(tool(["false"]))
    assert cache.ensure(tool(["touch", "tool"])).is_file()


def test_a_changed_recipe_has_another_cache_entry() -> None:
    one = Recipe("tiny", "1", "tool", lambda *_: None, inputs=("-s",))
    two = Recipe("tiny", "1", "tool", lambda *_: None, inputs=("-w",))
    assert len({one.key, two.key, Recipe("tiny", "2", "tool", lambda *_: None, inputs=("-s",)).key}) == 3


@pytest.mark.parametrize(("name", "version"), [("daprd", VERSION), ("daprd-1.16", VERSION_1_16)])
def test_a_daprd_of_the_version_on_the_path_is_used(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = put_executable(tmp_path / "bin", "daprd", version)
    monkeypatch.setenv("PATH", str(found.parent), prepend=os.pathsep)
    assert recipes.provide([name]) == {name: found}


def test_a_daprd_of_the_version_in_daprs_own_directory_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = put_executable(tmp_path / "bin", "daprd", "1.17.0")
    found = put_executable(tmp_path / ".dapr" / "bin", "daprd", VERSION)
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert daprd(VERSION).find() == found


def test_a_daprd_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(put_executable(tmp_path / "bin", "daprd", "1.17.0").parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert daprd(VERSION).find() is None


@pytest.mark.parametrize(("version", "fits"), [("5.0.14", False), ("6.0.0", True), ("7.0.15", True), ("10.1", True)])
def test_redis_must_be_new_enough(version: str, fits: bool) -> None:
    assert redis.is_supported(f"Redis server v={version} sha=00000000:0 malloc=libc bits=64") is fits


@pytest.mark.parametrize(
    ("printed", "fits"),
    [("go1.26.6", True), ("go1.26.10", True), ("go1.27", True), ("go1.26.5", False), ("go1.9.9", False), ("", False)],
)
def test_go_must_be_as_new_as_the_pinned_one(printed: str, fits: bool) -> None:
    assert golang.is_fitting(f"go version {printed} linux/amd64", "1.26.6") is fits


def test_without_root_the_install_command_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    absent = ["no-such-package", "nor-this-one"]
    with pytest.raises(TestbedError, match=r"sudo apt-get install --yes no-such-package nor-this-one$"):
        debian.require(["base-files", *absent, "no-such-package"])


def test_without_apt_the_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TestbedError, match=r"no apt-get: install the equivalents of Debian's redis-tools$"):
        debian.require(["redis-tools"])


def test_an_unknown_server_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(TestbedError, match=r"'mysql'; known are daprd, redis, etcd"):
        recipes.provide(["mysql"])
