"""Who asks: tokens of people and programs, keys of runtimes, and how each begins and ends.

A person's token is ``rgt1.<id>.<secret>`` and stored as a hash. A runtime's identity is the key with which its agent
enrolled; its tokens are signed by it. What either may do is decided by the API's routes.
"""

import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from typing import Final

import msgspec
import sqlalchemy as sa

from governor.domain.documents import DocumentRef
from governor.domain.roles import Role
from governor.errors import GovernorError, Kind, invalid
from governor.process.clock import Clock
from governor.process.telemetry import logging
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
from governor.wire.rest import EnrolRequest, TokenRequest, TokenView

JOIN_TTL_S: Final = 3600
LONGEST_TTL_S: Final = 10 * 365 * 24 * 3600
_PREFIX: Final = "rgt1."
_NAME_CHARS: Final = 200
_RESERVED: Final = "source:"


_log = logging.get_logger(__name__)


class Principal(msgspec.Struct, frozen=True):
    """Whoever makes a request: a person or program with a role, or a runtime. ``credential`` ends with its streams.

    ``is_legacy`` is whoever may use the old API without any credential.
    """

    name: str
    credential: str
    role: Role | None = None
    runtime: str | None = None
    is_legacy: bool = False


class Identity:
    """Checks credentials and makes, uses and ends them."""

    def __init__(self, store: Store, hub: Hub, clock: Clock) -> None:
        self._store = store
        self._hub = hub
        self._clock = clock

    async def authenticate(self, credential: Secret) -> Principal:
        """Who holds this credential; the error says whether it is wrong, expired or revoked."""
        text = credential.reveal()
        if text.startswith(_PREFIX):
            token_id, _, secret = text.removeprefix(_PREFIX).partition(".")
            token = await self._store.read(lambda connection: find_token(connection, token_id))
            token = check_token(token, secret, self._clock.now())
            return Principal(token.name, token.id, role=token.role)
        return await self._authenticate_runtime(credential)

    async def _authenticate_runtime(self, credential: Secret) -> Principal:
        runtime = credentials.claimed_runtime(credential)
        key = await self._store.read(lambda connection: find_runtime_key(connection, runtime))
        if key is None:
            # Which of both is nobody's business who cannot prove to have held the key.
            raise _refused("the token is not signed by the key of an enrolled runtime, or it was revoked; enrol anew")
        credentials.verify(credential, runtime, credentials.read_public_key(key.public_key), self._clock.now())
        return Principal(f"runtime {runtime}", key.key_id, runtime=runtime)

    async def create(self, request: TokenRequest) -> tuple[Token, Secret]:
        """Make a token; the second part is what its holder must show, and is kept nowhere."""
        token, secret = new_token(request, self._clock.now())
        await self._store.write(lambda connection: _insert(connection, token))
        _log.info("token made", token=token.id, name=token.name, role=token.role, runtime=token.runtime)
        return token, secret

    async def tokens(self) -> list[TokenView]:
        """All tokens without their secrets."""
        return [view(token) for token in await self._store.read(all_tokens)]

    async def revoke(self, token_id: str) -> None:
        """End a token, also on open streams."""
        await self._store.write(lambda connection: _revoke(connection, token_id, self._clock.now()))
        self._hub.end(token_id)
        _log.info("token revoked", token=token_id)

    async def revoke_runtime(self, runtime: str) -> None:
        """End a runtime's key for ever, also on open streams, and the join tokens that were made for it."""
        key = await self._store.write(lambda connection: _revoke_runtime(connection, runtime, self._clock.now()))
        self._hub.end(key.key_id)
        _log.info("runtime revoked", runtime=runtime, key=key.key_id)

    async def enrol(self, request: EnrolRequest) -> None:
        """Make a key a runtime's identity, once per join token; the key before ends."""
        key_id = credentials.key_id(credentials.read_public_key(request.public_key))
        key = RuntimeKey(request.runtime, key_id, request.public_key, self._clock.now())
        replaced = await self._store.write(lambda connection: _enrol(connection, request, key))
        if replaced is not None and replaced.key_id != key_id:
            self._hub.end(replaced.key_id)
        self._hub.begin(key_id)
        _log.info("runtime enrolled", runtime=request.runtime, key=key_id)


def new_token(request: TokenRequest, now: datetime) -> tuple[Token, Secret]:
    """A token that fits to a request, and the text that proves it: ``rgt1.…``, or the secret of a join token."""
    if (request.role is None) == (request.runtime is None):
        raise invalid("token-purpose", "a token is for a role or for a runtime to join: give exactly one of both")
    if len(request.name) > _NAME_CHARS:
        raise invalid("token-name", f"the name of a token has at most {_NAME_CHARS} characters")
    if request.name.startswith(_RESERVED):
        raise invalid("token-name", f"the name of a token does not begin with {_RESERVED!r}: authors are told by it")
    ttl_s = JOIN_TTL_S if request.ttl_seconds is None and request.runtime else request.ttl_seconds
    if ttl_s is not None and not 0 < ttl_s <= LONGEST_TTL_S:
        raise invalid("token-ttl", f"ttlSeconds is from 1 to {LONGEST_TTL_S}")
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
    """Refuse a token that is wrong, used, revoked or expired. Only its holder learns which of the last three."""
    known = token.secret_hash if token else ""
    if not hmac.compare_digest(_hash(secret), known) or token is None:
        raise _refused("the token is wrong: this server did not make it")
    if token.revoked is not None:
        raise _refused(f"the token was revoked at {token.revoked:%Y-%m-%d %H:%M:%S} UTC; ask for a new one")
    if token.used is not None:
        raise _refused(f"the join token was used at {token.used:%Y-%m-%d %H:%M:%S} UTC; it works once, make a new one")
    if token.expires is not None and token.expires <= now:
        raise _refused(f"the token expired at {token.expires:%Y-%m-%d %H:%M:%S} UTC; ask for a new one")
    return token


def is_active_admin(token: Token, now: datetime) -> bool:
    """Whether an administrator can still come in with this token."""
    return token.role is Role.ADMIN and token.revoked is None and (token.expires is None or token.expires > now)


def view(token: Token) -> TokenView:
    """A token for people; a used join token is as good as revoked."""
    ended = token.revoked is not None or token.used is not None
    return TokenView(token.id, token.name, token.role, token.runtime, token.created, token.expires, ended)


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
    """Use up the join token and store the key; returns the key that was replaced.

    Asking again with the same key is answered as before: an agent may be killed before it has kept the first answer.
    """
    token_id, _, secret = request.secret.partition(".")
    found = find_token(connection, token_id)
    present = find_runtime_key(connection, request.runtime)
    if found is not None and found.used is not None and present is not None and present.key_id == key.key_id:
        found = msgspec.structs.replace(found, used=None)
    token = check_token(found, secret, key.enrolled)
    if token.runtime != request.runtime:
        raise _refused("the join token is for another runtime")
    _require_runtime(connection, request.runtime)
    if is_revoked(connection, key.key_id):
        raise _refused("this key was revoked; let the agent make another one in an empty state directory")
    mark_used(connection, token.id, key.enrolled)
    put_runtime_key(connection, key)
    return present


def _require_runtime(connection: sa.Connection, runtime: str) -> None:
    found = document_version(connection, DocumentRef("Runtime", runtime))
    if found is None or found.tree is None:
        message = f"there is no runtime {runtime!r}; put its Runtime document first"
        raise GovernorError(Kind.NOT_FOUND, "runtime-unknown", message)


def _hash(secret: str) -> str:
    # The secrets are random and long, so a slow hash would only slow down the server.
    return hashlib.sha256(secret.encode()).hexdigest()


def _refused(message: str) -> GovernorError:
    return GovernorError(Kind.UNAUTHENTICATED, "token-refused", message)
