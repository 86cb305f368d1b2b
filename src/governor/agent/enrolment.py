"""The agent's identity: its private key, joining a server, and verifying signed deliveries.

The key is stored with the agent's other state and never sent.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.state.agent_state import AgentState
from governor.agent.state.records import FIRST_KEY, Membership
from governor.client import Client
from governor.domain.bundles import Delivery
from governor.domain.documents import Platform
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.values.secret import Secret
from governor.wire.credentials import (
    LIFETIME_S,
    JoinToken,
    encode_public_key,
    key_id,
    mint,
    read_join_token,
    read_public_key,
)
from governor.wire.deliveries import SignedDelivery, open_delivery
from governor.wire.rest import Enrolment, EnrolRequest

_REUSED: Final = timedelta(seconds=LIFETIME_S / 2)

_log = logging.get_logger(__name__)


async def load_or_create_key(state: AgentState, name: str) -> Ed25519PrivateKey:
    """Return the agent's private key of this name, creating it on the first start."""
    pem = await state.private_key(name)
    return await _create_key(state, name) if pem is None else _read_key(pem, state.location(name))


def _read_key(pem: bytes, location: str) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except ValueError as error:
        message = f"{location} is not a readable private key; restore it, or remove it and join again"
        raise GovernorError(Kind.PRECONDITION, "key-unreadable", message) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise GovernorError(Kind.PRECONDITION, "key-unfit", f"{location} must be an Ed25519 key; restore it")
    return key


async def _create_key(state: AgentState, name: str) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    await state.save_private_key(name, pem)
    return key


def check_token(token: Secret | None, membership: Membership | None) -> JoinToken | None:
    """Return the join token to try, or None if it was used or rejected before. Raise if it is for another runtime."""
    if membership is None and token is None:
        message = (
            "this agent has not joined a server yet; create a join token with `governor token join RUNTIME` and pass "
            "its file with --join-token-file"
        )
        raise GovernorError(Kind.PRECONDITION, "not-joined", message)
    given = read_join_token(token) if token else None
    if membership is None or given is None:
        return given
    if given.runtime != membership.enrolment.runtime:
        message = (
            f"the state directory belongs to runtime {membership.enrolment.runtime!r}, the join token to "
            f"{given.runtime!r}: use a separate state directory for each runtime"
        )
        raise GovernorError(Kind.PRECONDITION, "other-runtime", message)
    is_known = _token_id(given) == membership.token or _key_name(given) == membership.key
    return None if is_known else given


async def join(token: JoinToken, old: Membership | None, state: AgentState, platform: Platform) -> Membership:
    """Enrol with the one-time secret and store the membership, in place of the old one if there is one.

    The old key may be revoked, so another one is generated. It is named after the token: an agent that is killed
    before the membership is stored enrols the same key again, which the server accepts.
    """
    name = _key_name(token) if old else FIRST_KEY
    key = await load_or_create_key(state, name)
    request = EnrolRequest(token.runtime, token.secret, encode_public_key(key.public_key()), platform)
    async with Client(token.server, None, ca_fingerprint=token.ca) as client:
        enrolment = await client.enrol(request)
    former_keys = _former_keys(old, enrolment) if old else ()
    membership = Membership(token.server, token.ca, enrolment, name, _token_id(token), former_keys)
    await state.save_membership(membership)
    if old is not None:
        await _remove_key(state, old.key)
    return membership


async def _remove_key(state: AgentState, name: str) -> None:
    """Remove a key that is no longer used; if that fails, the membership is valid all the same."""
    try:
        await state.remove_private_key(name)
    except GovernorError as error:
        _log.warning("cannot remove an unused key", file=name, error=str(error))


async def discard(token: JoinToken, membership: Membership, state: AgentState) -> None:
    """Record that the server rejected a join token, so that the next start does not try it again."""
    rejected = msgspec.structs.replace(membership, token=_token_id(token))
    await state.save_membership(rejected)
    await state.remove_private_key(_key_name(token))


def _token_id(token: JoinToken) -> str:
    return hashlib.sha256(token.secret.encode()).hexdigest()[:16]


def _key_name(token: JoinToken) -> str:
    return f"identity-{_token_id(token)}.key"


def _former_keys(old: Membership, enrolment: Enrolment) -> tuple[str, ...]:
    known = dict.fromkeys((old.enrolment.delivery_key, *old.former_keys))
    return tuple(each for each in known if each != enrolment.delivery_key)


def credential(membership: Membership, key: Ed25519PrivateKey, clock: Clock) -> Callable[[], Secret]:
    """Return a function that returns a short-lived token: the last one for half of its lifetime, then a new one.

    The server verifies a token that it knows without any cryptography.
    """
    minted: list[tuple[datetime, Secret]] = []

    def token() -> Secret:
        now = clock.now()
        if not minted or not timedelta(0) <= now - minted[0][0] < _REUSED:
            minted[:] = [(now, mint(membership.enrolment.runtime, key, now))]
        return minted[0][1]

    return token


def verify_delivery(signed: SignedDelivery, membership: Membership) -> Delivery:
    """Return a received delivery if the pinned key signed it for this runtime; raise otherwise."""
    return _verify(signed, membership.enrolment.delivery_key, membership)


def verify_stored(signed: SignedDelivery, membership: Membership) -> Delivery:
    """Return a stored delivery if the pinned key, or that of an earlier server, signed it; raise otherwise."""
    pinned = membership.enrolment.delivery_key
    trusted = {key_id(read_public_key(each)): each for each in (*membership.former_keys, pinned)}
    return _verify(signed, trusted.get(signed.key_id, pinned), membership)


def _verify(signed: SignedDelivery, delivery_key: str, membership: Membership) -> Delivery:
    delivery = open_delivery(signed, read_public_key(delivery_key))
    if delivery.runtime != membership.enrolment.runtime:
        message = f"a delivery for runtime {delivery.runtime!r} was sent to runtime {membership.enrolment.runtime!r}"
        raise GovernorError(Kind.DENIED, "delivery-misdirected", message)
    return delivery
