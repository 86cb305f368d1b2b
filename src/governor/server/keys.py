"""The server's own keys: files beside the database, never in it. Blocking; used once at the start.

The database remembers which keys it was used with. A lost or exchanged key file is refused at the start, because sealed
values could not be opened with it and agents would refuse what it signs.
"""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.errors import GovernorError, Kind
from governor.process.files import write_atomic
from governor.server.sealing import KEY_BYTES, Sealer
from governor.server.store.identities import insert_server_key, server_key_id
from governor.wire.identity import key_id

_MODE: Final = 0o600


class ServerKeys(NamedTuple):
    """What the server seals with and what it signs deliveries with."""

    sealer: Sealer
    delivery_key: Ed25519PrivateKey


def open_keys(connection: sa.Connection, data_dir: Path, now: datetime) -> ServerKeys:
    """Read the keys, or make them with a new database; runs in a transaction."""
    sealer = Sealer(_key(connection, "sealing", data_dir, now, lambda key: Sealer(key).key_id))
    signing = _key(connection, "delivery", data_dir, now, lambda key: key_id(_private(key).public_key()))
    return ServerKeys(sealer, _private(signing))


def _private(key: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(key)


def _key(
    connection: sa.Connection, purpose: str, data_dir: Path, now: datetime, id_of: Callable[[bytes], str]
) -> bytes:
    path = data_dir / f"{purpose}.key"
    known = server_key_id(connection, purpose)
    key = _read(path) if known is not None or path.exists() else _make(path)
    found = id_of(key)
    if known is None:
        insert_server_key(connection, purpose, found, now)
    elif known != found:
        message = f"{path} holds key {found}, but this database was used with key {known}; put the right file back"
        raise GovernorError(Kind.PRECONDITION, "key-exchanged", message)
    return key


def _make(path: Path) -> bytes:
    key = os.urandom(KEY_BYTES)
    write_atomic(path, key.hex().encode() + b"\n", _MODE)
    return key


def _read(path: Path) -> bytes:
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
        key = bytes.fromhex(text.strip())
    except (OSError, ValueError) as error:
        message = f"the key file {path} cannot be read ({type(error).__name__}); put it back from a backup"
        raise GovernorError(Kind.PRECONDITION, "key-unreadable", message) from error
    if mode & 0o077:
        raise GovernorError(Kind.PRECONDITION, "key-exposed", f"{path} can be read by others; run chmod 600 on it")
    if len(key) != KEY_BYTES:
        raise GovernorError(Kind.PRECONDITION, "key-unreadable", f"{path} does not hold a key of {KEY_BYTES} bytes")
    return key
