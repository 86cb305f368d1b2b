"""What is wrong with an installation, as conditions, each with the next command. Pure; what was seen is handed in."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

import governor
from governor.cli.advice import next_step
from governor.cli.output.tables import age
from governor.domain.conditions import STALLED_REASONS, Actor, Condition, Status, Summary, summarise
from governor.errors import GovernorError, Kind
from governor.values.printing import table
from governor.wire.rest import RuntimeView, ServerStatus

LONG: Final = timedelta(minutes=5)
"""A change that waits for longer than this is not on its way any more, it is stuck."""

MOST_SKEW_S: Final = 30.0
"""Half of what tokens of runtimes allow for."""

LEAST_FREE_BYTES: Final = 100 * 1024 * 1024

_NEXT: Final = {
    "NotEnrolled": "governor token join {name}",
    "Revoked": "governor token join {name}",
    "NotWatching": "see on its machine that `governor agent` runs; governor describe runtime {name}",
    "Failed": "governor describe runtime {name}; correct the change, or: governor runtime retry {name}",
}


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was looked at, and what to do about it."""

    subject: str
    condition: Condition
    next: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether somebody must act."""
        return self.condition.status is not Status.TRUE


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything that was looked at, and the one line about it."""

    summary: Summary
    findings: tuple[Finding, ...]


class Answers(msgspec.Struct, frozen=True):
    """What a server said about itself and its runtimes, and the time here when it did."""

    status: ServerStatus
    runtimes: tuple[RuntimeView, ...]
    time: datetime


class Directory(msgspec.Struct, frozen=True):
    """What was seen of a data directory on this machine: modes by name, its own under ``.``, and the space left."""

    path: Path
    modes: dict[str, int]
    free_bytes: int


def diagnose(findings: Iterable[Finding]) -> Diagnosis:
    """Put the findings together."""
    found = tuple(findings)
    return Diagnosis(summarise(each.condition for each in found), found)


def about_answers(server: str, answers: Answers) -> Iterator[Finding]:
    """What a server that answers shows."""
    status = answers.status
    yield Finding(server, _well("Reachable", "Answers", "the server answers"))
    yield Finding("token", _well("Authenticated", "TokenValid", f"{status.caller}, role {status.role}"))
    yield _about_version(status)
    yield from _about_readiness(server, status)
    yield _about_clocks(answers)
    problems = [each for runtime in answers.runtimes for each in _about_runtime(runtime, status.time)]
    yield from problems
    if not problems:
        text = f"nothing is wrong with {len(answers.runtimes)} runtimes"
        yield Finding("runtimes", _well("Runtimes", "AllWell", text))


def about_failure(server: str, error: GovernorError) -> Finding:
    """Why a server did not answer."""
    subject, kind = (server, "Reachable")
    if error.code == "tls-untrusted":
        kind = "Trusted"
    elif error.kind in (Kind.UNAUTHENTICATED, Kind.DENIED):
        subject, kind = "token", "Authenticated"
    reason = "".join(word.capitalize() for word in error.code.split("-"))
    return Finding(subject, _wrong(kind, reason, error.message), next_step(error))


def about_directory(directory: Directory) -> Iterator[Finding]:
    """Whether only its owner can read a data directory, and whether there is space in it."""
    subject = str(directory.path)
    exposed = sorted(name for name, mode in directory.modes.items() if mode & 0o077)
    if exposed:
        text = f"others can read {', '.join(exposed)}"
        yield Finding(subject, _wrong("Private", "Exposed", text), f"chmod -R go-rwx {directory.path}")
    else:
        yield Finding(subject, _well("Private", "OwnerOnly", "only its owner can read the data directory"))
    free = f"{directory.free_bytes // (1024 * 1024)} MiB are free"
    if directory.free_bytes < LEAST_FREE_BYTES:
        condition = _wrong("Space", "AlmostFull", f"{free}: changes will be refused when it is full")
        yield Finding(subject, condition, "free space on its file system")
    else:
        yield Finding(subject, _well("Space", "Enough", free))


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """For people: a line for everything that was looked at, then what to do."""
    rows = [
        ("ok" if not each.is_problem else "PROBLEM", each.subject, each.condition.reason, each.condition.message)
        for each in diagnosis.findings
    ]
    problems = [each for each in diagnosis.findings if each.is_problem]
    steps = [f"next: {each.subject}: {each.next}" for each in problems if each.next]
    count = f"{len(problems)} {'problem' if len(problems) == 1 else 'problems'} found" if problems else "all is well"
    return "\n".join([table(("STATUS", "SUBJECT", "REASON", "MESSAGE"), rows), "", *steps, count])


def _about_version(status: ServerStatus) -> Finding:
    if status.version == governor.__version__:
        return Finding("version", _well("SameVersion", "SameVersion", f"{status.version}, here and there"))
    text = f"the server is version {status.version}, this command {governor.__version__}"
    return Finding("version", _wrong("SameVersion", "VersionsDiffer", text), f"install version {status.version} here")


def _about_readiness(server: str, status: ServerStatus) -> Iterator[Finding]:
    for name, reason in status.failing.items():
        yield Finding(server, _wrong("Ready", "NotReady", f"{name}: {reason}"), "see the log of the server")
    if not status.failing:
        yield Finding(server, _well("Ready", "Ready", "the server can work"))


def _about_clocks(answers: Answers) -> Finding:
    apart_s = abs((answers.status.time - answers.time).total_seconds())
    if apart_s <= MOST_SKEW_S:
        return Finding("clock", _well("ClocksAgree", "ClocksAgree", "the clocks here and there agree"))
    text = f"the clocks here and there are {apart_s:.0f} s apart; tokens of agents fail beyond 60 s"
    return Finding("clock", _wrong("ClocksAgree", "ClocksDiffer", text), "set the clock, for example by NTP")


def _about_runtime(runtime: RuntimeView, now: datetime) -> Iterator[Finding]:
    lacking = [each for each in runtime.conditions if each.status is not Status.TRUE]
    away = any(each.type == "Connected" for each in lacking)
    for condition in lacking:
        if (
            condition.type == "Connected"
            or condition.reason in STALLED_REASONS
            or (not away and _is_stuck(condition, now))
        ):
            yield Finding(f"runtime {runtime.name}", _dated(condition, now), _next(condition, runtime.name))


def _is_stuck(condition: Condition, now: datetime) -> bool:
    return condition.since is not None and now - condition.since > LONG


def _next(condition: Condition, name: str) -> str:
    return _NEXT.get(condition.reason, "governor describe runtime {name}").format(name=name)


def _dated(condition: Condition, now: datetime) -> Condition:
    since = f" (for {age(condition.since, now)})" if condition.since else ""
    return msgspec.structs.replace(condition, message=f"{condition.message}{since}")


def _well(kind: str, reason: str, message: str) -> Condition:
    return Condition(kind, Status.TRUE, reason, message)


def _wrong(kind: str, reason: str, message: str) -> Condition:
    return Condition(kind, Status.FALSE, reason, message, Actor.OPERATOR)
