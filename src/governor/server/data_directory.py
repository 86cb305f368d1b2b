"""The server's data directory: its lock, file names, and the files written for users. Blocking; used at start-up."""

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
ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 - a file name
AUTHORITY: Final = "authority.pem"
CERTIFICATE: Final = "certificate.pem"
URL: Final = "server.url"
_LOCK: Final = "server.lock"

_log = logging.get_logger(__name__)


@contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Create the directory if needed and hold an exclusive lock on it: a second server would corrupt the database."""
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
    """Create an admin token if no valid one is left; runs in a transaction.

    The file is written first: a stored token without a file would lock everyone out, a file without a stored token is
    harmless.
    """
    if any(is_active_admin(token, clock.now()) for token in all_tokens(connection)):
        return
    token, secret = new_token(TokenRequest(name="admin", role=Role.ADMIN), clock.now())
    write_atomic(path / ADMIN_TOKEN, secret.reveal().encode() + b"\n", 0o600)
    insert_token(connection, token)
    _log.info("admin token written", file=str(path / ADMIN_TOKEN))


def write_url(path: Path, url: str) -> None:
    """Write the URL of the server, for callers that let it choose the port."""
    try:
        write_atomic(path / URL, url.encode() + b"\n", 0o644)
    except GovernorError as error:
        if error.kind is not Kind.EXHAUSTED:
            raise
        # On a full disk the server starts without this file.
        _log.warning("cannot write the server's URL", error=str(error))
