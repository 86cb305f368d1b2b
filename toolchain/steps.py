"""Named steps of long work: each runs one command, logs its output and shows progress.

On a terminal a step is one line with elapsed seconds; otherwise it prints a line at its start, periodically, and at
its end.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from toolchain.errors import StepError

Argv = Sequence[str | Path]


@dataclass(frozen=True)
class Steps:
    """The steps of one task (``title``), logged to one file."""

    title: str
    log: Path
    scratch: Path | None = None
    """TMPDIR of the commands: a killed command leaves its temporary files there."""

    def run(
        self,
        step: str,
        argv: Argv,
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run a step's command; raise with the step's name and log if it fails."""
        with self._open_log() as log:
            self._execute(step, argv, log, log, cwd, environment)

    def output(self, step: str, argv: Argv, *, environment: Mapping[str, str] | None = None) -> str:
        """Run a step's command and return its standard output; only standard error is logged."""
        with self._open_log() as log, tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            self._execute(step, argv, printed, log, None, environment)
            printed.seek(0)
            return printed.read()

    def _open_log(self) -> IO[str]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return self.log.open("a", encoding="utf-8")

    def _execute(
        self,
        step: str,
        argv: Argv,
        stdout: IO[str],
        log: IO[str],
        cwd: Path | None,
        environment: Mapping[str, str] | None,
    ) -> None:
        log.write(f"\n# {step}\n$ {shlex.join(map(str, argv))}\n")
        log.flush()
        temporary = {"TMPDIR": str(self.scratch)} if self.scratch else {}
        try:
            # In a new session, an interrupt reaches the command's process group only once, from _watch. Inherited
            # descriptors keep locks held: if this process is killed, they are released when the command exits.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                cwd=cwd,
                env={**(os.environ if environment is None else environment), **temporary},
                start_new_session=True,
                close_fds=False,
            )
        except OSError as error:
            raise StepError(self.title, step, str(error), self.log) from error
        status = _watch(process, f"{self.title}: {step}")
        if status != 0:
            raise StepError(self.title, step, f"exit status {status}", self.log)


def _watch(process: "subprocess.Popen[bytes]", label: str) -> int:
    """Show progress until the process exits, and return its status; kill its group on an interrupt."""
    try:
        with _Line(label) as line:
            while True:
                try:
                    return process.wait(timeout=line.interval_s)
                except subprocess.TimeoutExpired:
                    line.beat()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Line:
    """The progress line of a running step on standard error."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self.interval_s = 1 if self._terminal else 30

    def __enter__(self) -> "_Line":
        self._show(f"{self._label} ...")
        return self

    def beat(self) -> None:
        self._show(f"{self._label} ... {self._elapsed_s()} s")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        outcome = "interrupted" if kind else "ended"
        self._show(f"{self._label}: {outcome} after {self._elapsed_s()} s")
        if self._terminal:
            sys.stderr.write("\n")

    def _elapsed_s(self) -> int:
        return round(time.monotonic() - self._started)

    def _show(self, text: str) -> None:
        sys.stderr.write(f"\r\033[K{text}" if self._terminal else f"{text}\n")
        sys.stderr.flush()
