"""``doctor`` on real installations, with and without problems.

The server of this file has no runtimes: the one test that creates some deletes them.
"""

from typing import Any

import msgspec
import pytest

from governor.domain.reports import State
from governor.process.exit_codes import NEGATIVE, SUCCESS
from testbed.commands import Outcome
from tests.integration.cli.bed import UNREACHABLE, CommandLine, governed, profile, runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


def reasons(done: Outcome) -> dict[str, str]:
    found: list[dict[str, Any]] = msgspec.json.decode(done.out)["findings"]
    return {each["subject"]: each["condition"]["reason"] for each in found if each["condition"]["status"] != "True"}


async def test_each_runtime_with_a_problem_is_named_with_its_next_command(governor: CommandLine) -> None:
    agent = await governed(governor, "ill")
    governor.write("all.yaml", profile("ill", "ill"), runtime("new"))
    async with agent.reporting(State.FAILED):
        await governor.run("apply", "-f", "all.yaml")
        done = await governor.run("doctor", "-o", "json")
        text = await governor.run("doctor")
        assert (done.code, reasons(done)) == (NEGATIVE, {"runtime ill": "Failed", "runtime new": "NotEnrolled"})
    assert text.lines[-1] == "2 problems found"
    assert any(line.startswith("next: runtime new: governor token join new") for line in text.lines)
    await governor.run("delete", "--allow-deletions", "Profile/ill", "Runtime/ill", "Runtime/new", "--no-wait")


async def test_an_installation_without_problems_exits_with_zero(governor: CommandLine) -> None:
    done = await governor.run("doctor", "--data-dir", str(governor.server.data_dir))
    assert (done.code, done.lines[-1]) == (SUCCESS, "no problems found"), done.out


async def test_an_unreachable_server_a_bad_token_and_an_exposed_directory_are_problems(
    governor: CommandLine,
) -> None:
    missing = await governor.run("doctor", "-o", "json", "--server", UNREACHABLE)
    (governor.directory / "bad.token").write_text("rgt1.no.such")
    rejected = await governor.run("doctor", "-o", "json", GOVERNOR_TOKEN_FILE="bad.token")
    absent = await governor.run("doctor", "-o", "json", GOVERNOR_TOKEN_FILE="absent.token")
    governor.server.data_dir.chmod(0o755)
    exposed = await governor.run("doctor", "-o", "json", "--data-dir", str(governor.server.data_dir))
    governor.server.data_dir.chmod(0o700)
    assert {each.code for each in (missing, rejected, absent, exposed)} == {NEGATIVE}
    assert set(reasons(missing).values()) == {"Unreachable"}
    assert (reasons(rejected), reasons(absent)) == ({"token": "TokenRefused"}, {"token": "TokenFile"})
    assert reasons(exposed) == {str(governor.server.data_dir): "Exposed"}
    assert "no.such" not in rejected.out + rejected.err


async def test_a_missing_data_directory_is_a_problem(governor: CommandLine) -> None:
    done = await governor.run("doctor", "-o", "json", "--data-dir", "nowhere")
    assert (done.code, reasons(done)) == (NEGATIVE, {"nowhere": "DataDir"})
