"""Detached processes: they outlive the program that started them, and a later run of the program adopts them.

Unlike a ``child``, a detached process keeps running when the program ends for any reason. Its output goes to a file or
where that of this process goes.
Which processes to adopt or stop is up to the caller.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.process.child.child import ChildExit, exit_from, same_process, signal_group, start_time
from governor.process.child.output import FileOutput, InheritedOutput

_RESTORED: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; a started program would inherit that."""


async def start(
    argv: Sequence[str], *, env: Mapping[str, str], log_file: Path | None = None, descriptors: Sequence[int] = ()
) -> "Detached":
    """Start ``argv`` in a new session, with ``descriptors``, and append its output to ``log_file`` if given."""
    output = InheritedOutput() if log_file is None else FileOutput(log_file)
    # Duplicating a descriptor to itself makes it inheritable.
    files: list[tuple[object, ...]] = [(os.POSIX_SPAWN_DUP2, each, each) for each in descriptors]
    files.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    with output.open() if isinstance(output, FileOutput) else contextlib.nullcontext() as descriptor:
        if descriptor is not None:
            files += [(os.POSIX_SPAWN_DUP2, descriptor, 1), (os.POSIX_SPAWN_DUP2, descriptor, 2)]
        try:
            # Not in a thread: a cancelled caller must know whether the process was started.
            pid = _spawn(list(argv), env, files)
        except OSError as error:
            message = f"cannot start {argv[0]}: {error.strerror or error}"
            raise GovernorError(Kind.PRECONDITION, "child-start", message) from error
    return Detached(pid, output)


def _spawn(argv: list[str], env: Mapping[str, str], files: list[tuple[object, ...]]) -> int:
    return os.posix_spawnp(argv[0], argv, env, file_actions=files, setsid=True, setsigdef=_RESTORED)


def adopt(pid: int, started: str, log_file: Path, log_begin: int) -> "Detached | None":
    """Return the process that an earlier run recorded by ``pid`` and ``start_time``, or None if it has ended."""
    try:
        found = Detached(pid, FileOutput(log_file, log_begin))
    except ProcessLookupError:
        return None
    # Checked after opening the pidfd: from then on a reused pid is noticed.
    if found.start_time != started or not same_process(pid, started):
        found.release()
        return None
    return found


def pids_with_variable(name: str, value: str) -> Iterator[int]:
    """Yield the pids of all readable processes that were started with this environment variable. Blocking."""
    variable = f"{name}={value}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if variable in variables:
            yield int(entry.name)


class Detached:
    """A detached process and its process group, watched by pidfd; ``pid`` and ``start_time`` identify it."""

    def __init__(self, pid: int, output: FileOutput | InheritedOutput) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self.start_time = start_time(pid)
        self.log_begin = output.begin
        self._output = output
        self._exit: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_exit)

    @property
    def running(self) -> bool:
        """Whether the process has not exited yet."""
        return not self._exit.done()

    async def wait(self) -> ChildExit:
        """Wait until the process exits. The exit code is known only for children of this process."""
        ended = await asyncio.shield(self._exit)
        return ChildExit(ended.code, ended.signal, await asyncio.to_thread(self._output.tail))

    async def exits_within(self, seconds: float) -> bool:
        """Return whether the process has exited, after waiting that long at most."""
        await asyncio.wait({self._exit}, timeout=seconds)
        return not self.running

    async def stop(self, grace_s: float) -> ChildExit:
        """Send SIGTERM to the process group, and SIGKILL after ``grace_s`` or on cancellation."""
        self._signal(signal.SIGTERM)
        try:
            await self.exits_within(grace_s)
        finally:
            self._signal(signal.SIGKILL)
        return await self.wait()

    def release(self) -> None:
        """Stop watching; the process keeps running."""
        if self.running:
            self._exit.cancel()
            self._close()

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            signal_group(self.pid, number)

    def _on_exit(self) -> None:
        exit_ = _reap(self._descriptor)
        # Descendants do not outlive it; the group id is not reused while a member lives.
        signal_group(self.pid, signal.SIGKILL)
        self._close()
        self._exit.set_result(exit_)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


def _reap(descriptor: int) -> ChildExit:
    """Return how a process has exited; only its parent can know."""
    try:
        result = os.waitid(os.P_PIDFD, descriptor, os.WEXITED)
    except ChildProcessError:
        return ChildExit(None, "", ())
    assert result is not None  # noqa: S101 - None is returned only with WNOHANG
    return exit_from(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status, ())
