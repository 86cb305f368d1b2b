"""Statements on tokens and on the keys of runtimes and the server."""

from collections.abc import Iterable
from datetime import datetime

import msgspec
import sqlalchemy as sa

from governor.domain.roles import Role
from governor.server.store.schema import revoked_keys, runtime_keys, server_keys, tokens
from governor.server.store.sqlite import batches


class Token(msgspec.Struct, frozen=True):
    """A token with the hash of its secret: for a role, or a one-time join token for a runtime."""

    id: str
    name: str
    role: Role | None
    runtime: str | None
    secret_hash: str
    created: datetime
    expires: datetime | None
    used: datetime | None = None
    revoked: datetime | None = None


class RuntimeKey(msgspec.Struct, frozen=True):
    """The public key with which a runtime's agent enrolled; it is the runtime's identity."""

    runtime: str
    key_id: str
    public_key: str
    enrolled: datetime


def insert_token(connection: sa.Connection, token: Token) -> None:
    """Store a new token."""
    connection.execute(tokens.insert(), [msgspec.structs.asdict(token)])


def find_token(connection: sa.Connection, token_id: str) -> Token | None:
    """Return a token by its id, or None."""
    row = connection.execute(sa.select(tokens).where(tokens.c.id == token_id)).one_or_none()
    return None if row is None else _token(row)


def all_tokens(connection: sa.Connection) -> list[Token]:
    """Return all tokens, oldest first."""
    return [_token(row) for row in connection.execute(sa.select(tokens).order_by(tokens.c.created, tokens.c.id))]


def mark_revoked(connection: sa.Connection, token_id: str, time: datetime) -> None:
    """Mark a token as revoked, unless it already is."""
    connection.execute(tokens.update().where(tokens.c.id == token_id, tokens.c.revoked.is_(None)).values(revoked=time))


def mark_used(connection: sa.Connection, token_id: str, time: datetime) -> None:
    """Mark a join token as used."""
    connection.execute(tokens.update().where(tokens.c.id == token_id).values(used=time))


def revoke_join_tokens(connection: sa.Connection, runtime: str, time: datetime) -> None:
    """Revoke the unused join tokens of a runtime."""
    unused = tokens.c.used.is_(None) & tokens.c.revoked.is_(None)
    connection.execute(tokens.update().where(tokens.c.runtime == runtime, unused).values(revoked=time))


def all_runtime_keys(connection: sa.Connection) -> list[RuntimeKey]:
    """Return the keys of all enrolled runtimes."""
    return [RuntimeKey(*row) for row in connection.execute(sa.select(runtime_keys))]


def find_runtime_key(connection: sa.Connection, runtime: str) -> RuntimeKey | None:
    """Return the key of a runtime, or None if it is not enrolled."""
    row = connection.execute(sa.select(runtime_keys).where(runtime_keys.c.runtime == runtime)).one_or_none()
    return None if row is None else RuntimeKey(*row)


def enrolled_runtimes(connection: sa.Connection, runtimes: Iterable[str]) -> frozenset[str]:
    """Return which of some runtimes are enrolled."""
    found: set[str] = set()
    for names in batches(runtimes):
        found.update(connection.scalars(sa.select(runtime_keys.c.runtime).where(runtime_keys.c.runtime.in_(names))))
    return frozenset(found)


def revoke_runtime_key(connection: sa.Connection, key: RuntimeKey, time: datetime) -> None:
    """Delete a runtime's key and record it as revoked."""
    delete_runtime_key(connection, key.runtime)
    connection.execute(revoked_keys.insert(), [{"key_id": key.key_id, "runtime": key.runtime, "revoked": time}])


def is_revoked(connection: sa.Connection, key_id: str) -> bool:
    """Return whether a key was revoked."""
    return connection.scalar(sa.select(revoked_keys.c.key_id).where(revoked_keys.c.key_id == key_id)) is not None


def revocations(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, datetime]:
    """Return the time of the last revoked key of each of some runtimes that had one revoked."""
    found: dict[str, datetime] = {}
    for names in batches(runtimes):
        last = sa.func.max(revoked_keys.c.revoked).label("revoked")
        statement = sa.select(revoked_keys.c.runtime, last).where(revoked_keys.c.runtime.in_(names))
        rows = connection.execute(statement.group_by(revoked_keys.c.runtime))
        found |= {row.runtime: row.revoked for row in rows}
    return found


def put_runtime_key(connection: sa.Connection, key: RuntimeKey) -> None:
    """Store a runtime's key in place of its previous one."""
    delete_runtime_key(connection, key.runtime)
    connection.execute(runtime_keys.insert(), [msgspec.structs.asdict(key)])


def delete_runtime_key(connection: sa.Connection, runtime: str) -> None:
    """Delete a runtime's key; its agent is no longer authenticated."""
    connection.execute(runtime_keys.delete().where(runtime_keys.c.runtime == runtime))


def server_key_id(connection: sa.Connection, purpose: str) -> str | None:
    """Return the id of the server's key for a purpose, or None."""
    return connection.scalar(sa.select(server_keys.c.key_id).where(server_keys.c.purpose == purpose))


def insert_server_key(connection: sa.Connection, purpose: str, key_id: str, time: datetime) -> None:
    """Record the id of the server's key for a purpose."""
    connection.execute(server_keys.insert(), [{"purpose": purpose, "key_id": key_id, "created": time}])


def _token(row: sa.Row[tuple[object, ...]]) -> Token:
    return msgspec.convert(dict(zip(Token.__struct_fields__, row, strict=True)), Token)
