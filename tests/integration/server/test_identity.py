"""Authentication and authorization: roles, expiry, revocation, enrolment."""

import asyncio
import base64
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.client import Client
from governor.domain.documents import Platform
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.server.main import ENROLMENT_BURST
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.rest import PREFIX, ChangeRequest, EnrolRequest, TokenRequest
from testbed.waiting import until
from tests.integration.server.bed import ServerBed, component, profile, running, runtime


async def rejection(call: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await call
    return caught.value


async def token(bed: ServerBed, role: Role, ttl_s: int | None = None) -> tuple[str, Secret]:
    async with bed.client() as admin:
        created = await admin.create_token(TokenRequest(name=f"a {role}", role=role, ttl_seconds=ttl_s))
    return created.token.id, Secret(created.text)


@pytest.mark.parametrize(
    ("role", "may_read", "may_change", "may_administer"),
    [(Role.VIEWER, True, False, False), (Role.EDITOR, True, True, False), (Role.ADMIN, True, True, True)],
)
async def test_each_role_includes_the_lower_ones(
    tmp_path: Path, role: Role, may_read: bool, may_change: bool, may_administer: bool
) -> None:
    async with running(tmp_path) as bed:
        _, text = await token(bed, role)
        async with bed.client(text) as client:
            calls = [client.runtimes(), client.change(ChangeRequest(documents=(runtime("r1"),))), client.tokens()]
            outcomes = [await asyncio.gather(call, return_exceptions=True) for call in calls]
    rejected = [error for (error,) in outcomes if isinstance(error, GovernorError)]
    assert [not isinstance(outcome, GovernorError) for (outcome,) in outcomes] == [may_read, may_change, may_administer]
    assert {error.kind for error in rejected} <= {Kind.DENIED}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rgt1.0123456789abcdef.not-a-secret", "not created by this server"),
        ("rgt1.", "not created by this server"),
        ("something else", "this is neither a user's nor a runtime's token"),
        ("a.b.c", "this is neither a user's nor a runtime's token"),
    ],
)
async def test_a_wrong_token_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    async with running(tmp_path) as bed, bed.client(Secret(text)) as client:
        error = await rejection(client.runtimes())
    assert error.kind is Kind.UNAUTHENTICATED
    assert reason in error.message
    assert text not in str(error)


def segment(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


HEADER = '{"alg":"EdDSA","typ":"JWT"}'
PAYLOAD, SIGNATURE = segment('{"sub":"r1"}'), segment("x" * 64)
UNDECODABLE = [
    *(
        f"{segment(HEADER)}.{segment(payload)}.{SIGNATURE}"
        for payload in (
            '{"sub":"\\ud800"}',
            '{"sub":"r1\\udfff"}',
            '{"sub":"\ud800"}',
            '{"sub":["r1"]}',
            '{"sub":{"\\ud800":1}}',
            '{"sub":"r1\\u0000"}',
            f'{{"sub":{"9" * 5000}}}',
            f'{{"sub":{"[" * 20_000}{"]" * 20_000}}}',
            '{"sub":"r1","aud":"\\ud800"}',
            '{"sub":"r1","exp":1e999,"iat":NaN}',
            '["r1"]',
            "",
        )
    ),
    *(
        f"{segment(header)}.{PAYLOAD}.{SIGNATURE}"
        for header in (
            '{"alg":"\\ud800"}',
            '{"alg":["EdDSA"]}',
            '{"alg":"EdDSA","kid":"\\ud800"}',
            '{"alg":"EdDSA","kid":{}}',
            '{"alg":"EdDSA","crit":[{}]}',
            '{"alg":"EdDSA","crit":["\\ud800"],"\\ud800":1}',
            '{"alg":"EdDSA","b64":false}',
            f'{{"alg":{"[" * 20_000}{"]" * 20_000}}}',
            "5",
        )
    ),
    "rgt1.\xe9.\xe9",
    "rgt1." + "." * 1000,
    "\xff" * 100,
    "..",
]


async def test_a_credential_that_cannot_be_decoded_is_unauthenticated(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        await bed.enrol("r1")
        statuses = []
        for text in UNDECODABLE:
            head = f"GET {PREFIX}/runtimes HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {text}"
            reader, writer = await asyncio.open_connection(bed.address.host, bed.address.port)
            writer.write(f"{head}\r\n\r\n".encode("latin-1"))
            statuses.append((await reader.read()).split()[1])
            writer.close()
            await writer.wait_closed()
    assert statuses == [b"401"] * len(UNDECODABLE)


async def test_a_valid_token_id_with_a_wrong_secret_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        token_id, _ = await token(bed, Role.ADMIN)
        async with bed.client(Secret(f"rgt1.{token_id}.{'x' * 43}")) as client:
            error = await rejection(client.runtimes())
    assert (error.kind, error.code) == (Kind.UNAUTHENTICATED, "token-refused")


async def test_a_request_without_a_token_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as bed, Client(bed.url, None) as client:
        error = await rejection(client.runtimes())
    assert (error.kind, error.code) == (Kind.UNAUTHENTICATED, "token-missing")


async def test_an_expired_token_is_rejected(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with running(tmp_path, clock=clock) as bed:
        _, text = await token(bed, Role.VIEWER, ttl_s=60)
        async with bed.client(text) as client:
            assert await client.runtimes() == ()
            clock.jump(61)
            error = await rejection(client.runtimes())
    assert error.kind is Kind.UNAUTHENTICATED
    assert "expired" in error.message


async def test_a_revoked_token_is_rejected_and_its_stream_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("store", redisHost="a")))
        token_id, text = await token(bed, Role.VIEWER)
        async with bed.client(text) as viewer, aclosing(viewer.progress(1)) as progress, bed.client() as admin:
            assert not (await anext(progress)).complete
            await admin.revoke_token(token_id)
            async with asyncio.timeout(10):
                closed = await rejection(anext(progress))
            rejected = await rejection(viewer.runtimes())
            listed = {each.id: each.revoked for each in await admin.tokens()}
    assert closed.code == "stream-ended"
    assert (rejected.kind, "revoked" in rejected.message) == (Kind.UNAUTHENTICATED, True)
    assert listed[token_id]


async def test_a_used_join_token_is_listed_as_used(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        await bed.enrol("r1")
        revoked, _ = await token(bed, Role.VIEWER)
        async with bed.client() as admin:
            await admin.revoke_token(revoked)
            listed = {each.name: (each.revoked, each.used) for each in await admin.tokens() if each.name != "admin"}
    assert sorted(listed.values()) == [(True, False), (True, True)]
    assert listed["join r1"] == (True, True)


async def test_no_secret_is_in_the_token_list_or_the_database(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        _, text = await token(bed, Role.VIEWER)
        async with bed.client() as admin:
            listed = str(await admin.tokens())
    secret = text.reveal().rpartition(".")[2].encode()
    assert secret.decode() not in listed
    assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())


async def join_token(bed: ServerBed, name: str, ttl_s: int | None = None) -> credentials.JoinToken:
    async with bed.client() as admin:
        created = await admin.create_token(TokenRequest(runtime=name, ttl_seconds=ttl_s))
    return credentials.read_join_token(Secret(created.text))


async def enrol(
    bed: ServerBed,
    name: str,
    secret: str,
    key: Ed25519PrivateKey | None = None,
    platform: Platform = Platform.LOCAL,
) -> None:
    public = credentials.encode_public_key((key or Ed25519PrivateKey.generate()).public_key())
    async with Client(bed.url, None) as anonymous:
        await anonymous.enrol(EnrolRequest(name, secret, public, platform))


def on_platform(name: str, platform: Platform) -> dict[str, Any]:
    return {**runtime(name), "spec": {"platform": platform.value}}


@pytest.mark.parametrize(
    ("expected", "given"), [(Platform.KUBERNETES, Platform.LOCAL), (Platform.LOCAL, Platform.KUBERNETES)]
)
async def test_an_agent_of_another_platform_is_refused_and_its_token_stays_valid(
    tmp_path: Path, expected: Platform, given: Platform
) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(on_platform("r1", expected))
        join = await join_token(bed, "r1")
        error = await rejection(enrol(bed, "r1", join.secret, platform=given))
        wrong = await rejection(enrol(bed, "r1", "0.wrong", platform=given))
        await enrol(bed, "r1", join.secret, platform=expected)
    assert (error.kind, error.code) == (Kind.PRECONDITION, "platform-mismatch")
    assert f"'r1' is '{expected.value}', that of this agent is '{given.value}'" in error.message
    # Only the holder of a valid token learns the platform.
    assert wrong.kind is Kind.UNAUTHENTICATED


async def test_a_runtime_whose_platform_is_changed_sends_nothing_more_to_its_agent(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("store", redisHost="a")))
        agent = await bed.enrol("r1")
        async with agent.client() as client, aclosing(client.watch("r1")) as watch:
            await anext(watch)
            changed = profile("orders", component("store", redisHost="b"))
            await bed.apply(on_platform("r1", Platform.KUBERNETES), changed)
            async with asyncio.timeout(10):
                closed = await rejection(anext(watch))
        async with agent.client() as client, aclosing(client.watch("r1")) as watch:
            refused = await rejection(anext(watch))
        async with agent.client() as client, aclosing(client.watch("r1", platform=Platform.KUBERNETES)) as watch:
            assert (await anext(watch)).payload
        await bed.apply(runtime("r1"))
        assert (await agent.newest()).sequence == 2
    assert closed.kind is Kind.UNAVAILABLE
    assert (refused.kind, refused.code) == (Kind.PRECONDITION, "platform-mismatch")
    assert "'kubernetes', that of this agent is 'local'" in refused.message


async def test_a_join_token_works_once_for_its_runtime_until_it_expires(tmp_path: Path) -> None:
    clock = VirtualClock(datetime.now(UTC))
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"), runtime("r2"))
        join = await join_token(bed, "r1")
        foreign = await rejection(enrol(bed, "r2", join.secret))
        await enrol(bed, "r1", join.secret)
        again = await rejection(enrol(bed, "r1", join.secret))
        late = await join_token(bed, "r1")
        clock.jump(3601)
        expired = await rejection(enrol(bed, "r1", late.secret))
        wrong = await rejection(enrol(bed, "r1", "0.wrong"))
    assert join.server == bed.url
    assert {error.kind for error in (foreign, again, expired, wrong)} == {Kind.UNAUTHENTICATED}
    assert "another runtime" in foreign.message
    assert "it works once" in again.message
    assert "expired" in expired.message


async def test_enrolment_is_idempotent_for_the_same_key_only(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        join = await join_token(bed, "r1")
        await enrol(bed, "r1", join.secret, key)
        await enrol(bed, "r1", join.secret, key)
        other_key = await rejection(enrol(bed, "r1", join.secret))
        async with bed.client() as admin:
            await admin.revoke_runtime("r1")
        revoked = await rejection(enrol(bed, "r1", join.secret, key))
    assert "it works once" in other_key.message
    assert revoked.kind is Kind.UNAUTHENTICATED


async def test_a_join_token_needs_an_existing_runtime(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        assert (await rejection(join_token(bed, "nope"))).code == "runtime-unknown"


async def test_an_invalid_key_does_not_consume_the_join_token(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        join = await join_token(bed, "r1")
        async with Client(bed.url, None) as anonymous:
            error = await rejection(anonymous.enrol(EnrolRequest("r1", join.secret, "not a key")))
        await enrol(bed, "r1", join.secret)
    assert error.code == "public-key-unreadable"


async def test_an_interrupted_enrolment_can_be_repeated_after_the_token_has_expired(tmp_path: Path) -> None:
    """The first enrolment has replaced the old key already, so the agent would have none."""
    key, clock = Ed25519PrivateKey.generate(), VirtualClock(datetime.now(UTC))
    async with running(tmp_path, clock=clock) as bed:
        await bed.apply(runtime("r1"))
        join = await join_token(bed, "r1")
        await enrol(bed, "r1", join.secret, key)
        await clock.advance(7 * 24 * 3600)
        await enrol(bed, "r1", join.secret, key)
        other_key = await rejection(enrol(bed, "r1", join.secret))
    assert other_key.kind is Kind.UNAUTHENTICATED


async def test_an_enrolment_is_small(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        large = await rejection(enrol(bed, "r1", "x" * 100_000))
    assert large.code == "body-large"


async def test_a_new_enrolment_replaces_the_key_and_closes_its_watch(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), profile("orders", component("store", redisHost="a")))
        old = await bed.enrol("r1")
        async with old.client() as client, aclosing(client.watch("r1")) as watch:
            await anext(watch)
            new = await bed.enrol("r1")
            async with asyncio.timeout(10):
                closed = await rejection(anext(watch))
            rejected = await rejection(client.runtime("r1"))
        assert (await new.newest()).sequence == 1
    assert closed.code == "stream-ended"
    assert rejected.kind is Kind.UNAUTHENTICATED


async def test_a_forged_expired_or_premature_runtime_token_is_rejected(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"), runtime("r2"))
        agent, other = await bed.enrol("r1"), await bed.enrol("r2")
        now = datetime.now(UTC)
        forged = credentials.mint("r1", other.key, now)
        stale = credentials.mint("r1", agent.key, now - timedelta(hours=1))
        early = credentials.mint("r1", agent.key, now + timedelta(hours=1))
        for credential in (forged, stale, early):
            async with bed.client(credential) as client:
                error = await rejection(client.runtime("r1"))
            assert error.kind is Kind.UNAUTHENTICATED
        async with agent.client() as client:
            assert (await client.runtime("r1")).name == "r1"


async def test_enrolment_is_rate_limited(tmp_path: Path) -> None:
    async with running(tmp_path, clock=VirtualClock()) as bed:
        await bed.apply(runtime("r1"))
        public = credentials.encode_public_key(Ed25519PrivateKey.generate().public_key())
        async with Client(bed.url, None) as anonymous:
            request = EnrolRequest("r1", "0.wrong", public)
            errors = [await rejection(anonymous.enrol(request)) for _ in range(ENROLMENT_BURST + 1)]
    assert [error.code for error in errors] == ["token-refused"] * ENROLMENT_BURST + ["too-many"]
    assert errors[-1].kind is Kind.UNAVAILABLE


async def test_an_admin_token_is_created_at_start_if_none_is_valid(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        first = bed.admin_token
        async with bed.client() as admin:
            await admin.revoke_token((await admin.tokens())[0].id)
            assert (await rejection(admin.tokens())).kind is Kind.UNAUTHENTICATED
    async with running(tmp_path) as bed:
        assert bed.admin_token != first
        async with bed.client() as admin:
            assert len(await admin.tokens()) == 2


async def test_a_blocked_credential_cannot_open_a_stream(tmp_path: Path) -> None:
    async with running(tmp_path) as bed:
        await bed.apply(runtime("r1"))
        agent = await bed.enrol("r1")
        bed.services.hub.block(credentials.key_id(agent.key.public_key()))
        async with agent.client() as client, aclosing(client.watch("r1")) as watch:
            error = await rejection(anext(watch))
        await until(lambda: _is_not_watching(bed))
    assert error.kind is Kind.UNAUTHENTICATED


async def _is_not_watching(bed: ServerBed) -> bool:
    return not bed.services.hub.presence("r1").watching
