"""Every endpoint conforms to the OpenAPI document over HTTP; an endpoint without a case fails."""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import jsonschema_rs
import msgspec
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.documents import DOCUMENT_TYPES
from governor.domain.reports import State
from governor.server.api.endpoints import Access
from governor.server.api.routes import ENDPOINTS
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.events import Parser
from governor.wire.rest import PREFIX, TokenRequest
from tests.integration.server.bed import Agent, ServerBed, component, profile, report_on, running, runtime

pytestmark = pytest.mark.asyncio(loop_scope="module")


class World(NamedTuple):
    """A server with one object of each kind, their names and valid request bodies."""

    bed: ServerBed
    agent: Agent
    names: dict[str, str]
    bodies: dict[str, Any]
    description: dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with running(tmp_path_factory.mktemp("server")) as bed:
        change = await bed.apply(
            runtime("r1", region="eu"), profile("orders", component("store", redisHost="a", redisPassword="pw"))
        )
        agent = await bed.enrol("r1")
        delivery = await agent.newest()
        await agent.report(delivery, State.APPLIED, n=1)
        async with bed.client() as admin:
            spare = await admin.create_token(TokenRequest(name="spare", runtime="r1"))
            join = credentials.read_join_token(Secret((await admin.create_token(TokenRequest(runtime="r1"))).text))
        async with aiohttp.ClientSession() as session, session.get(f"{bed.url}{PREFIX}/openapi.json") as answer:
            description = await answer.json()
        names = {
            "change": change.id,
            "kind": "Profile",
            "name": "orders",
            "revision": "1",
            "runtime": "r1",
            "sequence": "1",
            "token": spare.token.id,
        }
        report = report_on(delivery, State.VERIFIED, n=2, session=agent.session)
        bodies = {
            "/changes": {"documents": [runtime("r2")], "message": "contract", "dryRun": True},
            "/tokens": {"name": "ci", "role": "viewer", "ttlSeconds": 60},
            "/enrol": {
                "runtime": "r1",
                "secret": join.secret,
                "publicKey": credentials.encode_public_key(Ed25519PrivateKey.generate().public_key()),
            },
            "/runtimes/{runtime}/reports": msgspec.to_builtins(report),
            "/runtimes/{runtime}/inventory": {"namespaces": ["default"]},
            "/runtimes/{runtime}/checks": {"sequence": 1, "attempt": 1, "session": agent.session, "n": 2},
        }
        yield World(bed, agent, names, bodies, description)


# These invalidate the agent's key, so they run last; revoking comes after enrolment, which needs a join token.
LAST = ("/enrol", "/runtimes/{runtime}/revoke")
CASES = sorted(ENDPOINTS, key=lambda endpoint: LAST.index(endpoint.path) + 1 if endpoint.path in LAST else 0)


def validator(world: World, schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**schema, "components": world.description["components"]})


@pytest.mark.parametrize("endpoint", CASES, ids=lambda endpoint: f"{endpoint.method} {endpoint.route}")
async def test_an_endpoint_conforms_to_its_description(world: World, endpoint: Any) -> None:
    described = world.description["paths"][endpoint.route][endpoint.method.lower()]
    body = world.bodies.get(endpoint.path) if endpoint.method in ("POST", "PUT") else None
    if "requestBody" in described:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        assert validator(world, schema).is_valid(body)
    credential = world.agent.credential() if described["x-access"] == "self" else world.bed.admin_token
    url = world.bed.url + endpoint.route.format(**world.names)
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            endpoint.method,
            url,
            json=body,
            headers={"Authorization": f"Bearer {credential.reveal()}", "Accept": "*/*"},
            timeout=aiohttp.ClientTimeout(total=60),
        ) as answer,
    ):
        assert str(answer.status) in described["responses"]
        content = described["responses"][str(answer.status)].get("content", {})
        if not content:
            assert await answer.read() == b""
            return
        assert answer.content_type in content
        if answer.content_type == "text/event-stream":
            event = await first_event(answer)
            assert event in endpoint.events
            return
        errors = list(validator(world, content[answer.content_type]["schema"]).iter_errors(await answer.json()))
        assert [error.message for error in errors] == []


async def first_event(answer: aiohttp.ClientResponse) -> str:
    parser = Parser()
    async for chunk in answer.content.iter_any():
        for event in parser.feed(chunk):
            return event.event
    raise AssertionError("the stream ended without an event")


async def test_a_problem_conforms_to_its_description(world: World) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{world.bed.url}{PREFIX}/runtimes") as answer:
        problem = await answer.json(content_type="application/problem+json")
    schema = world.description["components"]["schemas"]["Problem"]
    assert validator(world, schema).is_valid(problem)
    assert answer.status == problem["status"] == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"


MISSING = {"revision": "999"}
NAMED = [each for each in ENDPOINTS if each.method == "GET" and "{" in each.path and each.access is not Access.SELF]


@pytest.mark.parametrize("endpoint", NAMED, ids=lambda endpoint: endpoint.route)
async def test_an_object_that_does_not_exist_is_answered_as_described(world: World, endpoint: Any) -> None:
    responses = world.description["paths"][endpoint.route]["get"]["responses"]
    names = {name: MISSING.get(name, "missing") for name in world.names}
    headers = {"Authorization": f"Bearer {world.bed.admin_token.reveal()}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(world.bed.url + endpoint.route.format(**names)) as answer,
    ):
        content = responses.get("404", responses["default"])["content"]
        assert answer.status == 404
        assert answer.content_type in content
        body = await (answer.text() if answer.content_type == "text/plain" else answer.json(content_type=None))
        assert validator(world, content[answer.content_type]["schema"]).is_valid(body)


RANGES = [(each, query.name) for each in ENDPOINTS for query in each.query if "maximum" in query.schema]


@pytest.mark.parametrize(("endpoint", "name"), RANGES, ids=lambda part: getattr(part, "route", part))
async def test_a_number_is_accepted_in_its_described_range_only(world: World, endpoint: Any, name: str) -> None:
    described = world.description["paths"][endpoint.route]["get"]["parameters"]
    schema = next(each["schema"] for each in described if each["name"] == name)
    headers = {"Authorization": f"Bearer {world.bed.admin_token.reveal()}", "Accept": "application/json"}

    async def status(number: int) -> int:
        url = world.bed.url + endpoint.route.format(**world.names)
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url, params={name: number}) as answer:
            return answer.status

    lowest, highest = schema["minimum"], schema["maximum"]
    assert 400 not in (await status(lowest), await status(highest))
    assert (await status(lowest - 1), await status(highest + 1)) == (400, 400)


async def test_the_described_kinds_of_documents_are_those_of_the_server(world: World) -> None:
    (described,) = world.description["paths"][f"{PREFIX}/documents"]["get"]["parameters"]
    assert described["schema"]["enum"] == sorted(DOCUMENT_TYPES)


async def test_a_discriminator_names_values_of_its_property(world: World) -> None:
    """Its mapping has only strings as keys, so its schemas must distinguish a property with numbers."""
    components = world.description["components"]["schemas"]

    def wrong(node: Any) -> list[str]:
        children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
        found = [name for child in children for name in wrong(child)]
        if isinstance(node, dict) and isinstance(by := node.get("discriminator"), dict):
            for value, ref in by["mapping"].items():
                schema = components[ref.rpartition("/")[2]]["properties"][by["propertyName"]]
                found += [] if value in schema["enum"] else [ref]
        return found

    assert wrong(world.description) == []
