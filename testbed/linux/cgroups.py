"""Named cgroups, which outlive their processes and must be removed."""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

HIERARCHIES = Path("/sys/fs/cgroup")


def below_hierarchies(pattern: str) -> list[Path]:
    """Return the cgroups, or files in them, that match a pattern in any hierarchy (version 1 or 2)."""
    return [*HIERARCHIES.glob(pattern), *HIERARCHIES.glob(f"*/{pattern}")]


def new_name(prefix: str) -> str:
    """Return a new name that contains this process's id."""
    return f"{prefix}-{os.getpid()}-{secrets.token_hex(4)}"


def sweep(prefix: str) -> None:
    """Remove the cgroups whose creating process has exited."""
    for name in {path.name for path in below_hierarchies(f"{prefix}-*")}:
        if not Path("/proc", name.split("-")[-2]).exists():
            remove(below_hierarchies(name))


def remove(cgroups: Iterable[Path]) -> None:
    """Remove cgroup trees as far as they have no processes; concurrent removal is allowed."""
    for cgroup in cgroups:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()
