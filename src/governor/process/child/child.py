"""Child processes, the only road to them: started in a session of their own, read, stopped with all they started.

A child's standard input is empty and its two outputs are one stream, which goes to a file (a child that outlives us
can go on writing there) or line by line to a callback. What the lines mean is the caller's.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.child.output import FileOutput, Output, PipeOutput

_DRAIN_S: Final = 1.0
"""How long to read on after the end of a child whose descendants left its group and hold its output open."""


class ChildExit(msgspec.Struct, frozen=True):
    """How a child ended: by an exit code or by a signal (its name), and its last lines.

    Of a process that is not our child neither is known.
    """

    code: int | None
    signal: str
    tail: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join([self.how, *self.tail])

    @property
    def how(self) -> str:
        """The first part in words."""
        if self.signal:
            return f"was ended by {self.signal}"
        return "ended" if self.code is None else f"exited with code {self.code}"


async def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log_file: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> "Child":
    """Start ``argv``; its output is appended to ``log_file`` or given to ``on_line``, or else only its tail is kept.

    Without ``env`` it has ours. An error names the program, never its arguments, which may hold secrets.
    """
    if log_file and on_line:
        raise ValueError("the output of a child goes to a file or to a callback, not to both")
    output: Output = FileOutput(log_file) if log_file else PipeOutput(on_line)
    try:
        with output.opened() as descriptor:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        output.abandon()
        place = f" in {cwd}" if cwd else ""
        message = f"cannot start {argv[0]}{place}: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "child-start", message) from error
    except BaseException:
        output.abandon()
        raise
    return Child(process, output)


class Child:
    """A process that was started here, with its group; ``pid`` and ``start_time`` tell it from all others."""

    def __init__(self, process: asyncio.subprocess.Process, output: Output) -> None:
        self.pid = process.pid
        self.start_time = start_time(process.pid)
        self._process = process
        self._output = output
        self._ending = asyncio.create_task(self._end(), name=f"child {process.pid}")

    @property
    def running(self) -> bool:
        """Whether the child has not ended yet."""
        return self._process.returncode is None

    @property
    def tail(self) -> tuple[str, ...]:
        """Its last lines so far, for error texts."""
        return self._output.tail()

    async def wait(self) -> ChildExit:
        """Wait for its end; whoever waits may be cancelled, the child goes on."""
        return await asyncio.shield(self._ending)

    async def stop(self, grace_s: float) -> ChildExit:
        """Ask the whole group to end by SIGTERM, and end it by SIGKILL after ``grace_s`` or when cancelled."""
        self.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait({self._ending}, timeout=grace_s)
        finally:
            self.send_signal(signal.SIGKILL)
        return await self.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the whole group; nothing happens once the child has ended."""
        if self.running:
            signal_group(self.pid, number)

    async def _end(self) -> ChildExit:
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._output.read())
                code = await self._process.wait()
                # What the child started does not outlive it; the group's id stays taken while a member lives.
                signal_group(self.pid, signal.SIGKILL)
                await asyncio.wait({reading}, timeout=_DRAIN_S)
                reading.cancel()
        except BaseException:
            # A callback raised, or the event loop ends: a child that nobody watches must not stay.
            self.send_signal(signal.SIGKILL)
            await self._process.wait()
            raise
        return exit_of(code, await asyncio.to_thread(self._output.tail))


def start_time(pid: int) -> str:
    """When a living process started, as text that is the same for no other process with this number; else nothing.

    It names the boot too, since the kernel counts from there.
    """
    try:
        # The second field is a name in parentheses and may hold anything, parentheses too.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    state, started = fields[0], fields[19]
    return "" if state in ("Z", "X") else f"{boot}/{started}"


def start_time_now() -> str:
    """Now, in the form of a start time."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    return f"{boot}/{int(ticks)}"


def started_after(started: str, earlier: str) -> bool:
    """Whether a start time is certainly later than a moment of the same boot; a tick is 10 ms, and within one nobody
    knows."""
    boot, _, ticks = started.partition("/")
    other_boot, _, other_ticks = earlier.partition("/")
    return bool(ticks and other_ticks) and boot == other_boot and int(ticks) > int(other_ticks)


def same_process(pid: int, started: str) -> bool:
    """Whether the process recorded by its ``pid`` and ``start_time`` still lives."""
    return bool(started) and start_time(pid) == started


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a process and all it started; nothing happens when none of them is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def exit_of(code: int, tail: tuple[str, ...]) -> ChildExit:
    """How a child ended, from its exit code, or from the number of the signal below zero."""
    if code >= 0:
        return ChildExit(code, "", tail)
    return ChildExit(None, signal.Signals(-code).name, tail)
