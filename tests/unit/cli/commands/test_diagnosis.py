"""The checks of ``doctor``."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import governor
from governor.cli.commands.diagnosis import (
    MIN_FREE_BYTES,
    CheckResult,
    DataDirectory,
    ServerReply,
    check_directory,
    check_server,
    diagnose,
    diagnosis_text,
    failed_check,
)
from governor.domain.conditions import Actor, Condition, Status, connected, summarise
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.wire.rest import RuntimeView, ServerStatus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SERVER = "https://governor.example"
CONNECTED = connected(enrolled=True, watching=True, since=NOON)
DISCONNECTED = connected(enrolled=True, watching=False, since=NOON - timedelta(hours=1))


def verified(reason: str, minutes: int = 0) -> Condition:
    status = Status.TRUE if reason == "Verified" else Status.FALSE
    return Condition("Verified", status, reason, f"it is {reason}", since=NOON - timedelta(minutes=minutes))


def runtime(name: str, *conditions: Condition) -> RuntimeView:
    return RuntimeView(name, "local", {}, 1, 1, 1, "d", summarise(conditions), conditions, None)


def reply(*runtimes: RuntimeView, time: datetime = NOON, version: str = "", **failing: str) -> ServerReply:
    status = ServerStatus(version or governor.__version__, NOON, "ann", Role.VIEWER, failing)
    return ServerReply(status, runtimes, time)


def problems(found: list[CheckResult]) -> dict[str, tuple[str, str]]:
    return {each.subject: (each.condition.reason, each.next) for each in found if each.is_problem}


def test_a_healthy_installation_has_no_problem() -> None:
    found = list(check_server(SERVER, reply(runtime("r1", verified("Verified"), CONNECTED))))
    assert problems(found) == {}
    assert diagnosis_text(diagnose(found)).splitlines()[-1] == "no problems found"
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
        ((verified("Verified"), DISCONNECTED), "NotWatching", "governor agent"),
        (
            (verified("Pending"), connected(enrolled=True, watching=False, since=NOON, refusal="upgrade")),
            "AgentOutdated",
            "upgrade its agent",
        ),
        ((verified("Failed"), CONNECTED), "Failed", "governor runtime retry r1"),
        ((verified("Unproven"), CONNECTED), "Unproven", "governor describe runtime r1"),
        ((verified("Pending", minutes=6), CONNECTED), "Pending", "governor describe runtime r1"),
        ((verified("Applied", minutes=6), CONNECTED), "Applied", "governor describe runtime r1"),
    ],
)
def test_a_runtime_with_a_problem_has_a_next_command(conditions: tuple[Condition, ...], reason: str, step: str) -> None:
    found = problems(list(check_server(SERVER, reply(runtime("r1", *conditions)))))
    assert list(found) == ["runtime r1"]
    assert found["runtime r1"][0] == reason
    assert step in found["runtime r1"][1]


def test_another_patch_version_of_the_server_is_no_problem() -> None:
    major, minor, *_ = governor.__version__.split(".")
    assert problems(list(check_server(SERVER, reply(version=f"{major}.{minor}.99")))) == {}


def test_a_recent_pending_change_is_no_problem() -> None:
    assert problems(list(check_server(SERVER, reply(runtime("r1", verified("Pending", minutes=4), CONNECTED))))) == {}


def test_skewed_clocks_other_versions_and_an_unready_server_are_problems() -> None:
    skewed = reply(time=NOON - timedelta(seconds=31), version="9.9", store="the writer thread has ended")
    found = problems(list(check_server(SERVER, skewed)))
    assert {subject: reason for subject, (reason, _) in found.items()} == {
        "clock": "ClocksDiffer",
        "version": "VersionsDiffer",
        SERVER: "NotReady",
    }
    assert problems(list(check_server(SERVER, reply(time=NOON + timedelta(seconds=29))))) == {}


@pytest.mark.parametrize(
    ("error", "subject", "type_", "reason"),
    [
        (GovernorError(Kind.UNAVAILABLE, "unreachable", "m"), SERVER, "Reachable", "Unreachable"),
        (GovernorError(Kind.UNAUTHENTICATED, "tls-untrusted", "m"), SERVER, "Trusted", "TlsUntrusted"),
        (GovernorError(Kind.UNAUTHENTICATED, "token-refused", "m"), "token", "Authenticated", "TokenRefused"),
        (GovernorError(Kind.DENIED, "role-insufficient", "m"), "token", "Authenticated", "RoleInsufficient"),
    ],
)
def test_a_failed_call_becomes_a_problem_with_its_reason(
    error: GovernorError, subject: str, type_: str, reason: str
) -> None:
    found = failed_check(SERVER, error)
    assert (found.subject, found.condition.type, found.condition.reason) == (subject, type_, reason)
    assert found.next
    assert diagnose([found]).summary.actor is Actor.OPERATOR


def test_a_data_directory_is_checked_for_modes_and_free_space() -> None:
    def check(mode: int, free: int) -> list[CheckResult]:
        return list(check_directory(DataDirectory(Path("data"), {".": 0o700, "sealing.key": mode}, free)))

    assert problems(check(0o600, MIN_FREE_BYTES)) == {}
    assert problems(check(0o640, MIN_FREE_BYTES)) == {"data": ("Exposed", "chmod -R go-rwx data")}
    assert problems(check(0o600, MIN_FREE_BYTES - 1))["data"][0] == "AlmostFull"


def test_the_text_lists_problems_with_next_steps_and_their_count() -> None:
    found = list(check_server(SERVER, reply(runtime("r1", verified("Failed"), CONNECTED))))
    lines = diagnosis_text(diagnose(found)).splitlines()
    assert any(line.startswith("PROBLEM  runtime r1") for line in lines)
    assert any(line.startswith("next: runtime r1: ") for line in lines)
    assert lines[-1] == "1 problem found"


HELD = Condition("Changeable", Status.FALSE, "Held", "held until then")


@pytest.mark.parametrize(
    ("conditions", "messages"),
    [
        ((verified("WaitingForWindow", minutes=600), CONNECTED), ["it is WaitingForWindow (for 10h)"]),
        ((verified("Held", minutes=600), CONNECTED, HELD), ["it is Held (for 10h)"]),
        ((verified("WaitingForWindow"), CONNECTED, HELD), ["it is WaitingForWindow (for 0s)", "held until then"]),
        ((verified("Verified"), CONNECTED, HELD), ["held until then"]),
    ],
)
def test_a_runtime_that_waits_is_shown_and_is_no_problem(
    conditions: tuple[Condition, ...], messages: list[str]
) -> None:
    found = list(check_server(SERVER, reply(runtime("r1", *conditions))))
    assert problems(found) == {}
    assert [(each.condition.message, each.next) for each in found if each.is_waiting] == [
        (message, "") for message in messages
    ]
    text = diagnosis_text(diagnose(found)).splitlines()
    assert sum(line.startswith("waiting ") for line in text) == len(messages)
    assert text[-1] == "no problems found"
