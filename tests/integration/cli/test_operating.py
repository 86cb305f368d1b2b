"""``runtime``, ``rollback``, ``explain`` and ``import`` with the real server."""

import re
from typing import Any

import pytest

from governor.domain.documents import DocumentRef, ResourceRef
from governor.domain.inventories import FoundResource, FoundWorkload, Inventory, ReloadingSidecars
from governor.domain.reports import State, WorkloadRef
from governor.errors import GovernorError, Kind
from governor.process.exit_codes import EXIT_CODE, NEGATIVE, SUCCESS, USAGE
from tests.integration.cli.bed import CommandLine, governed, profile, runtime
from tests.integration.server.bed import ServerBed

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


# -- hold and resume -----------------------------------------------------------------------------------------------


async def spec_of(governor: CommandLine, name: str) -> dict[str, Any]:
    async with governor.server.client() as admin:
        document = (await admin.document(DocumentRef("Runtime", name))).document
    assert document is not None
    spec: dict[str, Any] = document["spec"]
    return spec


async def test_a_hold_is_a_change_that_the_agent_confirms_and_resume_ends_it(governor: CommandLine) -> None:
    agent = await governed(governor, "held")
    governor.write("p.yaml", profile("held", "held"))
    async with agent.reporting(State.VERIFIED):
        await governor.run("apply", "-f", "p.yaml")
        held = await governor.run("runtime", "hold", "held", "--for", "2h", "--reason", "inventory")
        shown = await governor.run("get", "runtimes", "held")
        described = await governor.run("describe", "runtime", "held")
        checked = await governor.run("doctor")
        spec = await spec_of(governor, "held")
        resumed = await governor.run("runtime", "resume", "held")
        again = await governor.run("runtime", "resume", "held")
    assert (held.code, held.err) == (SUCCESS, "")
    assert held.lines[0] == "Runtime/held: changed (version 1 -> 2)"
    assert re.fullmatch(r"held: held until 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ: inventory", held.lines[1])
    assert held.lines[-1].endswith(" received by held")
    assert spec["hold"]["reason"] == "inventory"
    assert "Verified,Held" in shown.out
    assert "Changeable: False, Held: held until " in described.out
    assert re.search(r"waiting +runtime held +Held +held until .*: inventory", checked.out)
    assert (resumed.code, "hold" in await spec_of(governor, "held")) == (SUCCESS, False)
    assert " verified on 1/1 runtimes in " in resumed.lines[-1]
    assert (again.code, again.lines[-1]) == (SUCCESS, "no changes: every document is up to date")
    history = await governor.run("history", "--limit", "2")
    assert "hold: inventory" in history.out
    assert "resume" in history.out


async def test_a_change_that_waits_for_a_hold_is_not_waited_for(governor: CommandLine) -> None:
    agent = await governed(governor, "waits")
    agent.waits = True
    governor.write("p.yaml", profile("waits", "waits"))
    await governor.run("runtime", "hold", "waits", "--for", "2h", "--reason", "inventory", "--no-wait")
    async with agent.reporting(State.RECEIVED):
        applied = await governor.run("apply", "-f", "p.yaml", "--wait-timeout", "10m")
        held = await governor.run("runtime", "hold", "waits", "--for", "3h", "--reason", "longer")
        shown = await governor.run("get", "runtimes", "waits")
    assert applied.code == EXIT_CODE[Kind.DEADLINE]
    assert applied.lines[-1].endswith(" verified on 0/1 runtimes, 1 waiting")
    assert "waits: Held: delivery 1 waits: held until " in applied.err
    assert "is applied when the maintenance window begins or the hold ends" in applied.err
    assert (held.code, held.lines[-1].endswith(" received by waits")) == (SUCCESS, True)
    assert re.search(r"waits +local +Held .* delivery 2 waits: held until .*: longer", shown.out)


async def test_a_hold_of_an_agent_that_does_not_respond_is_accepted_and_not_confirmed(governor: CommandLine) -> None:
    agent = await governed(governor, "silent")
    governor.write("p.yaml", profile("silent", "silent"))
    async with agent.reporting(State.VERIFIED):
        await governor.run("apply", "-f", "p.yaml")
    held = await governor.run("runtime", "hold", "silent", "--for", "2h", "--reason", "x", "--wait-timeout", "1s")
    assert held.code == EXIT_CODE[Kind.DEADLINE]
    assert "the change stays accepted" in held.err


async def test_windows_are_described_with_the_next_one(governor: CommandLine) -> None:
    night = {"days": ["Sat", "Sun"], "start": "22:00", "durationMinutes": 240, "timeZone": "Europe/Berlin"}
    windows = {"platform": "local", "windows": [night, {"start": "12:00", "durationMinutes": 1}]}
    governor.write("r.yaml", {**runtime("windows"), "spec": windows})
    assert (await governor.run("apply", "-f", "r.yaml")).code == SUCCESS
    described = await governor.run("describe", "runtime", "windows")
    assert "Window:    Sat, Sun at 22:00 Europe/Berlin for 240 minutes" in described.lines
    assert "Window:    every day at 12:00 UTC for 1 minutes" in described.lines
    assert re.search(r"^ +(closed, next: 20|open until 20)", described.out, re.MULTILINE)


async def test_an_unknown_time_zone_is_reported_at_its_line(governor: CommandLine) -> None:
    window = {"start": "22:00", "durationMinutes": 240, "timeZone": "CEST"}
    governor.write("zone.yaml", {**runtime("zone"), "spec": {"platform": "local", "windows": [window]}})
    refused = await governor.run("apply", "-f", "zone.yaml")
    assert refused.code == EXIT_CODE[Kind.INVALID]
    assert re.search(r"zone.yaml:\d+.*spec.windows\[0\].timeZone: unknown time zone 'CEST'", refused.err)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["hold", "nobody", "--for", "2h", "--reason", "x"], EXIT_CODE[Kind.NOT_FOUND]),
        (["hold", "nobody", "--for", "2h"], USAGE),
        (["hold", "nobody", "--reason", "x"], USAGE),
        (["hold", "nobody", "--for", "9999999d", "--reason", "x"], USAGE),
        (["resume", "nobody"], EXIT_CODE[Kind.NOT_FOUND]),
    ],
)
async def test_a_hold_that_cannot_be_set_is_an_error(governor: CommandLine, words: list[str], code: int) -> None:
    assert (await governor.run("runtime", *words)).code == code


# -- strategy rolling ----------------------------------------------------------------------------------------------


async def test_a_rolling_change_that_sidecars_load_at_once_is_refused_at_preview(
    governor: CommandLine, server: ServerBed
) -> None:
    await server.apply(runtime("rolling"))
    agent = await server.enrol("rolling")
    governor.write("rolling.yaml", profile("rolling", "rolling", apply={"strategy": "rolling"}))
    assert (await governor.run("diff", "-f", "rolling.yaml")).code == NEGATIVE, "no sidecar is known: the agent decides"
    sidecars = ReloadingSidecars("1.18.3", "orders", instances=2, pods=("orders-0", "orders-1"))
    ref = WorkloadRef("default", "Deployment", "orders")
    async with agent.client() as client:
        await client.put_inventory("rolling", Inventory(("default",), (FoundWorkload(ref, reloading=(sidecars,)),)))
    for command in (["diff"], ["apply", "--dry-run"], ["apply", "--no-wait"]):
        refused = await governor.run(*command, "-f", "rolling.yaml")
        assert refused.code == EXIT_CODE[Kind.PRECONDITION]
        assert "orders would load Component/default/store at once (Dapr 1.18.3 in orders-0, orders-1)" in refused.err
        assert "use strategy reload" in refused.err
    governor.write("rolling.yaml", profile("rolling", "rolling", apply={"strategy": "reload"}))
    assert (await governor.run("apply", "--no-wait", "-f", "rolling.yaml")).code == SUCCESS


# -- import from a runtime -----------------------------------------------------------------------------------------


async def test_what_an_agent_found_is_imported_once_and_deleted_with_its_runtime(
    governor: CommandLine, server: ServerBed
) -> None:
    await server.apply(runtime("found"))
    agent = await server.enrol("found")
    [manifest] = profile("x", None)["spec"]["resources"]
    manifest["metadata"]["namespace"] = "default"
    store = ResourceRef("Component", "default", "store")
    inventory = Inventory(("default",), resources=(FoundResource(store, managers=("helm",), manifest=manifest),))
    none = await governor.run("import", "--from-runtime", "found")
    assert (none.code, "has sent no inventory" in none.err) == (EXIT_CODE[Kind.NOT_FOUND], True)
    async with agent.client() as client:
        await client.put_inventory("found", inventory)
        with pytest.raises(GovernorError, match="only to the runtime itself"):
            await client.put_inventory("other", inventory)
    printed = await governor.run("import", "--from-runtime", "found", "--output", "-")
    assert (printed.code, "name: imported-found" in printed.out) == (SUCCESS, True)
    assert "--set 'adoptedManagers={helm}'" in printed.err
    done = await governor.run("import", "--from-runtime", "found", "--no-wait")
    assert done.lines[0] == "Profile/imported-found: created (version 1)"
    again = await governor.run("import", "--from-runtime", "found", "--no-wait")
    assert (again.code, "exists already" in again.err) == (EXIT_CODE[Kind.EXISTS], True)
    assert (await governor.run("import")).code == USAGE
    documents = ("profile/imported-found", "runtime/found")
    assert (await governor.run("delete", *documents, "--allow-deletions", "--no-wait")).code == SUCCESS
    async with server.client() as admin:
        with pytest.raises(GovernorError, match="there is no runtime 'found'"):
            await admin.inventory("found")
