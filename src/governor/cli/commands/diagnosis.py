"""Problems of an installation as conditions, each with the next command. Pure; ``doctor`` collects the input."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

import governor
from governor.cli.options import next_step
from governor.domain.conditions import PROBLEM_REASONS, WAITING_REASONS, Actor, Condition, Status, Summary, summarise
from governor.errors import GovernorError, Kind
from governor.values.printing import age, table
from governor.wire.rest import RuntimeView, ServerStatus

STUCK_AFTER: Final = timedelta(minutes=5)
"""A change that is pending for longer than this counts as stuck."""

MAX_SKEW_S: Final = 30.0
"""Half of the leeway of runtime tokens."""

MIN_FREE_BYTES: Final = 100 * 1024 * 1024

_NEXT: Final = {
    "NotEnrolled": "governor token join {name}",
    "Revoked": "governor token join {name}",
    "NotWatching": "check on its host that `governor agent` is running; governor describe runtime {name}",
    "AgentFailed": "check the host and the log of its agent, which retries; governor describe runtime {name}",
    "Unhealthy": "check the sidecars and the files named above on its host; governor describe runtime {name}",
    "AgentOutdated": "upgrade its agent; governor describe runtime {name}",
    "Failed": "governor describe runtime {name}; correct the change, or: governor runtime retry {name}",
}


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check, and what to do about it; a next step without a problem is a note."""

    subject: str
    condition: Condition
    next: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether action is needed."""
        return self.condition.status is not Status.TRUE and not self.is_waiting

    @property
    def is_waiting(self) -> bool:
        """Whether a runtime waits for a maintenance window or is held, which ends by itself."""
        return self.condition.reason in WAITING_REASONS


class Diagnosis(msgspec.Struct, frozen=True):
    """The results of all checks and their summary."""

    summary: Summary
    findings: tuple[CheckResult, ...]


class ServerReply(msgspec.Struct, frozen=True):
    """A server's status and runtimes, and the local time when the status arrived."""

    status: ServerStatus
    runtimes: tuple[RuntimeView, ...]
    time: datetime


class DataDirectory(msgspec.Struct, frozen=True):
    """A data directory on this machine: modes by file name, its own mode under ``.``, and the free space."""

    path: Path
    modes: dict[str, int]
    free_bytes: int


def diagnose(findings: Iterable[CheckResult]) -> Diagnosis:
    """Summarise the results of checks."""
    found = tuple(findings)
    return Diagnosis(summarise(each.condition for each in found), found)


def check_server(server: str, reply: ServerReply) -> Iterator[CheckResult]:
    """Yield the results for a server that responds."""
    status = reply.status
    yield CheckResult(server, ok("Reachable", "Answers", "the server responds"))
    yield CheckResult("token", ok("Authenticated", "TokenValid", f"{status.caller}, role {status.role}"))
    yield _check_version(status)
    yield from _check_readiness(server, status)
    yield _check_clocks(reply)
    found = [each for runtime in reply.runtimes for each in _check_runtime(runtime, status.time)]
    yield from found
    if not any(each.is_problem for each in found):
        text = f"no problems found in {len(reply.runtimes)} runtimes"
        yield CheckResult("runtimes", ok("Runtimes", "AllWell", text))


def failed_check(server: str, error: GovernorError) -> CheckResult:
    """Return the result of a check that failed."""
    subject, kind = (server, "Reachable")
    if error.code in ("tls-untrusted", "tls-invalid"):
        kind = "Trusted"
    elif error.kind in (Kind.UNAUTHENTICATED, Kind.DENIED):
        subject, kind = "token", "Authenticated"
    reason = "".join(word.capitalize() for word in error.code.split("-"))
    return CheckResult(subject, problem(kind, reason, error.message), next_step(error))


def check_directory(directory: DataDirectory) -> Iterator[CheckResult]:
    """Yield the results for a data directory: whether only its owner can read it, and its free space."""
    subject = str(directory.path)
    exposed = sorted(name for name, mode in directory.modes.items() if mode & 0o077)
    if exposed:
        text = f"other users can read {', '.join(exposed)}"
        yield CheckResult(subject, problem("Private", "Exposed", text), f"chmod -R go-rwx {directory.path}")
    else:
        yield CheckResult(subject, ok("Private", "OwnerOnly", "only the owner can read the data directory"))
    free = f"{directory.free_bytes // (1024 * 1024)} MiB free"
    if directory.free_bytes < MIN_FREE_BYTES:
        condition = problem("Space", "AlmostFull", f"{free}: changes are rejected when the disk is full")
        yield CheckResult(subject, condition, "free some space on its file system")
    else:
        yield CheckResult(subject, ok("Space", "Enough", free))


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return a line for each result, then the next steps, those of problems first."""
    rows = [(_label(each), each.subject, each.condition.reason, each.condition.message) for each in diagnosis.findings]
    problems = [each for each in diagnosis.findings if each.is_problem]
    notes = [each for each in diagnosis.findings if not each.is_problem]
    steps = [f"next: {each.subject}: {each.next}" for each in problems if each.next]
    steps += [f"note: {each.subject}: {each.next}" for each in notes if each.next]
    plural = "" if len(problems) == 1 else "s"
    count = f"{len(problems)} problem{plural} found" if problems else "no problems found"
    return "\n".join([table(("STATUS", "SUBJECT", "REASON", "MESSAGE"), rows), "", *steps, count])


def _label(result: CheckResult) -> str:
    if result.is_problem:
        return "PROBLEM"
    if result.is_waiting:
        return "waiting"
    return "note" if result.next else "ok"


def _check_version(status: ServerStatus) -> CheckResult:
    text = f"the server is version {status.version}, this client is {governor.__version__}"
    if _minor(status.version) == _minor(governor.__version__):
        return CheckResult("version", ok("SameVersion", "SameVersion", text))
    return CheckResult(
        "version", problem("SameVersion", "VersionsDiffer", text), f"install version {status.version} on this machine"
    )


def _minor(version: str) -> list[str]:
    """Return the major and the minor number; client and server of one minor version are compatible."""
    return version.split(".")[:2]


def _check_readiness(server: str, status: ServerStatus) -> Iterator[CheckResult]:
    for name, reason in status.failing.items():
        yield CheckResult(server, problem("Ready", "NotReady", f"{name}: {reason}"), "see the log of the server")
    if not status.failing:
        yield CheckResult(server, ok("Ready", "Ready", "the server is ready"))


def _check_clocks(reply: ServerReply) -> CheckResult:
    skew_s = abs((reply.status.time - reply.time).total_seconds())
    if skew_s <= MAX_SKEW_S:
        return CheckResult("clock", ok("ClocksAgree", "ClocksAgree", "the clocks of client and server agree"))
    text = f"the clocks of client and server differ by {skew_s:.0f} s; agent tokens are rejected beyond 60 s"
    return CheckResult(
        "clock", problem("ClocksAgree", "ClocksDiffer", text), "synchronise the clocks, for example with NTP"
    )


def _check_runtime(runtime: RuntimeView, now: datetime) -> Iterator[CheckResult]:
    unmet = [each for each in runtime.conditions if each.status is not Status.TRUE]
    disconnected = any(each.type == "Connected" for each in unmet)
    reasons = {each.type: each.reason for each in unmet}
    for condition in unmet:
        if condition.type == "Changeable" and reasons.get("Verified") == condition.reason:
            # Verified says the same, and what waits.
            continue
        if (
            condition.type == "Connected"
            or condition.reason in PROBLEM_REASONS | WAITING_REASONS
            or (not disconnected and _is_stuck(condition, now))
        ):
            yield CheckResult(f"runtime {runtime.name}", _with_age(condition, now), _next(condition, runtime.name))


def _is_stuck(condition: Condition, now: datetime) -> bool:
    return condition.since is not None and now - condition.since > STUCK_AFTER


def _next(condition: Condition, name: str) -> str:
    if condition.reason in WAITING_REASONS:
        return ""
    return _NEXT.get(condition.reason, "governor describe runtime {name}").format(name=name)


def _with_age(condition: Condition, now: datetime) -> Condition:
    since = f" (for {age(condition.since, now)})" if condition.since else ""
    return msgspec.structs.replace(condition, message=f"{condition.message}{since}")


def ok(kind: str, reason: str, message: str) -> Condition:
    """Return a condition that needs no action."""
    return Condition(kind, Status.TRUE, reason, message)


def problem(kind: str, reason: str, message: str) -> Condition:
    """Return a condition that the operator must act on."""
    return Condition(kind, Status.FALSE, reason, message, Actor.OPERATOR)
