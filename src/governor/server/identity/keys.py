"""The server's own keys: files beside the database or, for sealing, a setting; never stored in the database.

The database stores the ids of the keys. A missing or different key is rejected at start-up, because it could not open
sealed values and agents would reject its signatures. Blocking; used once at start-up.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.errors import GovernorError, Kind
from governor.process.files import write_atomic
from governor.server.store.identities import insert_server_key, server_key_id
from governor.server.store.sealer import KEY_BYTES, Sealer
from governor.values.secret import Secret
from governor.wire.credentials import key_id

_MODE: Final = 0o600


class ServerKeys(NamedTuple):
    """The keys for sealing values and for signing deliveries."""

    sealer: Sealer
    delivery_key: Ed25519PrivateKey


class _LocatedKey(NamedTuple):
    """A key and its location, for error messages."""

    key: bytes
    location: str


def open_keys(
    connection: sa.Connection, data_dir: Path, now: datetime, sealing_key: Secret | None = None
) -> ServerKeys:
    """Read the keys; generate them for a new database. Runs in a transaction."""
    sealing = _from_setting(sealing_key) if sealing_key else _from_file(connection, "sealing", data_dir)
    sealer = Sealer(sealing.key)
    _check_or_record(connection, "sealing", sealer.key_id, sealing.location, now)
    delivery = _from_file(connection, "delivery", data_dir)
    private = Ed25519PrivateKey.from_private_bytes(delivery.key)
    _check_or_record(connection, "delivery", key_id(private.public_key()), delivery.location, now)
    return ServerKeys(sealer, private)


def _from_setting(secret: Secret) -> _LocatedKey:
    location = "the setting sealing-key"
    return _LocatedKey(_parse(secret.reveal(), location), location)


def _from_file(connection: sa.Connection, purpose: str, data_dir: Path) -> _LocatedKey:
    path = data_dir / f"{purpose}.key"
    is_expected = path.exists() or server_key_id(connection, purpose) is not None
    return _LocatedKey(_read(path) if is_expected else _generate(path), str(path))


def _check_or_record(connection: sa.Connection, purpose: str, found: str, location: str, now: datetime) -> None:
    """Record the id of a key at its first use; afterwards raise if it differs."""
    known = server_key_id(connection, purpose)
    if known is None:
        insert_server_key(connection, purpose, found, now)
    elif known != found:
        message = f"{location} contains key {found}, but the database was created with key {known}; provide that key"
        raise GovernorError(Kind.PRECONDITION, "key-exchanged", message)


def _generate(path: Path) -> bytes:
    key = os.urandom(KEY_BYTES)
    write_atomic(path, key.hex().encode() + b"\n", _MODE)
    return key


def _read(path: Path) -> bytes:
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise _unreadable(f"{path} cannot be read ({type(error).__name__})") from error
    if mode & 0o077:
        raise GovernorError(Kind.PRECONDITION, "key-exposed", f"{path} can be read by others; run chmod 600 on it")
    return _parse(text, str(path))


def _parse(text: str, location: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise _unreadable(f"{location} does not contain a key of {2 * KEY_BYTES} hexadecimal digits")
    return key


def _unreadable(reason: str) -> GovernorError:
    return GovernorError(
        Kind.PRECONDITION, "key-unreadable", f"{reason}; provide the original key, for example from a backup"
    )
