"""Calls to the server with the URL, token and certificate authority that the global options select."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from governor.cli.options import DEFAULT_SERVER, global_option
from governor.errors import GovernorError, Kind
from governor.process.tls import is_loopback
from governor.values.secret import Secret

if TYPE_CHECKING:
    from governor.client import Client

T = TypeVar("T")


def call_server(function: "Callable[[Client], Awaitable[T]]") -> T:
    """Run one function with a client of the selected server and return its result."""
    # aiohttp takes longer to import than everything else together; only commands that call the server import it.
    from governor.client import Client  # noqa: PLC0415

    server = server_url()

    async def call() -> T:
        async with Client(server, _credential(server), ca_file=global_option("ca_file")) as client:
            return await function(client)

    return asyncio.run(call())


def server_url() -> str:
    """Return the URL of the selected server."""
    return str(global_option("server") or DEFAULT_SERVER)


def is_local(server: str) -> bool:
    """Whether a URL can only address a server on this machine."""
    try:
        return is_loopback(urlsplit(server).hostname or "")
    except ValueError:  # not a URL at all; the client's error explains it better
        return False


def read_token(path: Path) -> Secret:
    """Read the token in a file; the error names the file and never repeats its contents."""
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise _token_file_error(f"cannot read the token file {path}: {reason}") from error
    if not text or not text.isascii() or not text.isprintable():
        raise _token_file_error(f"the token file {path} does not contain a token")
    return Secret(text)


def _token_file_error(message: str) -> GovernorError:
    return GovernorError(Kind.UNAUTHENTICATED, "token-file", message)


def _credential(server: str) -> Callable[[], Secret] | None:
    file: Path | None = global_option("token_file") or _admin_token_file(server)
    if file is None:
        return None
    token = read_token(file)
    return lambda: token


def _admin_token_file(server: str) -> Path | None:
    """Return the admin token file of a local server in its default directory; it is never sent to another machine."""
    from governor.server.settings import Settings  # noqa: PLC0415 - most users name a token file

    file = Settings().data_dir / "admin.token"
    return file if is_local(server) and os.access(file, os.R_OK) else None
