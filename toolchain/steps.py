"""Slow work as named steps: each runs one command into a log and shows that it is alive.

On a terminal a step is one line that counts seconds; elsewhere it is a line at its start, one now and then, and
one at its end.
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
    """The steps of one piece of work (``title``), all logged to one file."""

    title: str
    log: Path
    scratch: Path | None = None
    """Where each puts its temporary files: one that is killed leaves them."""

    def run(
        self,
        step: str,
        argv: Argv,
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run the command of one step; a failure names the step and the log."""
        with self._open_log() as log:
            self._execute(step, argv, log, log, cwd, environment)

    def output(self, step: str, argv: Argv, *, environment: Mapping[str, str] | None = None) -> str:
        """Run the command of one step and return what it printed; only its complaints are logged."""
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
        places = {"TMPDIR": str(self.scratch)} if self.scratch else {}
        try:
            # Its own session: an interrupt must end the step's whole family, and reach it only once, from here.
            # If we are killed it goes on, and what we have locked stays locked until it has ended.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                cwd=cwd,
                env={**(os.environ if environment is None else environment), **places},
                start_new_session=True,
                close_fds=False,
            )
        except OSError as error:
            raise StepError(self.title, step, str(error), self.log) from error
        status = _watch(process, f"{self.title}: {step}")
        if status != 0:
            raise StepError(self.title, step, f"exit status {status}", self.log)


def _watch(process: "subprocess.Popen[bytes]", label: str) -> int:
    """Show that the step is alive until it has ended; whoever interrupts that ends the step."""
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
    """The sign of life of one running step on standard error."""

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
