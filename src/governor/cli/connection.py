"""Talking to the server that the global options name, as the person whose token they name."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from governor.cli.options import DEFAULT_SERVER, given
from governor.errors import GovernorError, Kind
from governor.process.tls import is_loopback
from governor.values.secret import Secret

if TYPE_CHECKING:
    from governor.client import Client

T = TypeVar("T")


def ask(question: "Callable[[Client], Awaitable[T]]") -> T:
    """Open a client as the options of the current command say, and run one exchange with the server."""
    # aiohttp takes longer to import than everything else together; only a command that talks pays for it.
    from governor.client import Client  # noqa: PLC0415

    server = server_address()

    async def exchange() -> T:
        async with Client(server, _credential(server), ca_file=given("ca_file")) as client:
            return await question(client)

    return asyncio.run(exchange())


def server_address() -> str:
    """Where the server of the current command is."""
    return str(given("server") or DEFAULT_SERVER)


def read_token(path: Path) -> Secret:
    """The token in a file; an empty or missing one is refused by name."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise _no_token(f"cannot read the token file {path}: {reason}") from error
    if not text or not text.isascii() or not text.isprintable():
        raise _no_token(f"the token file {path} does not hold a token")
    return Secret(text)


def _credential(server: str) -> Callable[[], Secret] | None:
    file: Path | None = given("token_file") or _admin_token_file(server)
    if file is None:
        return None
    token = read_token(file)
    return lambda: token


def _admin_token_file(server: str) -> Path | None:
    """For the person who runs a server here with its defaults; its token must not go to any other machine."""
    from governor.server.settings import Settings  # noqa: PLC0415 - most people name a file

    file = Settings().data_dir / "admin.token"
    return file if is_here(server) and os.access(file, os.R_OK) else None


def is_here(server: str) -> bool:
    """Whether a server can only be on this machine."""
    try:
        return is_loopback(urlsplit(server).hostname or "")
    except ValueError:  # not an address at all, which the client says better
        return False


def _no_token(message: str) -> GovernorError:
    return GovernorError(Kind.UNAUTHENTICATED, "token-file", message)
