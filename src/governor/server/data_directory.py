"""The server's data directory: who may use it, and the files in it that people read. Blocking; used at the start."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from governor.domain.roles import Role
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.files import exclusive_lock, remove_durable, write_atomic
from governor.process.telemetry import logging
from governor.server.identity.principals import is_active_admin, new_token
from governor.server.store.identities import all_tokens, insert_token
from governor.wire.rest import TokenRequest

DATABASE: Final = "governor.db"
ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 - the name of a file
AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "certificate.pem"
URL: Final = "server.url"
_LOCK: Final = "server.lock"

_log = logging.get_logger(__name__)


@contextmanager
def locked(path: Path) -> Iterator[Path]:
    """The directory, made if needed, for one server alone: a second writer would break what was promised."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"the data directory {path} cannot be used: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "data-dir", message) from error
    message = f"another server uses the data directory {path}; stop it or choose another directory"
    with exclusive_lock(path / _LOCK, GovernorError(Kind.CONFLICT, "data-dir-in-use", message)):
        remove_durable(path / URL)
        yield path


def ensure_admin(connection: sa.Connection, path: Path, clock: Clock) -> None:
    """Make an administrator's token when none works any more; runs in a transaction.

    The file comes first: a token that nobody can read would lock everybody out, one that is not stored yet is harmless.
    """
    if any(is_active_admin(token, clock.now()) for token in all_tokens(connection)):
        return
    token, secret = new_token(TokenRequest(name="admin", role=Role.ADMIN), clock.now())
    write_atomic(path / ADMIN_TOKEN, secret.reveal().encode() + b"\n", 0o600)
    insert_token(connection, token)
    _log.info("administrator's token written", file=str(path / ADMIN_TOKEN))


def write_url(path: Path, url: str) -> None:
    """Say where the server listens, for those who started it on any free port."""
    try:
        write_atomic(path / URL, url.encode() + b"\n", 0o644)
    except GovernorError as error:
        if error.kind is not Kind.EXHAUSTED:
            raise
        # With a full disk a server that answers is worth more than this file.
        _log.warning("cannot write the server's address", error=str(error))
