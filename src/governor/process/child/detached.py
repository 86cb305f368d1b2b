"""Processes that outlive the program that started them: started here, or found again by a later run of the program.

Unlike a ``child``, such a process goes on when its program ends, however that happens. Its output goes to a file.
Which processes to look for again, and what to do about them, is the caller's.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.process.child.child import ChildExit, exit_of, same_process, signal_group, start_time
from governor.process.child.output import FileOutput

_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these, which a program that it starts would inherit."""


async def start(argv: Sequence[str], *, env: Mapping[str, str], log_file: Path) -> "Detached":
    """Start ``argv`` in a session of its own; its output is appended to ``log_file``."""
    output = FileOutput(log_file)
    with output.opened() as descriptor:
        files: list[tuple[object, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, descriptor, 1),
            (os.POSIX_SPAWN_DUP2, descriptor, 2),
        ]
        try:
            # Not in a thread: whoever is cancelled here must know whether there is a process.
            pid = _spawn(list(argv), env, files)
        except OSError as error:
            message = f"cannot start {argv[0]}: {error.strerror or error}"
            raise GovernorError(Kind.PRECONDITION, "child-start", message) from error
    return Detached(pid, output)


def _spawn(argv: list[str], env: Mapping[str, str], files: list[tuple[object, ...]]) -> int:
    return os.posix_spawnp(argv[0], argv, env, file_actions=files, setsid=True, setsigdef=_RESTORED)


def adopt(pid: int, started: str, log_file: Path, log_begin: int) -> "Detached | None":
    """The process that an earlier run recorded by ``pid`` and ``start_time``; None when it has ended."""
    try:
        found = Detached(pid, FileOutput(log_file, log_begin))
    except ProcessLookupError:
        return None
    # Asked only now: since its descriptor is held, the number cannot pass to another process unnoticed.
    if found.start_time != started or not same_process(pid, started):
        found.release()
        return None
    return found


def pids_with_variable(name: str, value: str) -> Iterator[int]:
    """All processes that were started with this environment variable, as far as they can be looked at. Blocking."""
    wanted = f"{name}={value}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables:
            yield int(entry.name)


class Detached:
    """A process with its group, watched by its descriptor; ``pid`` and ``start_time`` tell it from all others."""

    def __init__(self, pid: int, output: FileOutput) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self.start_time = start_time(pid)
        self.log_begin = output.begin
        self._output = output
        self._ended: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._end)

    @property
    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return not self._ended.done()

    async def wait(self) -> ChildExit:
        """Wait for its end; whoever waits may be cancelled. The exit code is known of our own children only."""
        ended = await asyncio.shield(self._ended)
        return ChildExit(ended.code, ended.signal, await asyncio.to_thread(self._output.tail))

    async def stop(self, grace_s: float) -> ChildExit:
        """Ask the whole group to end by SIGTERM, and end it by SIGKILL after ``grace_s`` or when cancelled."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait({self._ended}, timeout=grace_s)
        finally:
            self._signal(signal.SIGKILL)
        return await self.wait()

    def release(self) -> None:
        """Stop watching; the process goes on."""
        if self.running:
            self._ended.cancel()
            self._close()

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            signal_group(self.pid, number)

    def _end(self) -> None:
        ended = _reaped(self._descriptor)
        # What it started does not outlive it; the group's id stays taken while a member lives.
        signal_group(self.pid, signal.SIGKILL)
        self._close()
        self._ended.set_result(ended)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


def _reaped(descriptor: int) -> ChildExit:
    """How a process that has ended did so; only its parent is told."""
    try:
        result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED)
    except ChildProcessError:
        return ChildExit(None, "", ())
    assert result is not None  # noqa: S101 - only with WNOHANG there may be none
    return exit_of(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status, ())
