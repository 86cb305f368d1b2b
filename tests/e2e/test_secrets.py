"""Secrets leak nowhere: a run with unique values, and a scan of everything that it prints or leaves on disk.

Allowed are a delivered value in 0600 files of the runtimes that use it, and a token in its own 0600 file. A control
shows that the scan finds planted values.
"""

import asyncio
import base64
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from demo.__main__ import STEPS
from demo.scenario import Scenario
from demo.world import World

READ_COMMANDS = (
    ("get", "runtimes", "-o", "json"),
    ("get", "profiles", "-o", "yaml"),
    ("get", "revisions", "-o", "json"),
    ("describe", "runtime", "runtime-2"),
    ("history", "Profile/orders-runtime-2"),
    ("token", "list"),
)


def encodings(secret: str) -> list[bytes]:
    """Return a secret in plain and encoded forms."""
    encoded = base64.b64encode(secret.encode()).rstrip(b"=")
    return [secret.encode(), encoded[:-1], secret.encode().hex().encode(), secret[::-1].encode()]


def holders(directory: Path, secret: str) -> set[Path]:
    """Return every file below a directory that contains the secret in any form."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path for path in files if any(text in path.read_bytes() for text in encodings(secret))}


def is_private(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


def processes_that_show(secret: str) -> list[str]:
    """Return the command lines, readable by every user, that contain the secret."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = file.read_bytes()
        except OSError:
            continue
        if secret.encode() in command_line:
            found.append(command_line.decode(errors="replace"))
    return found


async def command(world: World, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main", *arguments),
        *("--server", world.server.url, "--token-file", str(world.server.admin_token_file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def back_up(world: World) -> None:
    """Back up the database while the server runs."""
    with (
        sqlite3.connect(world.server.data_dir / "governor.db") as source,
        sqlite3.connect(world.directory / "backup.db") as target,
    ):
        source.backup(target)


@pytest.mark.timeout(900)  # the whole demo
async def test_secrets_are_only_in_private_files_of_the_runtimes_that_use_them(
    tmp_path: Path, redis_binary: Path, daprd_binary: Path
) -> None:
    printed = []
    async with World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary}) as world:
        scenario = Scenario(world)
        for step in STEPS:
            printed += await step.run(scenario)
        printed += [await command(world, *arguments) for arguments in READ_COMMANDS]
        back_up(world)
        (tmp_path / "printed.txt").write_text("\n".join(printed))
        first, second = (store.redis.password for store in world.stores)
        admin = world.server.admin_token_file.read_text().strip()
        state = [runtime.agent.state_dir for runtime in world.runtimes]
        shown = [line for secret in (first, second, admin) for line in processes_that_show(secret)]
    own = {path for store in ("redis-1", "redis-2") for path in (tmp_path / store).glob("redis.conf")}

    assert shown == []
    assert holders(tmp_path, admin) == {world.server.admin_token_file}
    assert is_private(world.server.admin_token_file)
    assert {path for path in holders(tmp_path, first) - own if not is_private(path)} == set()
    assert {path for path in holders(tmp_path, first) - own if not path.is_relative_to(state[0])} == {
        path for path in holders(tmp_path, first) - own if path.is_relative_to(state[1])
    }
    assert {path for path in holders(tmp_path, second) - own if not path.is_relative_to(state[1])} == set()
    assert holders(tmp_path, first) - own, "a runtime that uses the password stores it"


def test_the_scan_finds_planted_secrets_in_every_encoding(tmp_path: Path) -> None:
    secret = os.urandom(12).hex()
    for number, text in enumerate(encodings(secret)):
        (tmp_path / f"planted-{number}").write_bytes(b"before " + text + b" after")
    (tmp_path / "innocent").write_text("nothing here")

    assert {path.name for path in holders(tmp_path, secret)} == {f"planted-{n}" for n in range(len(encodings(secret)))}
