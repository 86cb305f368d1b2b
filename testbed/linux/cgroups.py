"""Cgroups of a name of their own, which outlive the processes in them and have to be removed."""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HIERARCHIES = Path("/sys/fs/cgroup")


def below_hierarchies(pattern: str) -> list[Path]:
    """Cgroups, or files of them, of that name: in each hierarchy, or in the only one."""
    return [*HIERARCHIES.glob(pattern), *HIERARCHIES.glob(f"*/{pattern}")]


def new_name(prefix: str) -> str:
    """A name that says which process uses it."""
    return f"{prefix}-{os.getpid()}-{secrets.token_hex(4)}"


def sweep(prefix: str) -> None:
    """Remove the cgroups of processes that have ended."""
    for name in {path.name for path in below_hierarchies(f"{prefix}-*")}:
        if not Path("/proc", name.split("-")[-2]).exists():
            remove(below_hierarchies(name))


def remove(cgroups: Iterable[Path]) -> None:
    """Remove cgroups and all below, as far as no process is in them; others may remove them at the same time."""
    for cgroup in cgroups:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
