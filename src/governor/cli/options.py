"""The global options, accepted before and after a command's name. Imports next to nothing: the root's help needs it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER: Final = "http://127.0.0.1:8420"
_META: Final = f"{__name__}."


def connection_options(*, hidden: bool = True) -> Callable[[F], F]:
    """The global options. On the root they are shown and read the environment; on a command they only override."""

    def decorate(function: F) -> F:
        for option in (_option("ca_file", hidden), _option("token_file", hidden), _option("server", hidden)):
            function = option(function)
        return function

    return decorate


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "server": {
        "metavar": "URL",
        "envvar": "GOVERNOR_SERVER",
        "help": f"The server's address.  [env: GOVERNOR_SERVER; default: {DEFAULT_SERVER}]",
    },
    "token_file": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "envvar": "GOVERNOR_TOKEN_FILE",
        "help": "A file that holds your token.  [env: GOVERNOR_TOKEN_FILE; default: a local server's admin token]",
    },
    "ca_file": {
        "type": click.Path(path_type=Path, dir_okay=False),
        "envvar": "GOVERNOR_CA_FILE",
        "help": "Trust only the authorities in this PEM file.  [env: GOVERNOR_CA_FILE; default: the system's]",
    },
}


def _option(name: str, hidden: bool) -> Callable[[F], F]:
    settings = dict(_OPTIONS[name])
    if hidden:
        # The root has read the environment already; a flag after the command's name must still win over it.
        settings |= {"envvar": None, "hidden": True}
    return click.option(f"--{name.replace('_', '-')}", expose_value=False, callback=_remember, **settings)


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.meta[f"{_META}{parameter.name}"] = value


def given(name: str) -> Any:
    """The value of a global option for the current command, or None."""
    return click.get_current_context().meta.get(f"{_META}{name}")
