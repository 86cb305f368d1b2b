"""The machine-wide lock of the one cluster, and the description that its holder writes into the lock file.

The lock belongs to an open file description: processes that inherit it hold the lock too, and the kernel releases it
when the last of them exits. The description of a killed holder stays in the file; the next holder cleans up by it.
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
"""Writable by root alone: the directories that it lists are removed."""
_POLL_S = 0.05

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Holder:
    """A cluster and its guard process."""

    name: str
    """The owner, as shown to users that wait for the lock."""
    guard: int
    """The guard's process id."""
    directory: str
    """All files of the cluster; removed with it."""
    created: tuple[str, ...] = ()
    """Fixed host directories that did not exist before; removed with the cluster."""
    detached: bool = False
    """Whether the cluster outlives its starter and runs until `make testbed-down`."""

    @property
    def is_alive(self) -> bool:
        """Whether the guard runs."""
        try:
            words = Path(f"/proc/{self.guard}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"testbed.cluster.guard" in words and f"--directory={self.directory}".encode() in words

    def __str__(self) -> str:
        return f"{self.name} (process {self.guard}, files in {self.directory})"


def try_acquire() -> IO[str] | None:
    """Return the lock, or None while another process holds it."""
    file = os.fdopen(os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


async def acquire(notify: Notify, timeout_s: float) -> IO[str]:
    """Wait for the lock and return it; report each holder once, and fail at once if the holder is detached."""
    reported: Holder | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while not (lock := try_acquire()):
                holder = current_holder()
                if holder and holder.detached:
                    raise TestbedError(f"this machine's cluster is held by {holder}; end it with `make testbed-down`")
                if holder and holder != reported:
                    notify(f"waiting for this machine's cluster, held by {holder}")
                reported = holder or reported
                await asyncio.sleep(_POLL_S)
            return lock
    except TimeoutError as error:
        held = f"held by {reported}" if reported else "held by an unknown process"
        raise TestbedError(f"this machine's cluster was not released within {timeout_s:g} s; it is {held}") from error


def current_holder() -> Holder | None:
    """Return the holder whose guard runs, if it has described itself."""
    try:
        with LOCK.open(encoding="utf-8") as file:
            found = read_holder(file)
    except FileNotFoundError:
        return None
    return found if found and found.is_alive else None


def read_holder(lock: IO[str]) -> Holder | None:
    """Return the holder that was written last, alive or not."""
    lock.seek(0)
    try:
        described = json.loads(lock.read())
        return Holder(**{**described, "created": tuple(described["created"])})
    except (ValueError, KeyError, TypeError):  # empty, being written, or written by another version
        return None


def write_holder(lock: IO[str], holder: Holder | None) -> None:
    """Describe the holder before it creates anything that must be removed; None once all is removed."""
    text = json.dumps(asdict(holder)) if holder else ""
    lock.seek(0)
    lock.truncate()
    lock.write(text)
    lock.flush()
