"""The global options, accepted before and after a command's name, and the errors that they resolve.

Imports very little, because the help of the root command needs it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from governor.errors import GovernorError, Kind

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER: Final = "http://127.0.0.1:8420"
_META: Final = f"{__name__}."

_STEP_BY_CODE: Final = {
    "tls-invalid": "",
    "tls-untrusted": "pass the CA certificate of the server with --ca-file or GOVERNOR_CA_FILE",
    "unreachable": "to use another server, set --server or GOVERNOR_SERVER",
}
_STEP_BY_KIND: Final = {
    Kind.UNAUTHENTICATED: "pass a file with a valid token with --token-file or GOVERNOR_TOKEN_FILE",
    Kind.DENIED: "use a token with a higher role; an admin creates one with `governor token create`",
}


def connection_options(*, hidden: bool = True) -> Callable[[F], F]:
    """Add the global options. On the root they are listed and read the environment; on a command they only override."""

    def decorate(function: F) -> F:
        for option in (_option("ca_file", hidden), _option("token_file", hidden), _option("server", hidden)):
            function = option(function)
        return function

    return decorate


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "server": {
        "metavar": "URL",
        "envvar": "GOVERNOR_SERVER",
        "help": f"URL of the server.  [env: GOVERNOR_SERVER; default: {DEFAULT_SERVER}]",
    },
    "token_file": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "envvar": "GOVERNOR_TOKEN_FILE",
        "help": "File with your token.  [env: GOVERNOR_TOKEN_FILE; default: the admin token of a local server]",
    },
    "ca_file": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "envvar": "GOVERNOR_CA_FILE",
        "help": "PEM file of the certificate authorities to trust.  [env: GOVERNOR_CA_FILE; default: the system's]",
    },
}


def _option(name: str, hidden: bool) -> Callable[[F], F]:
    settings = dict(_OPTIONS[name])
    if hidden:
        # The root has read the environment already; a flag after the command's name must still override it.
        settings |= {"envvar": None, "hidden": True}
    return click.option(f"--{name.replace('_', '-')}", expose_value=False, callback=_store, **settings)


def _store(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.meta[f"{_META}{parameter.name}"] = value


def global_option(name: str) -> Any:
    """Return the value of a global option for the current command, or None."""
    return click.get_current_context().meta.get(f"{_META}{name}")


def next_step(error: GovernorError) -> str:
    """Return the next step that an error message does not name itself, or ``""``."""
    return _STEP_BY_CODE.get(error.code, _STEP_BY_KIND.get(error.kind, ""))
