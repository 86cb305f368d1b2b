"""What the doctor makes of what it saw."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import governor
from governor.cli.commands.diagnosis import (
    LEAST_FREE_BYTES,
    Answers,
    Directory,
    Finding,
    about_answers,
    about_directory,
    about_failure,
    diagnose,
    diagnosis_text,
)
from governor.domain.conditions import Actor, Condition, Status, connected, summarise
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.wire.rest import RuntimeView, ServerStatus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SERVER = "https://governor.example"
HERE = connected(enrolled=True, watching=True, since=NOON)
AWAY = connected(enrolled=True, watching=False, since=NOON - timedelta(hours=1))


def verified(reason: str, minutes: int = 0) -> Condition:
    status = Status.TRUE if reason == "Verified" else Status.FALSE
    return Condition("Verified", status, reason, f"it is {reason}", since=NOON - timedelta(minutes=minutes))


def runtime(name: str, *conditions: Condition) -> RuntimeView:
    return RuntimeView(name, "local", {}, 1, 1, 1, "d", summarise(conditions), conditions, None)


def answers(*runtimes: RuntimeView, time: datetime = NOON, version: str = "", **failing: str) -> Answers:
    status = ServerStatus(version or governor.__version__, NOON, "ann", Role.VIEWER, failing)
    return Answers(status, runtimes, time)


def problems(found: list[Finding]) -> dict[str, tuple[str, str]]:
    return {each.subject: (each.condition.reason, each.next) for each in found if each.is_problem}


def test_a_healthy_installation_has_no_problem() -> None:
    found = list(about_answers(SERVER, answers(runtime("r1", verified("Verified"), HERE))))
    assert problems(found) == {}
    assert diagnosis_text(diagnose(found)).splitlines()[-1] == "all is well"
    assert {each.condition.type for each in found} == {
        *("Reachable", "Authenticated", "SameVersion", "Ready", "ClocksAgree", "Runtimes"),
    }


@pytest.mark.parametrize(
    ("conditions", "reason", "step"),
    [
        ((verified("Pending"), connected(enrolled=False, watching=False, since=None)), "NotEnrolled", "token join r1"),
        (
            (verified("Verified"), connected(enrolled=False, watching=False, since=None, revoked=NOON)),
            "Revoked",
            "token join r1",
        ),
        ((verified("Verified"), AWAY), "NotWatching", "governor agent"),
        ((verified("Failed"), HERE), "Failed", "governor runtime retry r1"),
        ((verified("Unproven"), HERE), "Unproven", "governor describe runtime r1"),
        ((verified("Pending", minutes=6), HERE), "Pending", "governor describe runtime r1"),
        ((verified("Applied", minutes=6), HERE), "Applied", "governor describe runtime r1"),
    ],
)
def test_a_runtime_in_trouble_has_a_next_command(conditions: tuple[Condition, ...], reason: str, step: str) -> None:
    found = problems(list(about_answers(SERVER, answers(runtime("r1", *conditions)))))
    assert list(found) == ["runtime r1"]
    assert found["runtime r1"][0] == reason
    assert step in found["runtime r1"][1]


def test_a_change_on_its_way_is_no_problem() -> None:
    assert problems(list(about_answers(SERVER, answers(runtime("r1", verified("Pending", minutes=4), HERE))))) == {}


def test_skewed_clocks_other_versions_and_an_unready_server_are_problems() -> None:
    skewed = answers(time=NOON - timedelta(seconds=31), version="9.9", store="the writer thread has ended")
    found = problems(list(about_answers(SERVER, skewed)))
    assert {subject: reason for subject, (reason, _) in found.items()} == {
        "clock": "ClocksDiffer",
        "version": "VersionsDiffer",
        SERVER: "NotReady",
    }
    assert problems(list(about_answers(SERVER, answers(time=NOON + timedelta(seconds=29))))) == {}


@pytest.mark.parametrize(
    ("error", "subject", "type_", "reason"),
    [
        (GovernorError(Kind.UNAVAILABLE, "unreachable", "m"), SERVER, "Reachable", "Unreachable"),
        (GovernorError(Kind.UNAUTHENTICATED, "tls-untrusted", "m"), SERVER, "Trusted", "TlsUntrusted"),
        (GovernorError(Kind.UNAUTHENTICATED, "token-refused", "m"), "token", "Authenticated", "TokenRefused"),
        (GovernorError(Kind.DENIED, "role-insufficient", "m"), "token", "Authenticated", "RoleInsufficient"),
    ],
)
def test_a_server_that_does_not_answer_says_why(error: GovernorError, subject: str, type_: str, reason: str) -> None:
    found = about_failure(SERVER, error)
    assert (found.subject, found.condition.type, found.condition.reason) == (subject, type_, reason)
    assert found.next
    assert diagnose([found]).summary.actor is Actor.OPERATOR


def test_a_data_directory_is_private_and_has_space() -> None:
    def seen(mode: int, free: int) -> list[Finding]:
        return list(about_directory(Directory(Path("data"), {".": 0o700, "sealing.key": mode}, free)))

    assert problems(seen(0o600, LEAST_FREE_BYTES)) == {}
    assert problems(seen(0o640, LEAST_FREE_BYTES)) == {"data": ("Exposed", "chmod -R go-rwx data")}
    assert problems(seen(0o600, LEAST_FREE_BYTES - 1))["data"][0] == "AlmostFull"


def test_the_text_counts_the_problems_and_names_the_steps() -> None:
    found = list(about_answers(SERVER, answers(runtime("r1", verified("Failed"), HERE))))
    lines = diagnosis_text(diagnose(found)).splitlines()
    assert any(line.startswith("PROBLEM  runtime r1") for line in lines)
    assert any(line.startswith("next: runtime r1: ") for line in lines)
    assert lines[-1] == "1 problem found"
