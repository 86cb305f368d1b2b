"""Authentication: tokens of users and programs, keys of runtimes, and their creation and revocation.

A user's token is ``rgt1.<id>.<secret>`` and is stored as a hash. A runtime's identity is the key with which its agent
enrolled, which signs its tokens. Authorization is declared by the API's endpoints.
"""

import hashlib
import hmac
import math
import secrets
from datetime import datetime, timedelta
from typing import Final

import msgspec
import sqlalchemy as sa

from governor.domain.documents import DocumentRef, Runtime, read_document
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind, invalid
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.server.identity.known_credentials import KnownCredentials, Principal
from governor.server.store.documents import document_version
from governor.server.store.identities import (
    RuntimeKey,
    Token,
    all_tokens,
    find_runtime_key,
    find_token,
    insert_token,
    is_revoked,
    mark_revoked,
    mark_used,
    put_runtime_key,
    revoke_join_tokens,
    revoke_runtime_key,
)
from governor.server.store.sqlite import Store
from governor.server.watch.hub import Hub
from governor.values.secret import Secret
from governor.wire import credentials
from governor.wire.credentials import Validity
from governor.wire.formats import PLATFORM_MISMATCH
from governor.wire.rest import EnrolRequest, TokenRequest, TokenView

JOIN_TTL_S: Final = 3600
MAX_TTL_S: Final = 10 * 365 * 24 * 3600
_PREFIX: Final = "rgt1."
_MAX_NAME_CHARS: Final = 200
_SOURCE_PREFIX: Final = "source:"

_log = logging.get_logger(__name__)


class Identity:
    """Authenticates callers; creates and revokes their credentials."""

    def __init__(self, store: Store, hub: Hub, clock: Clock, known: KnownCredentials) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock
        self._known = known
        hub.on_block = known.forget

    async def authenticate(self, credential: Secret) -> Principal:
        """Return the holder of a credential; raise if it is wrong, expired or revoked."""
        found = self.known(credential)
        if found is not None:
            return found
        # Revoked while it is verified, a credential must not be remembered.
        revocations = self._hub.revocations
        is_user = credential.reveal().startswith(_PREFIX)
        principal, validity = await (self._user(credential) if is_user else self._runtime(credential))
        if self._hub.revocations == revocations:
            self._known.remember(credential, principal, validity)
        return principal

    def known(self, credential: Secret) -> Principal | None:
        """Return the holder of a credential that was verified before and is valid now."""
        return self._known.find(credential, self._clock.now().timestamp())

    async def _user(self, credential: Secret) -> tuple[Principal, Validity]:
        token_id, _, secret = credential.reveal().removeprefix(_PREFIX).partition(".")
        found = await self._store.read(lambda connection: find_token(connection, token_id))
        token = check_token(found, secret, self._clock.now())
        # It is no longer valid at the time of its expiry.
        last_s = math.inf if token.expires is None else math.nextafter(token.expires.timestamp(), 0)
        return Principal(token.name, token.id, role=token.role), Validity(-math.inf, last_s)

    async def _runtime(self, credential: Secret) -> tuple[Principal, Validity]:
        runtime = credentials.claimed_runtime(credential)
        key = self._known.key_of(runtime)
        if key is None:
            key = await self._store.read(lambda connection: find_runtime_key(connection, runtime))
        if key is None:
            # Do not reveal which: possession of the key is unproven.
            raise _rejected("the token is not signed by the key of an enrolled runtime, or it was revoked; enrol again")
        public = credentials.read_public_key(key.public_key)
        validity = credentials.verify(credential, runtime, public, self._clock.now())
        return Principal(f"runtime {runtime}", key.key_id, runtime=runtime), validity

    async def create(self, request: TokenRequest) -> tuple[Token, Secret]:
        """Create a token; return it with its secret text, which is not stored."""
        token, secret = new_token(request, self._clock.now())
        await self._store.write(lambda connection: _insert(connection, token))
        _log.info("token created", token=token.id, name=token.name, role=token.role, runtime=token.runtime)
        return token, secret

    async def tokens(self) -> list[TokenView]:
        """Return all tokens without their secrets."""
        return [view(token) for token in await self._store.read(all_tokens)]

    async def revoke(self, token_id: str) -> None:
        """Revoke a token and close its streams."""
        await self._store.write(
            lambda connection: _revoke(connection, token_id, self._clock.now()),
            lambda _: self._announce_revoked_token(token_id),
        )

    async def revoke_runtime(self, runtime: str) -> None:
        """Revoke a runtime's key permanently, close its streams, and revoke its unused join tokens."""
        await self._store.write(
            lambda connection: _revoke_runtime(connection, runtime, self._clock.now()), self._announce_revoked_key
        )

    async def enrol(self, request: EnrolRequest) -> None:
        """Make a key the runtime's identity, once per join token; the previous key becomes invalid."""
        key_id = credentials.key_id(credentials.read_public_key(request.public_key))
        key = RuntimeKey(request.runtime, key_id, request.public_key, self._clock.now())
        await self._store.write(
            lambda connection: _enrol(connection, request, key), lambda replaced: self._announce_key(key, replaced)
        )

    def _announce_revoked_token(self, token_id: str) -> None:
        self._hub.block(token_id)
        _log.info("token revoked", token=token_id)

    def _announce_revoked_key(self, key: RuntimeKey) -> None:
        self._hub.block(key.key_id)
        self._hub.followers.changed([key.runtime])
        _log.info("runtime revoked", runtime=key.runtime, key=key.key_id)

    def _announce_key(self, key: RuntimeKey, replaced: RuntimeKey | None) -> None:
        if replaced is not None and replaced.key_id != key.key_id:
            self._hub.block(replaced.key_id)
        self._hub.unblock(key.key_id)
        self._known.put_keys([key])
        _log.info("runtime enrolled", runtime=key.runtime, key=key.key_id)


def new_token(request: TokenRequest, now: datetime) -> tuple[Token, Secret]:
    """Return a new token and its secret text: ``rgt1.…``, or ``<id>.<secret>`` for a join token."""
    if (request.role is None) == (request.runtime is None):
        raise invalid("token-purpose", "a token is for a role or for a runtime to join: set exactly one of the two")
    if len(request.name) > _MAX_NAME_CHARS:
        raise invalid("token-name", f"the name of a token has at most {_MAX_NAME_CHARS} characters")
    if request.name.startswith(_SOURCE_PREFIX):
        raise invalid("token-name", f"the prefix {_SOURCE_PREFIX!r} is reserved for sources; choose another name")
    ttl_s = JOIN_TTL_S if request.ttl_seconds is None and request.runtime else request.ttl_seconds
    if ttl_s is not None and not 0 < ttl_s <= MAX_TTL_S:
        raise invalid("token-ttl", f"the lifetime (ttlSeconds) must be from 1 to {MAX_TTL_S} s, ten years")
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    token = Token(
        id=token_id,
        name=request.name or (f"join {request.runtime}" if request.runtime else token_id),
        role=request.role,
        runtime=request.runtime,
        secret_hash=_hash(secret),
        created=now,
        expires=None if ttl_s is None else now + timedelta(seconds=ttl_s),
    )
    return token, Secret(f"{token_id}.{secret}" if request.runtime else f"{_PREFIX}{token_id}.{secret}")


def check_token(token: Token | None, secret: str, now: datetime) -> Token:
    """Return the token, or raise if it is wrong, used, revoked or expired; only its holder learns which of these."""
    expected = token.secret_hash if token else ""
    if not hmac.compare_digest(_hash(secret), expected) or token is None:
        raise _rejected("the token is invalid: it was not created by this server")
    if token.revoked is not None:
        raise _rejected(f"the token was revoked at {token.revoked:%Y-%m-%d %H:%M:%S} UTC; request a new one")
    if token.used is not None:
        raise _rejected(
            f"the join token was used at {token.used:%Y-%m-%d %H:%M:%S} UTC; it works once, create a new one"
        )
    if token.expires is not None and token.expires <= now:
        raise _rejected(f"the token expired at {token.expires:%Y-%m-%d %H:%M:%S} UTC; request a new one")
    return token


def is_active_admin(token: Token, now: datetime) -> bool:
    """Return whether the token is valid for an administrator."""
    return token.role is Role.ADMIN and token.revoked is None and (token.expires is None or token.expires > now)


def view(token: Token) -> TokenView:
    """Return a token as the API shows it; a used join token counts as revoked."""
    used = token.used is not None
    revoked = used or token.revoked is not None
    return TokenView(token.id, token.name, token.role, token.runtime, token.created, token.expires, revoked, used)


def _insert(connection: sa.Connection, token: Token) -> None:
    if token.runtime is not None:
        _require_runtime(connection, token.runtime)
    insert_token(connection, token)


def _revoke(connection: sa.Connection, token_id: str, now: datetime) -> None:
    if find_token(connection, token_id) is None:
        raise GovernorError(Kind.NOT_FOUND, "token-unknown", "there is no token with this id")
    mark_revoked(connection, token_id, now)


def _revoke_runtime(connection: sa.Connection, runtime: str, now: datetime) -> RuntimeKey:
    _require_runtime(connection, runtime)
    key = find_runtime_key(connection, runtime)
    if key is None:
        raise GovernorError(Kind.PRECONDITION, "not-enrolled", f"runtime {runtime!r} has no enrolled key to revoke")
    revoke_runtime_key(connection, key, now)
    revoke_join_tokens(connection, runtime, now)
    return key


def _enrol(connection: sa.Connection, request: EnrolRequest, key: RuntimeKey) -> RuntimeKey | None:
    """Consume the join token and store the key; return the key that it replaces.

    Idempotent for the same key, because an agent may be killed before it has stored the first response.
    """
    token_id, _, secret = request.secret.partition(".")
    found = find_token(connection, token_id)
    current = find_runtime_key(connection, request.runtime)
    if found is not None and found.used is not None and current is not None and current.key_id == key.key_id:
        found = msgspec.structs.replace(found, used=None, expires=None)
    token = check_token(found, secret, key.enrolled)
    if token.runtime != request.runtime:
        raise _rejected("the join token is for another runtime")
    check_platform(_require_runtime(connection, request.runtime), request.platform)
    if is_revoked(connection, key.key_id):
        raise _rejected(
            "this key was revoked; remove it from the agent's state directory, so that the agent generates another"
        )
    mark_used(connection, token.id, key.enrolled)
    put_runtime_key(connection, key)
    return current


def _require_runtime(connection: sa.Connection, runtime: str) -> Runtime:
    found = document_version(connection, DocumentRef("Runtime", runtime))
    if found is None or found.tree is None:
        message = f"there is no runtime {runtime!r}; apply its Runtime document first"
        raise GovernorError(Kind.NOT_FOUND, "runtime-unknown", message)
    document = read_document(found.tree)
    assert isinstance(document, Runtime)  # noqa: S101 - selected by this kind
    return document


def check_platform(runtime: Runtime, platform: str) -> None:
    """Raise if an agent of this platform cannot serve the runtime."""
    expected = runtime.spec.platform
    if platform != expected:
        message = (
            f"the platform of runtime {runtime.metadata.name!r} is '{expected}', that of this agent is '{platform}': "
            f"run an agent with `--platform {expected}`, or correct spec.platform of the runtime"
        )
        raise GovernorError(Kind.PRECONDITION, PLATFORM_MISMATCH, message)


def _hash(secret: str) -> str:
    # A fast hash is enough: the secrets are long and random.
    return hashlib.sha256(secret.encode()).hexdigest()


def _rejected(message: str) -> GovernorError:
    return GovernorError(Kind.UNAUTHENTICATED, credentials.TOKEN_REJECTED, message)
