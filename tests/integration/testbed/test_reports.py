"""What a test's report shows of its servers: their logs when it fails, and an error when one is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from toolchain.repository import REPOSITORY

FAILING = """
async def test_fails(redis_server):
    assert await redis_server.execute("PING") == "something else"
"""

MISSING = """
import pytest
from testbed import recipes
from toolchain.recipe import Recipe

def build(result, steps):
    steps.run("compile", ["false"])

recipes.SERVERS["redis"] = recipes.Server(Recipe("redis", "0", "redis-server", build), "redis-server")

async def test_asks_for_a_server_that_cannot_be_built(redis_server):
    pass
"""


def outcome_of(program: str, directory: Path) -> str:
    """What pytest prints about that test program."""
    file = directory / "test_program.py"
    file.write_text(program, encoding="utf-8")
    options = ["-p", "testbed.pytest_plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    argv = [sys.executable, "-m", "pytest", *options, "--rootdir", str(directory), str(file)]
    result = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


def test_a_failing_test_shows_the_end_of_its_servers_logs(tmp_path: Path) -> None:
    printed = outcome_of(FAILING, tmp_path)
    assert "1 failed" in printed
    assert "end of" in printed
    assert "Ready to accept connections" in printed


def test_a_missing_server_is_an_error_and_never_a_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    printed = outcome_of(MISSING, tmp_path)
    assert "1 error" in printed
    assert "skipped" not in printed
    assert 'step "compile" failed' in printed
