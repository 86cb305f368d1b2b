"""Talking to the server that the global options name, as the person whose token they name."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from governor.cli.options import DEFAULT_SERVER, given
from governor.errors import GovernorError, Kind
from governor.values.secret import Secret

if TYPE_CHECKING:
    from governor.client import Client

T = TypeVar("T")


def ask(question: "Callable[[Client], Awaitable[T]]") -> T:
    """Open a client as the options of the current command say, and run one exchange with the server."""
    # aiohttp takes longer to import than everything else together; only a command that talks pays for it.
    from governor.client import Client  # noqa: PLC0415

    async def exchange() -> T:
        async with Client(given("server") or DEFAULT_SERVER, _credential(), ca_file=given("ca_file")) as client:
            return await question(client)

    return asyncio.run(exchange())


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


def _credential() -> Callable[[], Secret] | None:
    token = _token()
    return None if token is None else lambda: token


def _token() -> Secret | None:
    named: Path | None = given("token_file")
    if named is not None:
        return read_token(named)
    # Only of use to the person who runs a server here with its defaults; everybody else names a file.
    from governor.server.settings import Settings  # noqa: PLC0415

    default = Settings().data_dir / "admin.token"
    return read_token(default) if os.access(default, os.R_OK) else None


def _no_token(message: str) -> GovernorError:
    return GovernorError(Kind.UNAUTHENTICATED, "token-file", message)
