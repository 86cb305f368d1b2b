"""No secret where it does not belong: unique values, and a scan of everything that a run leaves on disk or prints.

The scan is shown to work by a planted control. Allowed is a delivered value in a 0600 file of the runtime that uses it,
and a token in the one 0600 file that was made for it.
"""

import asyncio
import base64
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from demo.__main__ import STEPS
from demo.scenario import Story
from demo.world import World

READING = (
    ("get", "runtimes", "-o", "json"),
    ("get", "profiles", "-o", "yaml"),
    ("get", "revisions", "-o", "json"),
    ("describe", "runtime", "runtime-2"),
    ("history", "Profile/orders-runtime-2"),
    ("token", "list"),
)


def spellings(secret: str) -> list[bytes]:
    """A secret as it is and as it would hide in an encoding."""
    encoded = base64.b64encode(secret.encode()).rstrip(b"=")
    return [secret.encode(), encoded[:-1], secret.encode().hex().encode(), secret[::-1].encode()]


def holders(directory: Path, secret: str) -> set[Path]:
    """Every file below a directory that holds the secret in any spelling."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path for path in files if any(text in path.read_bytes() for text in spellings(secret))}


def is_private(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


def processes_that_show(secret: str) -> list[str]:
    """Command lines that everybody on the machine can read."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except OSError:
            continue
        if secret.encode() in words:
            found.append(words.decode(errors="replace"))
    return found


async def command(world: World, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main", *words),
        *("--server", world.server.url, "--token-file", str(world.server.admin_token_file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def back_up(world: World) -> None:
    """A backup as an administrator makes it while the server runs."""
    with (
        sqlite3.connect(world.server.data_dir / "governor.db") as source,
        sqlite3.connect(world.directory / "backup.db") as target,
    ):
        source.backup(target)


@pytest.mark.timeout(900)  # the whole demo
async def test_secrets_are_only_in_private_files_of_whom_they_are_for(
    tmp_path: Path, redis_binary: Path, daprd_binary: Path
) -> None:
    printed = []
    async with World(tmp_path, {"redis": redis_binary, "daprd": daprd_binary}) as world:
        story = Story(world)
        for step in STEPS:
            printed += await step.run(story)
        printed += [await command(world, *words) for words in READING]
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
    assert holders(tmp_path, first) - own, "the runtimes that use it have it"


def test_the_scan_finds_what_is_planted_in_any_spelling(tmp_path: Path) -> None:
    secret = os.urandom(12).hex()
    for number, text in enumerate(spellings(secret)):
        (tmp_path / f"planted-{number}").write_bytes(b"before " + text + b" after")
    (tmp_path / "innocent").write_text("nothing here")

    assert {path.name for path in holders(tmp_path, secret)} == {f"planted-{n}" for n in range(len(spellings(secret)))}
