"""Explanation of a runtime: every field with the profile that set it, sensitive values masked."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from governor.domain.documents import ResourceRef
from governor.errors import GovernorError, Kind
from governor.wire.rest import FieldExplanation, RuntimeExplanation
from tests.integration.server.bed import ServerBed, component, profile, running, runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")

CANARY = "canary-0c4f"
STORE = ResourceRef("Component", "default", "store")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    """Run a server whose runtime r1 has three layers: for all, for a group (version 2), and for r1."""
    async with running(tmp_path_factory.mktemp("server")) as server:
        everything = profile(
            "all", component("store", redisHost="${runtime.id}", redisPassword=CANARY, redisDB="1"), priority=5
        )
        group = profile("eu", component("store", redisHost="x"), selector={"matchLabels": {"region": "eu"}}, priority=7)
        own = profile("own", selector={"runtime": "r1"}, apply={"strategy": "rolling"})
        await server.apply(runtime("r1", region="eu"), runtime("r2"), everything, group, own)
        store = component("store", redisHost="eu-${runtime.labels.region}")
        store["spec"]["metadata"].append({"name": "redisDB", "$remove": True})
        await server.apply(profile("eu", store, selector={"matchLabels": {"region": "eu"}}, priority=7))
        yield server


async def explanation(bed: ServerBed, name: str) -> RuntimeExplanation:
    async with bed.client() as viewer:
        return await viewer.explain(name)


def fields(found: RuntimeExplanation) -> dict[str, FieldExplanation]:
    (resource,) = found.resources
    assert resource.resource == STORE
    return {field.path: field for field in resource.fields}


async def test_each_field_has_its_profile_with_version_and_priority(bed: ServerBed) -> None:
    by_path = fields(await explanation(bed, "r1"))
    host = by_path["spec.metadata[redisHost].value"]
    password = by_path["spec.metadata[redisPassword].value"]
    removed = by_path["spec.metadata[redisDB]"]
    assert (host.value, host.profile, host.version, host.priority) == ("eu-eu", "eu", 2, 7)
    assert (password.value, password.profile, password.version, password.priority) == ("***", "all", 1, 5)
    assert (removed.value, removed.profile) == (None, "eu")


async def test_each_field_of_the_apply_policy_has_its_profile_or_is_a_default(bed: ServerBed) -> None:
    origins = {field.path: (field.value, field.profile) for field in (await explanation(bed, "r1")).apply}
    assert origins["strategy"] == ("rolling", "own")
    assert origins["verifyWindowSeconds"] == (60, "")
    assert set(origins) == {
        *("preflight", "preflightLabels", "strategy", "unproven", "verifyWindowSeconds", "retry", "drift", "windows")
    }


async def test_the_explanation_matches_the_delivery_of_the_runtime(bed: ServerBed) -> None:
    found = await explanation(bed, "r2")
    async with bed.client() as viewer:
        sent = (await viewer.runtime("r2")).digest
    assert fields(found)["spec.metadata[redisHost].value"].value == "r2"
    assert found.digest == sent
    assert CANARY not in str(found)


async def test_an_unknown_runtime_is_not_found_and_a_runtime_is_denied(bed: ServerBed) -> None:
    agent = await bed.enrol("r2")
    with pytest.raises(GovernorError) as unknown:
        await explanation(bed, "nobody")
    async with agent.client() as client:
        with pytest.raises(GovernorError) as denied:
            await client.explain("r2")
    assert (unknown.value.kind, denied.value.kind) == (Kind.NOT_FOUND, Kind.DENIED)
