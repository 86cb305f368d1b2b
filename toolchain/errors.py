"""What goes wrong in the test bed, said so that the reader knows the next step."""

from pathlib import Path


class TestbedError(Exception):
    """A tool or server could not be provided; the message says what to do."""

    __test__ = False  # its name begins like a test class


class StepError(TestbedError):
    """One named step of a longer piece of work failed; its whole output is in the log."""

    def __init__(self, title: str, step: str, reason: str, log: Path) -> None:
        super().__init__(f'{title}: step "{step}" failed ({reason}); its log is {log}\n{tail(log)}')
        self.step = step
        self.log = log


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, indented to stand below a message."""
    if not log.exists():
        return "  | (nothing was logged)"
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  | {line}" for line in text[-lines:])
