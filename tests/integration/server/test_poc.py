"""The proof of concept's API and file, with a client that behaves like the original agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from governor.domain.documents import DocumentRef
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.process.address import Address
from governor.process.clock import VirtualClock
from governor.server.main import sources
from governor.server.settings import Settings
from governor.server.sources.poc_file import POLL_S
from governor.values.secret import Secret
from governor.wire.rest import TokenRequest
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

CANARY = "canary-31d0"


def layer(name: str, host: str, *more: str) -> dict[str, Any]:
    others = (component(each, redisHost="x") for each in more)
    store = component("store", redisHost=host, redisPassword=CANARY)
    return profile(name, store, *others, selector={"runtime": name})


class PollingAgent:
    """Polls the legacy API and counts a restart whenever the version annotation changes."""

    def __init__(self, url: str, runtime: str) -> None:
        self._url = f"{url}/runtimes/{runtime}"
        self._version = ""
        self.restarts = 0
        self.component: dict[str, Any] = {}

    async def poll(self) -> int:
        async with aiohttp.ClientSession() as session, session.get(self._url) as answer:
            if answer.status != 200:
                return answer.status
            found = (await answer.json())["data"]
        version = found["metadata"]["annotations"]["kcp-res-version"]
        if version != self._version:
            self._version, self.component = version, found
            self.restarts += 1
        return 200

    @property
    def fields(self) -> dict[str, str]:
        return {each["name"]: each["value"] for each in self.component["spec"]["metadata"]}


async def get(bed: ServerBed, path: str, token: Secret | None = None, **headers: str) -> tuple[int, str, Any]:
    credential = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
    async with (
        aiohttp.ClientSession(headers={**credential, **headers}) as session,
        session.get(bed.url + path) as answer,
    ):
        return answer.status, answer.content_type, await answer.json(content_type=None)


async def test_a_polling_agent_restarts_once_per_change(tmp_path: Path) -> None:
    async with running(tmp_path, legacy_open=True) as bed:
        agent = PollingAgent(bed.url, "1")
        missing = await agent.poll()
        await bed.apply(runtime("1"), layer("1", "a"))
        await agent.poll()
        await agent.poll()
        first = agent.fields
        await bed.apply(layer("1", "b"))
        await agent.poll()
        await bed.apply(runtime("1", note="nothing for the agent"))
        await agent.poll()
        async with bed.client() as admin:
            digest = (await admin.runtime("1")).digest
    assert missing == 404
    assert first == {"redisHost": "a", "redisPassword": CANARY}
    assert (agent.restarts, agent.fields["redisHost"]) == (2, "b")
    assert agent.component["metadata"]["annotations"]["kcp-res-version"] == digest
    assert agent.component["kind"] == "Component"


async def test_an_unknown_runtime_is_a_text_and_several_resources_are_a_list(tmp_path: Path) -> None:
    async with running(tmp_path, legacy_open=True) as bed:
        await bed.apply(runtime("1"), layer("1", "a", "second"), runtime("2"))
        async with aiohttp.ClientSession() as session, session.get(f"{bed.url}/runtimes/3") as answer:
            unknown = (answer.status, answer.content_type, await answer.text())
        _, kind, listed = await get(bed, "/runtimes")
    by_id = {each["id"]: each["data"] for each in listed}
    stamp = by_id["1"]["metadata"]["annotations"]["kcp-res-version"]
    assert unknown == (404, "text/plain", "entity not found")
    assert (kind, [each["id"] for each in listed]) == ("application/json", ["1", "2"])
    assert (by_id["1"]["kind"], len(by_id["1"]["items"])) == ("List", 2)
    assert {each["metadata"]["annotations"]["kcp-res-version"] for each in by_id["1"]["items"]} == {stamp}
    assert (by_id["2"]["kind"], by_id["2"]["items"]) == ("List", [])


async def test_sensitive_values_are_shown_only_to_the_runtime_and_to_admins(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("1"), layer("1", "a"), runtime("2"), layer("2", "b"))
        agent = await bed.enrol("1")
        async with bed.client() as admin:
            editor = Secret((await admin.create_token(TokenRequest(role=Role.EDITOR))).text)
        anonymous = await get(bed, "/runtimes/1")
        seen_by_editor = await get(bed, "/runtimes/1", editor)
        seen_by_admin = await get(bed, "/runtimes", bed.admin_token)
        own = await get(bed, "/runtimes/1", agent.credential())
        listed = await get(bed, "/runtimes", agent.credential())
        foreign = await get(bed, "/runtimes/2", agent.credential())
    assert (anonymous[0], foreign[0]) == (401, 403)
    assert (seen_by_editor[0], "***" in str(seen_by_editor), CANARY in str(seen_by_editor)) == (200, True, False)
    assert str(seen_by_admin).count(CANARY) == 2
    assert CANARY in str(own)
    assert [each["id"] for each in listed[2]] == ["1"]


async def test_legacy_open_requires_a_loopback_address_and_host(tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match="loopback"):
        Settings(listen=Address("0.0.0.0", 1), tls_certificate=Path("c"), tls_key=Path("k"), legacy_open=True)
    async with running(tmp_path, legacy_open=True) as bed:
        await bed.apply(runtime("1"), layer("1", "a"))
        rebound = await get(bed, "/runtimes/1", Host="attacker.example")
        api = await get(bed, "/api/v1alpha1/runtimes")
    assert (rebound[0], api[0]) == (401, 401)


# -- the file ------------------------------------------------------------------------------------------------------


def entry(number: int, host: str) -> str:
    return f"""
- id: "{number}"
  data:
    apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata: {{name: statestore}}
    spec:
      type: state.redis
      metadata: [{{name: redisHost, value: "{host}"}}, {{name: redisPassword, value: "{CANARY}"}}]
"""


@asynccontextmanager
async def serving_file(tmp_path: Path) -> AsyncIterator[tuple[ServerBed, Path, VirtualClock]]:
    file, clock = tmp_path / "poc.yaml", VirtualClock()
    settings = Settings(poc_file=file)
    async with running(tmp_path / "data", clock=clock, legacy_open=True) as bed:
        (source,) = sources(bed.services, settings)
        task = asyncio.ensure_future(source.run())
        await until(lambda: _is_sleeping(clock))
        yield bed, file, clock
        task.cancel()
        await asyncio.wait({task})


async def _is_sleeping(clock: VirtualClock) -> bool:
    return clock.sleepers > 0


async def write(file: Path, text: str, clock: VirtualClock, bed: ServerBed) -> None:
    """Write the file, let the server poll it and wait until its deliveries are issued."""
    file.write_text(text)
    await poll(clock)
    await bed.issued()


async def poll(clock: VirtualClock) -> None:
    """Let the server poll its file once."""
    await clock.advance(POLL_S)
    await until(lambda: _is_sleeping(clock))


async def test_the_file_is_applied_and_re_read_when_it_changes(tmp_path: Path) -> None:
    async with serving_file(tmp_path) as (bed, file, clock):
        agent = PollingAgent(bed.url, "1")
        await write(file, "runtimes:" + entry(1, "a") + entry(2, "b"), clock, bed)
        await agent.poll()
        before = agent.fields["redisHost"]
        await write(file, "runtimes:" + entry(1, "moved") + entry(2, "b"), clock, bed)
        await agent.poll()
        await poll(clock)
        async with bed.client() as admin:
            revisions = await admin.revisions()
    assert (before, agent.fields["redisHost"], agent.restarts) == ("a", "moved", 2)
    assert [(each.number, each.author) for each in revisions] == [(2, "source:poc-file"), (1, "source:poc-file")]


async def test_an_invalid_file_keeps_the_last_valid_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving_file(tmp_path) as (bed, file, clock):
        await write(file, "runtimes:" + entry(1, "a"), clock, bed)
        for bad in ("runtimes: [", "runtimes: 7\n", "runtimes:" + entry(1, "a").replace("Component", "Nonsense")):
            await write(file, bad, clock, bed)
            await poll(clock)
        file.unlink()
        await poll(clock)
        async with bed.client() as admin:
            kept = [each.number for each in await admin.revisions()]
        await write(file, "runtimes:" + entry(1, "b"), clock, bed)
        agent = PollingAgent(bed.url, "1")
        await agent.poll()
    logged = capsys.readouterr().out
    assert kept == [1]
    assert agent.fields["redisHost"] == "b"
    # Each error once: missing, three kinds of invalid content, missing again.
    assert logged.count("source rejected; its last valid state stays") == 5
    assert CANARY not in logged


async def test_documents_of_the_file_are_read_only_for_others(tmp_path: Path) -> None:
    async with serving_file(tmp_path) as (bed, file, clock):
        await write(file, "runtimes:" + entry(1, "a"), clock, bed)
        owned = DocumentRef("Profile", "poc-1")
        mine = profile("poc-1", component("store", redisHost="mine"), selector={"runtime": "1"})
        for change in ({"documents": (mine,)}, {"deletions": (owned,)}):
            with pytest.raises(GovernorError) as caught:
                await bed.apply(*change.get("documents", ()), deletions=change.get("deletions", ()))
            assert (caught.value.kind, caught.value.code) == (Kind.CONFLICT, "document-owned")
            assert "source:poc-file" in caught.value.message
        labelled = await bed.apply(runtime("1", region="eu"))
    assert labelled.revision == 2


async def test_removing_an_entry_deletes_its_profile_and_keeps_its_runtime(tmp_path: Path) -> None:
    async with serving_file(tmp_path) as (bed, file, clock):
        await bed.apply(runtime("1", region="eu"))
        await write(file, "runtimes:" + entry(1, "a") + entry(2, "b"), clock, bed)
        await write(file, "runtimes:" + entry(1, "a"), clock, bed)
        async with bed.client() as admin:
            documents = {f"{each.kind}/{each.name}": each.document for each in await admin.documents()}
    assert set(documents) == {"Runtime/1", "Runtime/2", "Profile/poc-1"}
    kept = documents["Runtime/1"]
    assert kept is not None
    assert kept["metadata"]["labels"] == {"region": "eu"}


async def test_a_token_cannot_have_the_name_of_a_source(tmp_path: Path) -> None:
    async with running(tmp_path) as bed, bed.client() as admin:
        with pytest.raises(GovernorError) as caught:
            await admin.create_token(TokenRequest(name="source:poc-file", role=Role.ADMIN))
    assert caught.value.code == "token-name"
