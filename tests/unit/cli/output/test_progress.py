"""The result of waiting for a revision, and the displays of its progress."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from governor.cli.output.display import LineDisplay, open_display, progress_table
from governor.cli.output.progress import CommandResult, Phase, RevisionStatus, follow_result, step_lines
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE, NEGATIVE, SUCCESS
from governor.wire.rest import ProgressCount, RuntimeProgress
from tests.unit.cli.revisions import revision, runtime, without_agent


@pytest.mark.parametrize(
    ("runtimes", "expected"),
    [
        ((), CommandResult(SUCCESS, "revision 7 accepted; it changes no runtime")),
        (
            (
                runtime("r1", "Verified", done=True, seconds=0.2),
                runtime("r2", "Verified", done=True, seconds=0.314),
            ),
            CommandResult(SUCCESS, "revision 7 verified on 2/2 runtimes in 0.31 s"),
        ),
        (
            (runtime("r1", "Verified", done=True), without_agent("r2")),
            CommandResult(
                SUCCESS,
                "revision 7 verified on 1/2 runtimes in 0.50 s",
                ("r2: no agent is enrolled; create a join token with `governor token join r2`",),
            ),
        ),
    ],
)
def test_a_successful_wait_has_a_one_line_summary(
    runtimes: tuple[RuntimeProgress, ...], expected: CommandResult
) -> None:
    assert follow_result(7, RevisionStatus(revision(*runtimes)), 60) == expected


def test_many_runtimes_are_counted_and_the_first_ones_listed() -> None:
    counts = (ProgressCount("Pending", False, 500), ProgressCount("Verified", True, 9500))
    given = msgspec.structs.replace(revision(runtime("r1", "Pending")), complete=False, counts=counts, seconds=1.25)
    status = RevisionStatus(given)
    complete, all_of_them = revision(runtime("r1", "Verified", done=True)), (ProgressCount("Verified", True, 10_000),)
    done = RevisionStatus(msgspec.structs.replace(complete, counts=all_of_them, seconds=2.5))
    assert step_lines(None, status) == ["10,000 runtimes: 500 Pending, 9,500 Verified"]
    assert step_lines(status, status) == []
    assert (status.count(Phase.PENDING), status.count(Phase.VERIFIED)) == (500, 9500)
    assert follow_result(7, status, 60).summary == "revision 7 verified on 9500/10000 runtimes after 60 s"
    assert follow_result(7, done, 60).summary == "revision 7 verified on 10000/10000 runtimes in 2.50 s"


def test_counted_runtimes_without_an_agent_are_not_waited_for() -> None:
    counts = (ProgressCount("Pending", False, 3, has_agent=False), ProgressCount("Verified", True, 200))
    status = RevisionStatus(msgspec.structs.replace(revision(without_agent("r1")), counts=counts))
    assert (status.count(Phase.PENDING), status.count(Phase.WITHOUT_AGENT)) == (0, 3)


def test_a_failed_runtime_is_named_with_the_next_command() -> None:
    status = RevisionStatus(revision(runtime("r1", "Verified", done=True), runtime("r2", "Failed")))
    result = follow_result(7, status, 60)
    assert (result.exit_code, result.summary) == (NEGATIVE, "revision 7 verified on 1/2 runtimes")
    assert result.notes[0] == "r2: Failed: it is Failed"
    assert "stays accepted" in result.notes[-1]
    assert "governor describe runtime r2" in result.notes[-1]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def waiting(name: str, until: datetime | None) -> RuntimeProgress:
    held = runtime(name, "Held")
    return msgspec.structs.replace(held, summary=msgspec.structs.replace(held.summary, until=until))


@pytest.mark.parametrize(
    ("until", "phase"),
    [
        (NOON - timedelta(seconds=1), Phase.PENDING),
        (NOON, Phase.PENDING),
        (NOON + timedelta(seconds=1), Phase.WAITING),
        (None, Phase.WAITING),
    ],
)
def test_a_runtime_that_waits_for_longer_than_the_command_is_not_waited_for(
    until: datetime | None, phase: Phase
) -> None:
    given = waiting("r1", until)
    assert RevisionStatus(revision(given), deadline=NOON).in_phase(phase) == [given]


def test_what_waits_is_named_with_the_rest_and_is_no_failure() -> None:
    status = RevisionStatus(
        revision(runtime("r1", "Verified", done=True), waiting("r2", None), runtime("r3", "Pending"))
    )
    result = follow_result(7, status, 60)
    assert (result.exit_code, result.summary) == (
        EXIT_CODE[Kind.DEADLINE],
        "revision 7 verified on 1/3 runtimes, 1 waiting",
    )
    assert result.notes[:2] == ("r2: Held: it is Held", "r3: Pending: it is Pending")
    failed = RevisionStatus(revision(waiting("r2", None), runtime("r1", "Failed")))
    assert follow_result(7, failed, 60).exit_code == NEGATIVE


def test_a_command_may_wait_only_until_the_agent_has_reported() -> None:
    states = [runtime("r1", "Failed"), waiting("r2", None), runtime("r3", "Received"), runtime("r4", "Pending")]
    status = RevisionStatus(revision(*states), until_received=True)
    assert (len(status.in_phase(Phase.VERIFIED)), status.in_phase(Phase.PENDING)) == (3, states[3:])


def test_a_timeout_names_the_pending_runtimes_and_that_the_change_stays_accepted() -> None:
    result = follow_result(7, RevisionStatus(revision(runtime("r1", "Pending"))), 60)
    assert (result.exit_code, result.summary) == (
        EXIT_CODE[Kind.DEADLINE],
        "revision 7 verified on 0/1 runtimes after 60 s",
    )
    assert result.notes[0] == "r1: Pending: it is Pending"
    assert "stays accepted" in result.notes[-1]


def test_missing_progress_does_not_count_as_a_failed_change() -> None:
    result = follow_result(7, None, 60)
    assert result.exit_code == EXIT_CODE[Kind.UNAVAILABLE]
    assert "accepted" in result.summary


def test_only_changed_runtimes_get_a_line() -> None:
    old = RevisionStatus(revision(runtime("r1", "Pending"), runtime("r2", "Pending")))
    new = RevisionStatus(revision(runtime("r1", "Pending", seconds=2), runtime("r2", "Applied", seconds=2)))
    assert step_lines(None, old) == ["r1: Pending: it is Pending (0.50 s)", "r2: Pending: it is Pending (0.50 s)"]
    assert step_lines(old, new) == ["r2: Applied: it is Applied (2.00 s)"]


def test_without_a_terminal_steps_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display(quiet=False)
    assert isinstance(display, LineDisplay)
    with display:
        display.show(RevisionStatus(revision(runtime("r1", "Pending"))))
        display.show(RevisionStatus(revision(runtime("r1", "Pending"))))
    assert capsys.readouterr().out == "r1: Pending: it is Pending (0.50 s)\n"


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display(quiet=True) as display:
        display.show(RevisionStatus(revision(runtime("r1", "Pending"))))
    assert capsys.readouterr().out == ""


def test_the_live_table_is_readable_without_colour() -> None:
    from rich.console import Console

    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(
            progress_table(RevisionStatus(revision(runtime("r1", "Verified", done=True), runtime("r2", "[red]Failed"))))
        )
    rows = [line.split() for line in captured.get().splitlines()]
    assert rows[0] == ["RUNTIME", "STATE", "SECONDS", "MESSAGE"]
    assert rows[1][:3] == ["r1", "Verified", "0.50"]
    assert rows[2][:3] == ["r2", "[red]Failed", "0.50"]
