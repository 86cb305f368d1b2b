"""``runtime``, ``rollback``, ``explain`` and ``import`` with the real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from governor.domain.reports import State
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE, NEGATIVE, SUCCESS, USAGE
from tests.integration.cli.bed import CommandLine, governed, profile, runtime
from tests.integration.server.bed import ServerBed, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    """Run one server for this file; each test uses its own names of runtimes and profiles."""
    async with running(tmp_path_factory.mktemp("server") / "data") as bed:
        yield bed


@pytest.fixture
def governor(server: ServerBed, tmp_path: Path) -> CommandLine:
    return CommandLine(server, tmp_path)


async def test_a_retry_is_followed_on_its_runtime_only(governor: CommandLine) -> None:
    first, second = await governed(governor, "retry-1"), await governed(governor, "retry-2")
    governor.write("all.yaml", profile("retry-1", "retry-1"), profile("retry-2", "retry-2"))
    async with first.reporting(State.FAILED), second.reporting(State.FAILED):
        failed = await governor.run("apply", "-f", "all.yaml")
    assert failed.code == NEGATIVE
    assert "`governor runtime retry retry-1`" in failed.err
    async with first.reporting(State.APPLIED, State.VERIFIED, after=1):
        done = await governor.run("runtime", "retry", "retry-1")
    assert (done.code, done.err) == (SUCCESS, "")
    assert done.lines[0].startswith("retry-1: delivery 2, attempt 2 at revision ")
    assert " verified on 1/1 runtimes in " in done.lines[-1]
    assert not any("retry-2" in line for line in done.lines)


async def test_a_retry_that_fails_again_exits_with_one(governor: CommandLine) -> None:
    agent = await governed(governor, "fails")
    governor.write("p.yaml", profile("fails", "fails"))
    async with agent.reporting(State.FAILED):
        await governor.run("apply", "-f", "p.yaml")
        done = await governor.run("runtime", "retry", "fails")
    assert done.code == NEGATIVE
    assert "seen as failed" in done.err


async def test_a_retry_without_a_delivery_is_rejected(governor: CommandLine) -> None:
    await governed(governor, "nothing")
    rejected = await governor.run("runtime", "retry", "nothing")
    assert rejected.code == EXIT_CODE[Kind.PRECONDITION]
    assert "runtime 'nothing' has no delivery yet" in rejected.err
    assert (await governor.run("runtime", "retry", "nobody")).code == EXIT_CODE[Kind.NOT_FOUND]


async def test_a_rollback_is_previewed_and_followed(governor: CommandLine) -> None:
    agent = await governed(governor, "back")
    governor.write("p.yaml", profile("back", "back", "one"))
    async with agent.reporting(State.VERIFIED):
        first = await governor.run("apply", "-f", "p.yaml")
        governor.write("p.yaml", profile("back", "back", "two"))
        await governor.run("apply", "-f", "p.yaml")
        revision = first.lines[-1].split()[1]
        shown = await governor.run("rollback", "--dry-run", revision, "profile/back")
        done = await governor.run("rollback", revision, "Profile/back")
    assert any('"two" -> "one"' in line for line in shown.lines)
    assert shown.lines[-1] == "dry run: nothing was changed"
    assert done.code == SUCCESS
    assert done.lines[0] == "Profile/back: changed (version 2 -> 3)"
    assert " verified on 1/1 runtimes in " in done.lines[-1]
    assert f"rollback to revision {revision}" in (await governor.run("history", "Profile/back")).out


async def test_a_rollback_to_an_unknown_revision_is_rejected(governor: CommandLine) -> None:
    rejected = await governor.run("rollback", "99999")
    assert rejected.code == EXIT_CODE[Kind.NOT_FOUND]
    assert "there is no revision 99999" in rejected.err
    assert (await governor.run("rollback", "orders")).code == USAGE


async def test_a_revoked_runtime_is_shown_with_the_next_step(governor: CommandLine) -> None:
    await governed(governor, "revoked")
    done = await governor.run("runtime", "revoke", "revoked")
    assert (done.code, done.lines) == (SUCCESS, ["revoked: agent key revoked"])
    assert "governor token join revoked" in done.err
    assert "Revoked" in (await governor.run("describe", "runtime", "revoked")).out
    again = await governor.run("runtime", "revoke", "revoked")
    assert again.code == EXIT_CODE[Kind.PRECONDITION]


async def test_an_explanation_has_a_line_for_each_field(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("why"), profile("why", "why", priority=3, apply={"preflight": "off"}))
    await governor.run("apply", "-f", "all.yaml", "--no-wait")
    whole = await governor.run("explain", "why")
    one = await governor.run("explain", "why", "component/store", "-o", "json")
    lines = [line.split(maxsplit=2) for line in whole.lines]
    assert ["spec.metadata[note].value", "one", "Profile/why version 1, priority 3"] in lines
    assert ["preflight", "off", "Profile/why version 1, priority 3"] in lines
    assert ["strategy", "reload", "default"] in lines
    assert (one.code, '"apply": []' in one.out) == (SUCCESS, True)
    missing = await governor.run("explain", "why", "Component/other")
    assert missing.code == EXIT_CODE[Kind.NOT_FOUND]
    assert "Component/default/store" in missing.err


async def test_the_file_of_the_proof_of_concept_is_imported_as_one_change(governor: CommandLine) -> None:
    entries = [{"id": f"old-{n}", "data": profile("x", None)["spec"]["resources"][0]} for n in (1, 2)]
    del entries[0]["data"]["spec"]["version"]
    governor.write("poc.yaml", {"runtimes": entries})
    done = await governor.run("import", "--poc", "poc.yaml", "--no-wait")
    again = await governor.run("import", "--poc", "poc.yaml", "--no-wait")
    assert done.code == SUCCESS
    assert "runtime 'old-1': component 'store' has no spec.version; v1 is assumed" in done.err
    created = {f"Profile/poc-old-{n}: created (version 1)" for n in (1, 2)}
    assert created | {f"Runtime/old-{n}: created (version 1)" for n in (1, 2)} == set(done.lines[:4])
    assert again.lines == ["no changes: every document is up to date"]
    governor.write("other.yaml", runtime("old-1"))
    assert (await governor.run("import", "--poc", "other.yaml")).code == EXIT_CODE[Kind.INVALID]
