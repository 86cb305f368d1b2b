"""The agent's identity, and which deliveries it accepts."""

import hashlib
import itertools
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.enrolment import check_token, credential, load_or_create_key, verify_delivery, verify_stored
from governor.agent.inbox import Inbox
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.records import Membership
from governor.client import WatchSession
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.wire.credentials import JoinToken, encode_public_key, key_id
from governor.wire.deliveries import SignedDelivery, sign_delivery
from governor.wire.rest import Enrolment

SERVER = Ed25519PrivateKey.generate()
P256 = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
TOKEN_ID = hashlib.sha256(b"one.secret").hexdigest()[:16]


def membership(runtime: str = "r1") -> Membership:
    public = SERVER.public_key()
    return Membership("http://127.0.0.1:1", "", Enrolment(runtime, key_id(public), encode_public_key(public)))


def signed(sequence: int = 1, attempt: int = 1, runtime: str = "r1", key: Ed25519PrivateKey = SERVER) -> SignedDelivery:
    delivery = Delivery(runtime, sequence, attempt, 1, "sha256:0", (), (), ApplyPolicy())
    return sign_delivery(delivery, key)


def in_files(directory: Path) -> AgentState:
    return AgentState(FileBlobs(directory))


def inbox(tmp_path: Path, announced: list[int]) -> Inbox:
    return Inbox(
        in_files(tmp_path), VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), lambda: announced.append(1), lambda _: None
    )


async def test_a_key_is_created_once_with_mode_0600(tmp_path: Path) -> None:
    created = await load_or_create_key(in_files(tmp_path), "identity.key")
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600
    again = await load_or_create_key(in_files(tmp_path), "identity.key")
    assert again.private_bytes_raw() == created.private_bytes_raw()


async def test_a_key_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    await load_or_create_key(in_files(tmp_path), "identity.key")
    (tmp_path / "identity.key").chmod(0o640)
    with pytest.raises(GovernorError, match="chmod 600"):
        await load_or_create_key(in_files(tmp_path), "identity.key")


@pytest.mark.parametrize(("pem", "code"), [(b"", "key-unreadable"), (b"-----", "key-unreadable"), (P256, "key-unfit")])
async def test_an_unusable_key_is_rejected_and_kept(tmp_path: Path, pem: bytes, code: str) -> None:
    await in_files(tmp_path).save_private_key("identity.key", pem)
    with pytest.raises(GovernorError, match=r"identity\.key") as caught:
        await load_or_create_key(in_files(tmp_path), "identity.key")
    assert (caught.value.kind, caught.value.code) == (Kind.PRECONDITION, code)
    assert (tmp_path / "identity.key").read_bytes() == pem


def test_only_an_agent_without_a_membership_needs_a_token() -> None:
    token = JoinToken("http://127.0.0.1:1", "r1", "secret")
    with pytest.raises(GovernorError, match="--join-token-file"):
        check_token(None, None)
    assert check_token(token.encode(), None) == token
    assert check_token(None, membership()) is None


def test_a_token_is_used_unless_the_membership_has_used_or_tried_it() -> None:
    token, other = (JoinToken("http://127.0.0.1:1", "r1", secret) for secret in ("one.secret", "two.secret"))
    assert check_token(token.encode(), membership()) == token
    used = msgspec.structs.replace(membership(), token=TOKEN_ID)
    assert (check_token(token.encode(), used), check_token(other.encode(), used)) == (None, other)
    # A rejected token was recorded after the one that created the current key.
    current = msgspec.structs.replace(membership(), key=f"identity-{TOKEN_ID}.key", token="another")
    assert check_token(token.encode(), current) is None


def test_a_token_of_another_runtime_is_rejected() -> None:
    token = JoinToken("http://127.0.0.1:1", "r2", "secret")
    with pytest.raises(GovernorError, match="belongs to runtime 'r1'"):
        check_token(token.encode(), membership())


def test_a_delivery_signed_by_another_key_is_rejected() -> None:
    assert verify_delivery(signed(), membership()).sequence == 1
    with pytest.raises(GovernorError, match="not signed by the pinned key"):
        verify_delivery(signed(key=Ed25519PrivateKey.generate()), membership())


def test_a_stored_delivery_of_an_earlier_server_is_accepted_and_a_received_one_is_not() -> None:
    earlier = Ed25519PrivateKey.generate()
    moved = msgspec.structs.replace(membership(), former_keys=(encode_public_key(earlier.public_key()),))
    assert (verify_stored(signed(key=earlier), moved).sequence, verify_stored(signed(), moved).sequence) == (1, 1)
    for verify, key in ((verify_delivery, earlier), (verify_stored, Ed25519PrivateKey.generate())):
        with pytest.raises(GovernorError, match="not signed by the pinned key"):
            verify(signed(key=key), moved)


def test_a_delivery_for_another_runtime_is_rejected() -> None:
    with pytest.raises(GovernorError, match="for runtime 'r2'"):
        verify_delivery(signed(runtime="r2"), membership())


async def test_an_accepted_delivery_is_stored_and_announced(tmp_path: Path) -> None:
    announced: list[int] = []
    box = inbox(tmp_path, announced)
    await box.accept(signed(3), membership())
    assert announced == [1]
    assert await in_files(tmp_path).newest() == signed(3)


@pytest.mark.parametrize(("sequence", "attempt"), [(2, 9), (3, 1), (3, 0)])
async def test_a_repeated_or_older_delivery_never_replaces_a_newer_one(
    tmp_path: Path, sequence: int, attempt: int
) -> None:
    announced: list[int] = []
    box = inbox(tmp_path, announced)
    await box.accept(signed(3, 1), membership())
    with pytest.raises(GovernorError, match="not newer"):
        await box.accept(signed(sequence, attempt), membership())
    assert box.newest is not None
    assert (box.newest.sequence, announced) == (3, [1])


async def test_a_new_attempt_of_the_same_delivery_is_accepted(tmp_path: Path) -> None:
    announced: list[int] = []
    box = inbox(tmp_path, announced)
    await box.accept(signed(3, 1), membership())
    await box.accept(signed(3, 2), membership())
    assert announced == [1, 1]


async def test_a_tampered_stored_delivery_is_rejected_at_start(tmp_path: Path) -> None:
    box = inbox(tmp_path, [])
    await box.accept(signed(3), membership())
    good = signed(3)
    await in_files(tmp_path).save_newest(
        SignedDelivery(good.payload.replace('"sequence":3', '"sequence":9'), good.key_id, good.signature)
    )
    with pytest.raises(GovernorError, match="not signed by the pinned key"):
        await inbox(tmp_path, []).restore(membership())


async def test_a_new_watch_forgets_a_delivery_that_could_not_be_stored(tmp_path: Path) -> None:
    """The server sends it again, unless it was restored to a state before it."""
    announced: list[int] = []
    box = inbox(tmp_path, announced)
    delivery = verify_delivery(signed(3), membership())
    box.unstored = delivery, GovernorError(Kind.EXHAUSTED, "disk-full", "full")
    box.watch_opened(WatchSession(1, 2))
    assert announced == [1]
    assert not box.unstored


@pytest.mark.parametrize("code", ["runtime-in-use", "platform-mismatch"])
def test_an_agent_that_the_server_does_not_accept_is_not_ready_until_its_next_watch(tmp_path: Path, code: str) -> None:
    box = inbox(tmp_path, [])
    box.watch_failed(GovernorError(Kind.UNAVAILABLE, "stream-ended", "closed"))
    assert box.identity_conflict() == ""
    box.watch_failed(GovernorError(Kind.PRECONDITION, code, "the reason"))
    assert box.identity_conflict() == "the reason"
    box.watch_opened(WatchSession(1, 2))
    assert box.identity_conflict() == ""


def test_a_token_is_used_again_for_half_of_its_lifetime_also_if_the_clock_is_set_back() -> None:
    clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    token = credential(membership(), Ed25519PrivateKey.generate(), clock)
    seen = [token()]
    for seconds in (149, 1, 10, -20):
        clock.jump(seconds)
        seen.append(token())
    assert [one == other for one, other in itertools.pairwise(seen)] == [True, False, True, False]


def test_a_reconnect_is_delayed_by_a_part_of_the_spread_that_the_server_wants_once(tmp_path: Path) -> None:
    box = inbox(tmp_path, [])
    delays = []
    for _ in range(100):
        box.spread_changed(5.0)
        delays.append(box.next_spread_s())
    assert 0 <= min(delays) < 2 < 3 < max(delays) <= 5
    assert box.next_spread_s() == 0
