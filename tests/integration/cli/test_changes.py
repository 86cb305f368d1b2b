"""``apply``, ``diff`` and ``delete`` with the real server."""

from pathlib import Path

import pytest

from governor.domain.reports import Cause, State
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE, INTERRUPTED, NEGATIVE, SUCCESS
from tests.integration.cli.bed import CommandLine, governed, profile, runtime
from tests.integration.server.bed import running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_change_is_followed_until_every_runtime_has_verified_it(governor: CommandLine) -> None:
    first, second = await governed(governor, "follow-1"), await governed(governor, "follow-2")
    governor.write("all/runtimes.yaml", runtime("follow-1"), runtime("follow-2"))
    governor.write("all/below/profiles.yml", profile("follow-1", "follow-1"), profile("follow-2", "follow-2"))
    states = State.RECEIVED, State.APPLIED, State.VERIFIED
    async with first.reporting(*states), second.reporting(*states):
        done = await governor.run("apply", "-f", "all", "-m", "first")
    assert (done.code, done.err) == (SUCCESS, "")
    assert done.lines[:2] == ["Profile/follow-1: created (version 1)", "Profile/follow-2: created (version 1)"]
    assert {"follow-1: Verified", "follow-2: Verified"} <= {line.rpartition(":")[0] for line in done.lines}
    assert done.lines[-1].startswith("revision ")
    assert " verified on 2/2 runtimes in " in done.lines[-1]


async def test_applying_the_same_again_changes_nothing(governor: CommandLine) -> None:
    governor.write("r.yaml", runtime("same"))
    await governor.run("apply", "-f", "r.yaml", "--no-wait")
    done = await governor.run("apply", "-f", "r.yaml")
    assert (done.code, done.lines) == (SUCCESS, ["no changes: every document is up to date"])
    assert "revision" in (await governor.run("history", "Runtime/same")).out


async def test_a_runtime_without_an_agent_is_reported_and_not_waited_for(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("alone"), profile("alone", "alone"))
    done = await governor.run("apply", "-f", "all.yaml")
    assert done.code == SUCCESS
    assert done.lines[-1].endswith("verified on 0/1 runtimes")
    assert "governor token join alone" in done.err


async def test_a_failed_runtime_exits_with_one_and_names_the_next_command(governor: CommandLine) -> None:
    agent = await governed(governor, "fails")
    governor.write("p.yaml", profile("fails", "fails"))
    async with agent.reporting(State.FAILED):
        done = await governor.run("apply", "-f", "p.yaml")
    assert done.code == NEGATIVE
    assert done.lines[-1].endswith("verified on 0/1 runtimes")
    assert "seen as failed" in done.err
    assert "the change stays accepted; see `governor describe runtime fails`" in done.err


@pytest.mark.parametrize(
    ("cause", "reason", "code"),
    [
        (Cause.CHANGE, "Failed", NEGATIVE),
        (Cause.RUNTIME, "Unhealthy", NEGATIVE),
        (Cause.AGENT, "AgentFailed", EXIT_CODE[Kind.DEADLINE]),
    ],
)
async def test_apply_waits_while_the_agent_retries_and_stops_on_other_failures(
    governor: CommandLine, cause: Cause, reason: str, code: int
) -> None:
    agent = await governed(governor, f"r-{cause}")
    agent.cause = cause
    governor.write("p.yaml", profile("p", f"r-{cause}"))
    async with agent.reporting(State.FAILED):
        done = await governor.run("apply", "-f", "p.yaml", "--wait-timeout", "2s")
        doctor = await governor.run("doctor")
    await governor.run("delete", "--allow-deletions", "Profile/p", f"Runtime/r-{cause}", "--no-wait")
    assert done.code == code, done.err
    assert reason in doctor.out
    assert f"runtime r-{cause}" in doctor.out


async def test_a_wait_that_times_out_has_its_exit_code(governor: CommandLine) -> None:
    agent = await governed(governor, "slow")
    governor.write("p.yaml", profile("slow", "slow"))
    async with agent.reporting(State.APPLIED):
        # Long enough for the first status to arrive on a busy machine.
        done = await governor.run("apply", "-f", "p.yaml", "--wait-timeout", "2s")
    assert done.code == EXIT_CODE[Kind.DEADLINE]
    assert done.lines[-1].endswith("verified on 0/1 runtimes after 2 s")
    assert "stays accepted" in done.err


async def test_an_interrupted_wait_states_that_the_change_stays_accepted(governor: CommandLine) -> None:
    agent = await governed(governor, "stop")
    governor.write("p.yaml", profile("stop", "stop"))
    async with agent.reporting(State.APPLIED):
        waiting = await governor.start("apply", "-f", "p.yaml")
        await waiting.wait_for_line("stop: Applied")
        waiting.interrupt()
        done = await waiting.ended()
    assert done.code == INTERRUPTED
    assert done.lines[-1].startswith("interrupted: revision ")
    assert "stays accepted" in done.err
    assert "Traceback" not in done.err
    assert (await governor.run("get", "profile", "stop")).code == SUCCESS


async def test_quiet_prints_errors_only(governor: CommandLine) -> None:
    agent = await governed(governor, "quiet")
    governor.write("p.yaml", profile("quiet", "quiet"))
    async with agent.reporting(State.VERIFIED):
        done = await governor.run("apply", "-q", "-f", "p.yaml")
    assert (done.code, done.out, done.err) == (SUCCESS, "", "")


async def test_a_dry_run_shows_the_change_without_making_it(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("dry"), profile("dry", "dry"))
    done = await governor.run("apply", "--dry-run", "-f", "all.yaml")
    assert done.code == SUCCESS
    assert "runtime dry: resources change" in done.lines
    assert done.lines[-1] == "dry run: nothing was changed"
    assert (await governor.run("get", "runtimes", "dry")).code == EXIT_CODE[Kind.NOT_FOUND]


async def test_diff_exits_with_one_if_something_differs(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("diff"), profile("diff", "diff"))
    assert (await governor.run("diff", "-f", "all.yaml")).code == NEGATIVE
    await governor.run("apply", "-f", "all.yaml", "--no-wait")
    equal = await governor.run("diff", "-f", "all.yaml")
    assert (equal.code, equal.out) == (SUCCESS, "")
    governor.write("all.yaml", runtime("diff"), profile("diff", "diff", "two"))
    changed = await governor.run("diff", "-f", "all.yaml")
    assert changed.code == NEGATIVE
    assert any('"one" -> "two"' in line for line in changed.lines)
    (governor.directory / "all.yaml").write_text("a: [")
    assert (await governor.run("diff", "-f", "all.yaml")).code == EXIT_CODE[Kind.INVALID]


async def test_diff_shows_runtimes_that_change_alike_once_unless_all_are_requested(governor: CommandLine) -> None:
    names = [f"alike-{number}" for number in range(5)]
    alike = {"matchExpressions": [{"key": "alike", "operator": "Exists"}]}
    documents = [{**runtime(name), "metadata": {"name": name, "labels": {"alike": "yes"}}} for name in names]
    governor.write("all.yaml", *documents, profile("alike", None, selector=alike))
    grouped = await governor.run("diff", "-f", "all.yaml")
    every = await governor.run("diff", "-f", "all.yaml", "--all-runtimes")
    assert "5 runtimes (alike-0, alike-1, alike-2 and 2 more): resources change" in grouped.lines
    assert [line for line in every.lines if line.startswith("runtime ")] == [
        f"runtime {name}: resources change" for name in names
    ]


async def test_a_rejected_document_is_reported_at_file_and_line_and_changes_nothing(governor: CommandLine) -> None:
    governor.write("a-good.yaml", runtime("refused"))
    bad = governor.write("b-bad.yaml", runtime("refused-2"), profile("refused", "refused", priority="high"))
    line = next(n for n, text in enumerate(bad.read_text().splitlines(), 1) if "priority" in text)
    done = await governor.run("apply", "-f", ".")
    assert done.code == EXIT_CODE[Kind.INVALID]
    assert done.out == ""
    assert any(each.startswith(f"b-bad.yaml:{line}: Profile/refused spec.priority: ") for each in done.err.splitlines())
    assert "nothing was changed" in done.err
    assert (await governor.run("get", "runtimes", "refused")).code == EXIT_CODE[Kind.NOT_FOUND]


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("a: [1\n", "x.yaml:2", "not YAML"),
        ("kind: A\nkind: B\n", "x.yaml:2", "kind"),
        ("apiVersion: runtime-governor.dev/v1alpha1\nkind: Pod\nmetadata: {name: x}\n", "x.yaml:2", "unknown kind"),
        ("- 1\n", "x.yaml:1", "map"),
    ],
)
async def test_bad_input_is_reported_at_its_place(governor: CommandLine, text: str, place: str, reason: str) -> None:
    (governor.directory / "x.yaml").write_text(text)
    done = await governor.run("apply", "-f", "x.yaml")
    assert done.code == EXIT_CODE[Kind.INVALID]
    assert any(line.startswith(place) and reason in line for line in done.err.splitlines()), done.err


async def test_conflicting_profiles_of_equal_priority_are_rejected(governor: CommandLine) -> None:
    documents = runtime("clash"), profile("clash-1", "clash", "one"), profile("clash-2", "clash", "two")
    governor.write("all.yaml", *documents)
    done = await governor.run("apply", "-f", "all.yaml")
    assert done.code == EXIT_CODE[Kind.CONFLICT]
    assert "all.yaml:" in done.err
    assert "clash-1" in done.err


async def test_documents_are_deleted_by_name_as_one_change(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("gone"), profile("gone", "gone"))
    await governor.run("apply", "-f", "all.yaml", "--no-wait")
    rejected = await governor.run("delete", "Runtime/gone", "Profile/gone")
    assert rejected.code == EXIT_CODE[Kind.PRECONDITION]
    assert "--allow-deletions" in rejected.err
    done = await governor.run("delete", "--allow-deletions", "runtime/gone", "profile/gone")
    assert done.code == SUCCESS
    assert set(done.lines[:2]) == {"Runtime/gone: deleted (was version 1)", "Profile/gone: deleted (was version 1)"}
    assert (await governor.run("get", "profile", "gone")).code == EXIT_CODE[Kind.NOT_FOUND]


async def test_waiting_survives_a_restart_of_the_server(governor: CommandLine, tmp_path: Path) -> None:
    async with running(tmp_path / "own") as own:
        mine = CommandLine(own, governor.directory)
        agent = await governed(mine, "restart")
        mine.write("p.yaml", profile("restart", "restart"))
        async with agent.reporting(State.APPLIED):
            waiting = await mine.start("apply", "-f", "p.yaml")
            await waiting.wait_for_line("restart: Applied")
    async with running(tmp_path / "own", port=own.address.port), agent.reporting(State.VERIFIED):
        done = await waiting.ended()
    assert done.code == SUCCESS
    assert " verified on 1/1 runtimes in " in done.lines[-1]


async def test_on_a_terminal_the_progress_is_a_table(governor: CommandLine) -> None:
    agent = await governed(governor, "screen")
    governor.write("p.yaml", profile("screen", "screen"))
    async with agent.reporting(State.VERIFIED):
        code, shown = await governor.run_on_terminal("apply", "-f", "p.yaml")
    assert code == SUCCESS
    assert "RUNTIME" in shown
    assert " verified on 1/1 runtimes in " in shown
