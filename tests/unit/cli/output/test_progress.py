"""When waiting for a change ends and what is said then; the server is played by a list of steps."""

from collections.abc import AsyncGenerator, Iterator
from typing import Any, TypeAlias, cast

import pytest

from governor.cli.output.display import Lines, choose, progress_table
from governor.cli.output.progress import Ending, Follower, Place, Standing, ending, step_lines
from governor.client import Client
from governor.domain.conditions import Actor, Condition, Summary, connected
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import DONE, EXIT_CODE, NO
from governor.wire.rest import RevisionProgress, RuntimeProgress, RuntimeView

Step: TypeAlias = RevisionProgress | GovernorError
LOST = GovernorError(Kind.UNAVAILABLE, "stream-ended", "the stream ended")


def at(runtime: str, state: str, *, done: bool = False, seconds: float = 0.5) -> RuntimeProgress:
    return RuntimeProgress(runtime, 1, Summary(state, state, f"it is {state}", Actor.NOBODY), done, seconds)


def progress(*runtimes: RuntimeProgress) -> RevisionProgress:
    return RevisionProgress(7, all(each.done for each in runtimes), runtimes)


def view(name: str, condition: Condition) -> RuntimeView:
    summary = Summary("x", "x", "x", Actor.NOBODY)
    return RuntimeView(name, "local", {}, 1, 1, 7, "sha256:x", summary, (condition,), None)


class Server:
    """Answers ``runtimes`` and ``progress``: each connection takes the next list of steps, an error ends it."""

    def __init__(
        self, *connections: list[RevisionProgress | GovernorError], runtimes: tuple[RuntimeView, ...] = ()
    ) -> None:
        self._connections: Iterator[list[RevisionProgress | GovernorError]] = iter(connections)
        self._runtimes = runtimes

    async def runtimes(self) -> tuple[RuntimeView, ...]:
        return self._runtimes

    async def progress(self, number: int) -> AsyncGenerator[RevisionProgress, None]:
        assert number == 7
        for step in next(self._connections):
            if isinstance(step, GovernorError):
                raise step
            yield step


async def followed(server: Server, timeout_s: float = 10, only: str | None = None) -> list[Standing]:
    seen: list[Standing] = []
    await Follower(7, seen.append, only).follow(cast("Client", server), timeout_s)
    return seen


async def test_waiting_ends_when_every_runtime_verified() -> None:
    steps = [progress(at("r1", "Pending")), progress(at("r1", "Verified", done=True)), progress(at("r1", "Never"))]
    assert [each.progress for each in await followed(Server([*steps]))] == steps[:2]


@pytest.mark.parametrize("state", ["Failed", "Unproven"])
async def test_waiting_ends_when_a_runtime_rests_without_proof(state: str) -> None:
    steps = [progress(at("r1", state), at("r2", "Verified", done=True)), progress(at("r1", "Never"))]
    assert len(await followed(Server([*steps]))) == 1


async def test_waiting_goes_on_while_another_runtime_is_on_its_way() -> None:
    steps = [progress(at("r1", "Failed"), at("r2", "Applied")), progress(at("r1", "Failed"), at("r2", "V", done=True))]
    assert len(await followed(Server([*steps]))) == 2


async def test_who_follows_one_runtime_does_not_wait_for_another() -> None:
    steps = [progress(at("r1", "Pending"), at("r2", "Failed")), progress(at("r1", "V", done=True), at("r2", "Failed"))]
    seen = await followed(Server([*steps, progress(at("r1", "Never"))]), only="r1")
    assert [[each.runtime for each in standing.progress.runtimes] for standing in seen] == [["r1"], ["r1"]]


async def test_nobody_waits_for_a_runtime_that_no_agent_serves() -> None:
    nobody = view("r1", connected(enrolled=False, watching=False, since=None))
    seen = await followed(Server([progress(at("r1", "Pending"))], runtimes=(nobody,)))
    assert [each.runtime for each in seen[-1].at(Place.ABSENT)] == ["r1"]


async def test_a_runtime_that_is_only_away_is_waited_for() -> None:
    away = view("r1", connected(enrolled=True, watching=False, since=None))
    steps = [progress(at("r1", "Pending")), progress(at("r1", "Verified", done=True))]
    assert len(await followed(Server([*steps], runtimes=(away,)))) == 2


async def test_a_lost_connection_is_made_again() -> None:
    seen = await followed(Server([progress(at("r1", "Pending")), LOST], [progress(at("r1", "Verified", done=True))]))
    assert [each.progress.complete for each in seen] == [False, True]


async def test_another_failure_is_not_repeated() -> None:
    revoked = GovernorError(Kind.UNAUTHENTICATED, "token-refused", "revoked")
    with pytest.raises(GovernorError) as raised:
        await followed(Server([revoked]))
    assert raised.value is revoked


async def test_waiting_ends_with_its_time_and_keeps_the_last_step() -> None:
    connections: list[list[Any]] = [[progress(at("r1", "Pending")), LOST], *([LOST] for _ in range(1000))]
    seen = await followed(Server(*connections), timeout_s=0.05)
    assert [each.progress.complete for each in seen] == [False]


@pytest.mark.parametrize(
    ("runtimes", "absent", "expected"),
    [
        ((), (), Ending(DONE, "revision 7 accepted; it changes no runtime")),
        (
            (at("r1", "Verified", done=True, seconds=0.2), at("r2", "Verified", done=True, seconds=0.314)),
            (),
            Ending(DONE, "revision 7 verified on 2/2 runtimes in 0.31 s"),
        ),
        (
            (at("r1", "Verified", done=True), at("r2", "Pending")),
            ("r2",),
            Ending(
                DONE,
                "revision 7 verified on 1/2 runtimes in 0.50 s",
                ("r2: no agent is enrolled; make a token for it with `governor token join r2`",),
            ),
        ),
    ],
)
def test_a_good_end_is_one_line(
    runtimes: tuple[RuntimeProgress, ...], absent: tuple[str, ...], expected: Ending
) -> None:
    assert ending(7, Standing(progress(*runtimes), frozenset(absent)), 60) == expected


def test_a_failed_runtime_is_named_with_the_next_command() -> None:
    standing = Standing(progress(at("r1", "Verified", done=True), at("r2", "Failed")))
    told = ending(7, standing, 60)
    assert (told.code, told.result) == (NO, "revision 7 verified on 1/2 runtimes")
    assert told.remarks[0] == "r2: Failed: it is Failed"
    assert "stays accepted" in told.remarks[-1]
    assert "governor describe runtime r2" in told.remarks[-1]


def test_a_timeout_says_who_is_missing_and_that_the_change_stays() -> None:
    told = ending(7, Standing(progress(at("r1", "Pending"))), 60)
    assert (told.code, told.result) == (EXIT_CODE[Kind.DEADLINE], "revision 7 verified on 0/1 runtimes after 60 s")
    assert told.remarks[0] == "r1: Pending: it is Pending"
    assert "stays accepted" in told.remarks[-1]


def test_progress_that_never_came_is_not_a_failed_change() -> None:
    told = ending(7, None, 60)
    assert told.code == EXIT_CODE[Kind.UNAVAILABLE]
    assert "accepted" in told.result


def test_only_what_moved_gets_a_line() -> None:
    old = Standing(progress(at("r1", "Pending"), at("r2", "Pending")))
    new = Standing(progress(at("r1", "Pending", seconds=2), at("r2", "Applied", seconds=2)))
    assert step_lines(None, old) == ["r1: Pending: it is Pending (0.50 s)", "r2: Pending: it is Pending (0.50 s)"]
    assert step_lines(old, new) == ["r2: Applied: it is Applied (2.00 s)"]


def test_without_a_terminal_steps_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = choose(quiet=False)
    assert isinstance(display, Lines)
    with display:
        display.show(Standing(progress(at("r1", "Pending"))))
        display.show(Standing(progress(at("r1", "Pending"))))
    assert capsys.readouterr().out == "r1: Pending: it is Pending (0.50 s)\n"


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with choose(quiet=True) as display:
        display.show(Standing(progress(at("r1", "Pending"))))
    assert capsys.readouterr().out == ""


def test_the_live_table_is_understood_without_colour() -> None:
    from rich.console import Console

    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(progress_table(Standing(progress(at("r1", "Verified", done=True), at("r2", "[red]Failed")))))
    rows = [line.split() for line in captured.get().splitlines()]
    assert rows[0] == ["RUNTIME", "STATE", "SECONDS", "MESSAGE"]
    assert rows[1][:3] == ["r1", "Verified", "0.50"]
    assert rows[2][:3] == ["r2", "[red]Failed", "0.50"]
