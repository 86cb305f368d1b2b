"""The demo: its steps, the program as a user runs it, and a scan of what it prints and stores for its secrets."""

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from demo.__main__ import STEPS
from demo.steps import NotObservedError, expect
from governor.cli.main import run
from testbed.waiting import until
from tests.e2e.leftovers import processes_below
from tests.e2e.secret_scan import Secrets, encodings, holders

ROOT = Path(__file__).parents[2]
READ_COMMANDS = (
    ("get", "runtimes", "-o", "json"),
    ("get", "profiles", "-o", "yaml"),
    ("get", "revisions", "-o", "json"),
    ("describe", "runtime", "runtime-2"),
    ("history", "Profile/orders-runtime-2"),
    ("token", "list"),
)


async def start_demo(tmp_path: Path, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "demo",
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    seen = ""
    async with asyncio.timeout(120):
        while text not in seen:
            line = await process.stdout.readline()
            assert line, f"the demo ended before it printed {text!r}:\n{seen}"
            seen += line.decode()
    return seen


def test_the_demo_is_a_list_of_named_steps() -> None:
    assert [step.name for step in STEPS] == [
        "start-stores",
        "start-server",
        "configure",
        "start-runtimes",
        "store-orders",
        "show-orders",
        "repoint",
        "show-proof",
        "broken-change",
        "without-preflight",
        "restart",
        "bad-documents",
    ]


@pytest.mark.timeout(900)  # the whole demo
async def test_the_demo_prints_its_result_keeps_running_and_leaks_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    temporary, records = tmp_path / "tmp", tmp_path / "records"
    temporary.mkdir()
    records.mkdir()
    process = await start_demo(temporary, KEEP="1")
    output = await read_until(process, "Ctrl-C stops everything.")
    (directory,) = temporary.iterdir()
    secrets = Secrets.of(directory)
    exported = next(line for line in output.splitlines() if "export GOVERNOR_SERVER=" in line)
    settings = dict(word.split("=", 1) for word in exported.split()[1:])
    table = await get_runtimes(settings)
    codes = [await run_command(settings, *arguments) for arguments in READ_COMMANDS]
    back_up(directory / "server" / "data" / "governor.db", records / "backup.db")
    leaks, shown = secrets.leaks(directory), secrets.shown()
    is_seen = [secrets.are_in(directory / place) for place in ("server/data", "runtime-1/state", "runtime-2/state")]
    process.send_signal(signal.SIGINT)
    output += (await process.communicate())[0].decode()
    (records / "printed.txt").write_text("".join([output, table, *capsys.readouterr()]))

    assert "runtime-1" in table
    assert "runtime-2" in table
    assert process.returncode == 0, output
    assert [title for title in (step.title for step in STEPS) if title not in output] == []
    assert output.rstrip().splitlines()[-1].startswith("Runtime 2 was re-pointed to Redis 1 by one central change")
    assert processes_below(tmp_path) == []
    assert list(temporary.iterdir()) == []
    assert codes == [0] * len(READ_COMMANDS)
    assert is_seen == [True, True, True]
    assert (leaks, shown, secrets.leaks(records)) == (set(), [], set())


async def get_runtimes(settings: dict[str, str]) -> str:
    """Return what ``governor get runtimes`` prints to a user who has followed the demo's hint."""
    listing = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main", "get", "runtimes"),
        env={**os.environ, **settings},
        stdout=asyncio.subprocess.PIPE,
    )
    return (await listing.communicate())[0].decode()


async def run_command(settings: dict[str, str], *arguments: str) -> int:
    """Run a command of ``governor`` within this process, and return its exit code."""
    access = (f"--server={settings['GOVERNOR_SERVER']}", f"--token-file={settings['GOVERNOR_TOKEN_FILE']}")
    return await asyncio.to_thread(run, [*access, *arguments])


def back_up(database: Path, target: Path) -> None:
    """Back up the database while the server runs."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def test_the_scan_finds_planted_secrets_in_every_encoding(tmp_path: Path) -> None:
    secret = os.urandom(12).hex()
    for number, text in enumerate(encodings(secret)):
        (tmp_path / f"planted-{number}").write_bytes(b"before " + text + b" after")
    (tmp_path / "innocent").write_text("nothing here")

    assert {path.name for path in holders(tmp_path, secret)} == {f"planted-{n}" for n in range(len(encodings(secret)))}


@pytest.mark.parametrize(("number", "step"), [(signal.SIGTERM, 2), (signal.SIGINT, 4)])
async def test_an_interrupted_demo_cleans_up(tmp_path: Path, number: signal.Signals, step: int) -> None:
    process = await start_demo(tmp_path)
    await read_until(process, f"{step}/")
    await until(lambda: _some(processes_below(tmp_path)))
    process.send_signal(number)
    output = (await process.communicate())[0].decode()

    assert process.returncode == 130, output
    assert processes_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_observation_fails_the_step() -> None:
    with pytest.raises(NotObservedError, match="the order: expected 'foo', observed 'bar'"):
        expect("the order", "bar", "foo")


async def _some(found: list[str]) -> bool:
    return bool(found)
