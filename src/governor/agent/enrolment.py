"""The agent's identity: its private key, joining a server, and verifying signed deliveries.

The key is stored in its own file and never sent. Other state is stored by ``storage``.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.storage import Membership, Storage
from governor.client import Client
from governor.domain.bundles import Delivery
from governor.errors import GovernorError, Kind
from governor.process import files
from governor.process.clock import Clock
from governor.values.secret import Secret
from governor.wire.credentials import (
    JoinToken,
    encode_public_key,
    mint,
    read_join_token,
    read_public_key,
)
from governor.wire.deliveries import SignedDelivery, open_delivery
from governor.wire.rest import EnrolRequest


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """Return the agent's private key, creating it on the first start. Blocking."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        return _create_key(path)
    except (OSError, ValueError) as error:
        message = f"{path} is not a readable private key; restore it, or remove it and join again"
        raise GovernorError(Kind.PRECONDITION, "key-unreadable", message) from error
    if not isinstance(key, Ed25519PrivateKey) or path.stat().st_mode & 0o077:
        message = f"{path} must be an Ed25519 key that only its owner can read (chmod 600)"
        raise GovernorError(Kind.PRECONDITION, "key-unfit", message)
    return key


def _create_key(path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    files.write_atomic(path, text)
    return key


def check_token(token: Secret | None, membership: Membership | None) -> JoinToken | None:
    """Return the token to join with, or None if the agent has joined. Raise for another runtime's token."""
    if membership is None and token is None:
        message = "this agent has not joined a server yet; pass a token of `governor token join` by --join-token-file"
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
    return None


async def join(token: JoinToken, key: Ed25519PrivateKey, storage: Storage) -> Membership:
    """Enrol with the one-time secret and store the membership."""
    request = EnrolRequest(token.runtime, token.secret, encode_public_key(key.public_key()))
    async with Client(token.server, None, ca_fingerprint=token.ca) as client:
        enrolment = await client.enrol(request)
    membership = Membership(token.server, token.ca, enrolment)
    await asyncio.to_thread(storage.save_membership, membership)
    return membership


def credential(membership: Membership, key: Ed25519PrivateKey, clock: Clock) -> Callable[[], Secret]:
    """Return a function that mints a short-lived token for each request."""
    return lambda: mint(membership.enrolment.runtime, key, clock.now())


def verify_delivery(signed: SignedDelivery, membership: Membership) -> Delivery:
    """Return the delivery if the pinned key signed it for this runtime; raise otherwise."""
    delivery = open_delivery(signed, read_public_key(membership.enrolment.delivery_key))
    if delivery.runtime != membership.enrolment.runtime:
        message = f"a delivery for runtime {delivery.runtime!r} was sent to runtime {membership.enrolment.runtime!r}"
        raise GovernorError(Kind.DENIED, "delivery-misdirected", message)
    return delivery
