"""Whose turn it is: the machine-wide lock of the one cluster, and what its holder says about itself.

The lock belongs to an open file. Whoever inherits that holds it too, and it is free when the last of them has ended,
however they ended. What a holder wrote stays there if it was killed, for the next one to clear up by.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from toolchain.errors import TestbedError

LOCK = Path("/run/runtime-governor-cluster")
"""Where only root may write: what it says is removed is removed."""
_LOOK_EVERY_S = 0.05

Say = Callable[[str], None]


@dataclass(frozen=True)
class Holder:
    """A cluster and its guard."""

    name: str
    """Who has started it, for people."""
    guard: int
    directory: str
    """All its files; removed with it."""
    made: tuple[str, ...] = ()
    """Directories at fixed places that were not there before; removed with it."""
    lasting: bool = False
    """Whether it stays until a person ends it."""

    @property
    def lives(self) -> bool:
        """Whether its guard runs."""
        try:
            words = Path(f"/proc/{self.guard}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"testbed.cluster.guard" in words and f"--directory={self.directory}".encode() in words

    def __str__(self) -> str:
        return f"{self.name} (process {self.guard}, files in {self.directory})"


def take() -> IO[str] | None:
    """The lock, or None while somebody else has it."""
    file = os.fdopen(os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


async def wait(say: Say, within_s: float) -> IO[str]:
    """The lock, when it is free; says whom it waits for, and does not wait for somebody who may never end."""
    named: Holder | None = None
    try:
        async with asyncio.timeout(within_s):
            while not (lock := take()):
                current = holder()
                if current and current.lasting:
                    raise TestbedError(f"this machine's cluster is that of {current}; end it with `make testbed-down`")
                if current and current != named:
                    say(f"waiting for this machine's cluster, which is that of {current}")
                named = current or named
                await asyncio.sleep(_LOOK_EVERY_S)
            return lock
    except TimeoutError as error:
        raise TestbedError(f"this machine's cluster did not become free; it is that of {named or 'nobody'}") from error


def holder() -> Holder | None:
    """Who has the cluster now and has said so."""
    try:
        with LOCK.open(encoding="utf-8") as file:
            found = read(file)
    except FileNotFoundError:
        return None
    return found if found and found.lives else None


def read(lock: IO[str]) -> Holder | None:
    """What was written there last."""
    lock.seek(0)
    try:
        described = json.loads(lock.read())
    except ValueError:  # nothing, or just being written
        return None
    return Holder(**{**described, "made": tuple(described["made"])})


def write(lock: IO[str], described: Holder | None) -> None:
    """Say who has it: before anything is made that would have to be removed, and nothing when all is."""
    text = json.dumps(asdict(described)) if described else ""
    lock.seek(0)
    lock.truncate()
    lock.write(text)
    lock.flush()
