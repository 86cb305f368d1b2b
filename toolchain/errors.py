"""Errors of the test bed; their messages name the next step."""

from pathlib import Path


class TestbedError(Exception):
    """A tool or server that could not be provided; the message says what to do."""

    __test__ = False  # pytest would collect it by its name


class StepError(TestbedError):
    """A failed step; the log has its complete output."""

    def __init__(self, title: str, step: str, reason: str, log: Path) -> None:
        super().__init__(f'{title}: step "{step}" failed ({reason}); its log is {log}\n{tail(log)}')
        self.step = step
        self.log = log


def tail(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, indented for use below a message."""
    if not log.exists():
        return "  | (nothing was logged)"
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  | {line}" for line in text[-lines:])
