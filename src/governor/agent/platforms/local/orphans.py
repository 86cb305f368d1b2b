"""Processes that a killed agent left behind and that nobody goes on with, such as one without a record."""

import asyncio
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from governor.agent.platforms.local.daprd import OWNER_VARIABLE
from governor.process.child import detached
from governor.process.child.child import start_time
from governor.process.telemetry import logging

_GRACE_S: Final = 5.0

_log = logging.get_logger(__name__)


async def end_strays(owner: Path, spared: Collection[int]) -> None:
    """End every process that bears this agent's mark, except the groups that are ``spared``."""
    marked = await asyncio.to_thread(lambda: list(detached.pids_with_variable(OWNER_VARIABLE, str(owner))))
    groups = {group for group in map(_group, marked) if group in marked and group not in spared}
    await asyncio.gather(*map(_end, groups))


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


async def _end(pid: int) -> None:
    left = detached.adopt(pid, start_time(pid), Path(os.devnull), 0)
    if left is not None:
        _log.warning("ending a sidecar that an earlier agent left behind", pid=pid)
        await left.stop(_GRACE_S)
