"""The server's own keys: files beside the database or, for sealing, given from elsewhere; never in the database.

Blocking; used once at the start.

The database remembers which keys it was used with. A lost or exchanged key file is refused at the start, because sealed
values could not be opened with it and agents would refuse what it signs.
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
    """What the server seals with and what it signs deliveries with."""

    sealer: Sealer
    delivery_key: Ed25519PrivateKey


class _Found(NamedTuple):
    """A key, and where it stands for those who must look."""

    key: bytes
    place: str


def open_keys(
    connection: sa.Connection, data_dir: Path, now: datetime, given_sealing_key: Secret | None = None
) -> ServerKeys:
    """Read the keys, or make them with a new database; runs in a transaction."""
    sealing = _given(given_sealing_key) if given_sealing_key else _kept(connection, "sealing", data_dir)
    sealer = Sealer(sealing.key)
    _recognise(connection, "sealing", sealer.key_id, sealing.place, now)
    delivery = _kept(connection, "delivery", data_dir)
    private = Ed25519PrivateKey.from_private_bytes(delivery.key)
    _recognise(connection, "delivery", key_id(private.public_key()), delivery.place, now)
    return ServerKeys(sealer, private)


def _given(secret: Secret) -> _Found:
    place = "the setting sealing-key"
    return _Found(_parsed(secret.reveal(), place), place)


def _kept(connection: sa.Connection, purpose: str, data_dir: Path) -> _Found:
    path = data_dir / f"{purpose}.key"
    is_expected = path.exists() or server_key_id(connection, purpose) is not None
    return _Found(_read(path) if is_expected else _make(path), str(path))


def _recognise(connection: sa.Connection, purpose: str, found: str, place: str, now: datetime) -> None:
    known = server_key_id(connection, purpose)
    if known is None:
        insert_server_key(connection, purpose, found, now)
    elif known != found:
        message = f"{place} holds key {found}, but this database was used with key {known}; give the right one"
        raise GovernorError(Kind.PRECONDITION, "key-exchanged", message)


def _make(path: Path) -> bytes:
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
    return _parsed(text, str(path))


def _parsed(text: str, place: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise _unreadable(f"{place} does not hold a key of {2 * KEY_BYTES} hexadecimal digits")
    return key


def _unreadable(reason: str) -> GovernorError:
    return GovernorError(Kind.PRECONDITION, "key-unreadable", f"{reason}; give the right one, from a backup")
