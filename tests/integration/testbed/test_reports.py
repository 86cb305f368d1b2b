"""What a test's report shows of its servers: their logs when it fails, and an error when one is missing."""

import os
import subprocess
import sys
from pathlib import Path

from toolchain.repository import REPOSITORY

PROGRAM = """
from testbed import recipes
from toolchain.recipe import Recipe

def build(result, steps):
    steps.run("compile", ["false"])

recipes.SERVERS["daprd"] = recipes.Server(Recipe("daprd", "0", "daprd", build), "daprd")

async def test_fails(redis_server):
    assert await redis_server.execute("PING") == "something else"

def test_needs_a_server_that_cannot_be_built(daprd_binary):
    pass
"""


def test_a_report_shows_logs_of_servers_and_a_missing_one_is_an_error_never_a_skip(tmp_path: Path) -> None:
    file = tmp_path / "test_program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    options = ["-p", "testbed.pytest_plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    argv = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(file)]
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTEST_DEBUG_TEMPROOT": str(tmp_path),  # the directories of other runs are not searched and deleted
    }
    result = subprocess.run(argv, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 failed, 1 error" in result.stdout
    assert "skipped" not in result.stdout
    failure, _, _ = result.stdout.partition("short test summary")
    assert "end of" in failure
    assert "Ready to accept connections" in failure
    assert 'step "compile" failed' in failure
