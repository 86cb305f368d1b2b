"""Child processes: started in a new session, read, and stopped together with their descendants.

A child's standard input is empty. Standard output and error are one stream, which goes to a file (a child that outlives
this process can keep writing there) or line by line to a callback. Parsing the lines is up to the caller. A child that
is spoken to has a socket as its input and output instead (see ``piped``).
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.child.output import FileOutput, Output, PipeOutput

_DRAIN_S: Final = 1.0
"""How long to keep reading after a child has exited while descendants outside its group hold its output open."""


class ChildExit(msgspec.Struct, frozen=True):
    """How a process ended: exit code or signal name, and its last lines.

    For a process that is not a child of this one, neither code nor signal is known.
    """

    code: int | None
    signal: str
    tail: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join([self.summary, *self.tail])

    @property
    def summary(self) -> str:
        """The exit code or signal in words."""
        if self.signal:
            return f"was terminated by {self.signal}"
        return "ended" if self.code is None else f"exited with code {self.code}"


async def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log_file: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    channel: socket.socket | None = None,
    descriptors: Sequence[int] = (),
) -> "Child":
    """Start ``argv``; append its output to ``log_file``, pass it to ``on_line``, or keep only its tail.

    With a ``channel``, only standard error is output. Without ``env`` the child inherits the environment. Errors name
    the program but never its arguments, which may contain secrets.
    """
    if log_file and on_line:
        raise ValueError("the output of a child goes to a file or to a callback, not to both")
    output: Output = FileOutput(log_file) if log_file else PipeOutput(on_line)
    try:
        with output.open() as descriptor:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=channel.fileno() if channel else asyncio.subprocess.DEVNULL,
                stdout=channel.fileno() if channel else descriptor,
                stderr=descriptor,
                pass_fds=descriptors,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        output.discard()
        place = f" in {cwd}" if cwd else ""
        message = f"cannot start {argv[0]}{place}: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "child-start", message) from error
    except BaseException:
        output.discard()
        raise
    return Child(process, output)


class Child:
    """A child process and its process group; ``pid`` and ``start_time`` identify it."""

    def __init__(self, process: asyncio.subprocess.Process, output: Output) -> None:
        self.pid = process.pid
        self.start_time = start_time(process.pid)
        self._process = process
        self._output = output
        self._exit = asyncio.create_task(self._wait_for_exit(), name=f"child {process.pid}")

    @property
    def running(self) -> bool:
        """Whether the child has not exited yet."""
        return self._process.returncode is None

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines so far, for error messages."""
        return self._output.tail()

    async def wait(self) -> ChildExit:
        """Wait until the child exits; cancelling the wait does not stop the child."""
        return await asyncio.shield(self._exit)

    async def stop(self, grace_s: float) -> ChildExit:
        """Send SIGTERM to the process group, and SIGKILL after ``grace_s`` or on cancellation."""
        self.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait({self._exit}, timeout=grace_s)
        finally:
            self.send_signal(signal.SIGKILL)
        return await self.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the process group; do nothing if the child has exited."""
        if self.running:
            signal_group(self.pid, number)

    async def _wait_for_exit(self) -> ChildExit:
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._output.read())
                code = await self._process.wait()
                # Descendants do not outlive the child; the group id is not reused while a member lives.
                signal_group(self.pid, signal.SIGKILL)
                await asyncio.wait({reading}, timeout=_DRAIN_S)
                reading.cancel()
        except BaseException:
            # A callback raised or the event loop is closing: do not leave an unwatched child.
            self.send_signal(signal.SIGKILL)
            await self._process.wait()
            raise
        return exit_from(code, await asyncio.to_thread(self._output.tail))


def start_time(pid: int) -> str:
    """Return the start time of a live process as ``boot id/ticks since boot``, or ``""`` if it has ended.

    Together with the pid it identifies a process, even if the pid is reused.
    """
    try:
        # The second field is a name in parentheses, which may itself contain parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, started = fields[0], fields[19]
    return "" if state in ("Z", "X") else f"{boot}/{started}"


def start_time_now() -> str:
    """Return the current time in the form of a start time."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    return f"{boot}/{int(ticks)}"


def started_after(started: str, earlier: str) -> bool:
    """Whether ``started`` is later than ``earlier`` of the same boot; False within one tick (10 ms)."""
    boot, _, ticks = started.partition("/")
    other_boot, _, other_ticks = earlier.partition("/")
    return bool(ticks and other_ticks) and boot == other_boot and int(ticks) > int(other_ticks)


def same_process(pid: int, started: str) -> bool:
    """Whether the process identified by ``pid`` and ``start_time`` is still alive."""
    return bool(started) and start_time(pid) == started


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group of ``pid``; do nothing if it is empty."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def exit_from(code: int, tail: tuple[str, ...]) -> ChildExit:
    """Return the ChildExit for an exit code, or for a negated signal number."""
    if code >= 0:
        return ChildExit(code, "", tail)
    return ChildExit(None, signal.Signals(-code).name, tail)
