"""``get``, ``describe``, ``history`` and ``token`` with the real server."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor import yamltext
from governor.client import api
from governor.domain.changes import Revision
from governor.domain.reports import State
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE, SUCCESS
from governor.values.secret import Secret
from governor.wire.credentials import read_join_token
from governor.wire.rest import RuntimeView, TokenView
from tests.integration.cli.bed import UNREACHABLE, CommandLine, governed, profile, runtime
from tests.integration.server.bed import running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_server_without_documents_has_nothing_to_list(tmp_path: Path) -> None:
    async with running(tmp_path / "server") as empty:
        governor = CommandLine(empty, tmp_path)
        for plural in ("runtimes", "profiles", "revisions"):
            table = await governor.run("get", plural)
            assert (table.out, table.err, table.code) == ("", f"No {plural} found.\n", SUCCESS)
            assert (await governor.run("get", plural, "-o", "json")).out == "[]\n"


async def test_json_output_decodes_to_the_rest_bodies(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("read"), profile("read", "read"))
    await governor.run("apply", "-f", "all.yaml", "--no-wait", "-m", "to be read")
    runtimes = await governor.run("get", "runtimes", "-o", "json")
    assert "read" in [each.name for each in msgspec.json.decode(runtimes.out, type=list[RuntimeView])]
    revisions = await governor.run("get", "revisions", "-o", "json")
    newest = msgspec.json.decode(revisions.out, type=list[Revision])[0]
    revision = await governor.run("get", "revisions", str(newest.number), "-o", "json")
    assert msgspec.json.decode(revision.out, type=Revision) == newest
    assert newest.message == "to be read"


@pytest.mark.parametrize(
    "words",
    [("get", "runtimes"), ("get", "profiles"), ("describe", "runtime"), ("explain",), ("token", "revoke")],
    ids=" ".join,
)
async def test_an_empty_name_is_an_error_and_a_slash_is_a_part_of_a_name(
    governor: CommandLine, words: tuple[str, ...]
) -> None:
    empty, slash = await governor.run(*words, ""), await governor.run(*words, "a/b")
    assert (empty.code, empty.out, empty.err) == (EXIT_CODE[Kind.INVALID], "", "error: the name is empty\n")
    assert (slash.code, slash.out) == (EXIT_CODE[Kind.NOT_FOUND], "")
    assert "no such path" not in slash.err


def labelled(name: str, **labels: str) -> dict[str, Any]:
    document = runtime(name)
    return {**document, "metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ["many-0", "many-1", "many-2", "many-3", "many-4"]),
        (("-l", "zone in (a,b),!old"), ["many-1", "many-2", "many-4"]),
        (("--contains", "y-3"), ["many-3"]),
        (("--state", "NotWatching"), []),
    ],
    ids=["all pages", "labels", "name", "state"],
)
async def test_runtimes_are_listed_page_by_page_and_filtered_by_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], expected: list[str]
) -> None:
    monkeypatch.setattr(api, "PAGE", 2)
    async with running(tmp_path / "server") as many:
        governor = CommandLine(many, tmp_path)
        zones = [labelled(f"many-{number}", zone="ab"[number % 2]) for number in (1, 2, 4)]
        governor.write("all.yaml", *zones, labelled("many-0", zone="c"), labelled("many-3", zone="a", old="1"))
        await governor.run("apply", "-f", "all.yaml", "--no-wait")
        listed = await governor.run("get", "runtimes", "-o", "json", *options)
    assert [each.name for each in msgspec.json.decode(listed.out, type=list[RuntimeView])] == expected


async def test_a_selector_that_cannot_be_parsed_is_rejected(governor: CommandLine) -> None:
    rejected = await governor.run("get", "runtimes", "--selector", "a in b")
    assert rejected.code == EXIT_CODE[Kind.INVALID]
    assert "a in b" in rejected.err


async def test_a_printed_profile_can_be_applied_again(governor: CommandLine) -> None:
    governor.write("all.yaml", runtime("again"), profile("again", "again"))
    await governor.run("apply", "-f", "all.yaml", "--no-wait")
    document = await governor.run("get", "profile", "again", "-o", "yaml")
    governor.directory.joinpath("read.yaml").write_text(document.out)
    assert yamltext.load(document.out, "out")[0].value == profile("again", "again")
    assert (await governor.run("diff", "-f", "read.yaml")).code == SUCCESS


async def test_a_described_runtime_shows_the_evidence(governor: CommandLine) -> None:
    agent = await governed(governor, "shown")
    governor.write("p.yaml", profile("shown", "shown"))
    async with agent.reporting(State.VERIFIED):
        assert (await governor.run("apply", "-f", "p.yaml")).code == SUCCESS
        described = await governor.run("describe", "runtime", "shown")
    assert described.code == SUCCESS
    assert any(line.startswith("  Verified: True for ") for line in described.lines)
    assert any(line.startswith("  Connected: True for ") for line in described.lines)
    assert "  Component/default/store: verified" in described.lines
    assert any(line.startswith("    scripted sidecar, ") and "seen as verified" in line for line in described.lines)


async def test_the_history_of_a_document_shows_each_change_newest_first(governor: CommandLine) -> None:
    governor.write("r.yaml", runtime("story"))
    await governor.run("apply", "-f", "r.yaml", "--no-wait")
    for priority in (1, 2):
        governor.write("p.yaml", profile("story", "story", priority=priority))
        await governor.run("apply", "-f", "p.yaml", "--no-wait", "-m", f"priority {priority}")
    await governor.run("delete", "Profile/story", "--no-wait", "-m", "over")
    lines = [line.strip() for line in (await governor.run("history", "profile/story")).lines if line.startswith("  ")]
    assert lines == [
        *("over", "Profile/story version 3", "deleted"),
        *("priority 2", "Profile/story version 2", "~ spec.priority: 1 -> 2"),
        *("priority 1", "Profile/story version 1", "created"),
    ]
    newest = await governor.run("history", "Profile/story", "--limit", "1")
    assert [line.strip() for line in newest.lines[1:]] == ["over", "Profile/story version 3", "deleted"]


async def test_a_document_that_never_existed_has_no_history(governor: CommandLine) -> None:
    assert (await governor.run("history", "Profile/never")).code == EXIT_CODE[Kind.NOT_FOUND]


async def test_a_secret_is_masked_in_all_output(governor: CommandLine) -> None:
    hidden = "correct-horse"
    document = profile("masked", "masked")
    component = document["spec"]["resources"][0]
    component["spec"] = {
        "type": "state.redis",
        "version": "v1",
        "metadata": [{"name": "redisHost", "value": "127.0.0.1:1"}, {"name": "redisPassword", "value": hidden}],
    }
    governor.write("all.yaml", runtime("masked"), document)
    shown = [await governor.run("diff", "-f", "all.yaml")]
    shown.append(await governor.run("apply", "-f", "all.yaml", "--no-wait"))
    component["spec"]["metadata"][1]["value"] = f"{hidden}-2"
    governor.write("all.yaml", runtime("masked"), document)
    shown.append(await governor.run("diff", "-f", "all.yaml"))
    shown.append(await governor.run("apply", "-f", "all.yaml", "--no-wait"))
    shown.append(await governor.run("get", "profile", "masked", "-o", "yaml"))
    shown.append(await governor.run("history", "Profile/masked"))
    assert "***" in shown[0].out
    assert all(hidden not in each.out + each.err for each in shown)
    assert "only masked values changed" in shown[-1].out


async def test_a_token_permits_what_its_role_allows_until_it_is_revoked(governor: CommandLine) -> None:
    created = await governor.run("token", "create", "--name", "reader", "--role", "viewer", "--ttl", "1h")
    assert len(created.lines) == 1
    assert created.out.strip() not in created.err
    reader = CommandLine(governor.server, governor.directory)
    reader.token_file = governor.directory / "reader.token"
    reader.token_file.write_text(created.out)
    assert (await reader.run("get", "runtimes")).code == SUCCESS
    reader.write("r.yaml", runtime("denied"))
    rejected = await reader.run("apply", "-f", "r.yaml")
    assert rejected.code == EXIT_CODE[Kind.DENIED]
    assert "nothing was changed" in rejected.err
    listed = msgspec.json.decode((await governor.run("token", "list", "-o", "json")).out, type=list[TokenView])
    (token,) = [each for each in listed if each.name == "reader"]
    assert (await governor.run("token", "revoke", token.id)).code == SUCCESS
    ended = await reader.run("get", "runtimes")
    assert ended.code == EXIT_CODE[Kind.UNAUTHENTICATED]
    assert created.out.strip() not in ended.err


async def test_only_the_join_token_is_printed_and_it_names_the_server(governor: CommandLine) -> None:
    governor.write("r.yaml", runtime("joins"))
    await governor.run("apply", "-f", "r.yaml", "--no-wait")
    created = await governor.run("token", "join", "joins")
    join = read_join_token(Secret(created.out))
    assert (join.runtime, join.server) == ("joins", governor.server.url)
    assert (await governor.run("token", "join", "nobody")).code == EXIT_CODE[Kind.NOT_FOUND]


async def test_a_missing_token_names_the_next_step(governor: CommandLine) -> None:
    rejected = await governor.run("get", "runtimes", GOVERNOR_TOKEN_FILE="")
    assert rejected.code == EXIT_CODE[Kind.UNAUTHENTICATED]
    assert "--token-file" in rejected.err


async def test_the_admin_token_in_the_default_directory_is_found(governor: CommandLine) -> None:
    (governor.directory / "governor-data").symlink_to(governor.server.data_dir)
    assert (await governor.run("get", "runtimes", GOVERNOR_TOKEN_FILE="")).code == SUCCESS


async def test_an_unreachable_server_is_named(governor: CommandLine) -> None:
    rejected = await governor.run("get", "runtimes", "--server", UNREACHABLE)
    assert rejected.code == EXIT_CODE[Kind.UNAVAILABLE]
    assert UNREACHABLE in rejected.err
    assert "Traceback" not in rejected.err
