"""Click options: the flags of a settings struct, and ``--output``. Only command modules import this."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from governor.process.address import Address
from governor.process.settings import Setting, load, prefix, settings_of
from governor.values.printing import FORMATS
from governor.values.secret import Secret

F = TypeVar("F", bound=Callable[..., Any])

_CONFIG = "config_file"

output_option: Final = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="Output format."
)


def options(cls: type[msgspec.Struct], program: str) -> Callable[[F], F]:
    """Add the flags of ``cls`` and ``--config`` to a command, which is called with the loaded ``settings``."""
    settings = [each for each in settings_of(cls, program) if each.simple]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_settings(**arguments: Any) -> Any:
            config = arguments.pop(_CONFIG)
            flags = {each.key: arguments.pop(_parameter(each)) for each in settings}
            return command(settings=load(cls, program, flags=flags, config=config), **arguments)

        wrapped: Any = with_settings
        for setting in reversed(settings):
            wrapped = _option(setting)(wrapped)
        text = f"YAML file with these settings under the same names.  [env: {_config_variable(program)}]"
        path = click.Path(path_type=Path, dir_okay=False)
        return click.option("--config", _CONFIG, type=path, metavar="FILE", help=text)(wrapped)  # type: ignore[no-any-return]

    return decorate


def _config_variable(program: str) -> str:
    return f"{prefix(program)}CONFIG"


def _parameter(setting: Setting) -> str:
    return setting.key.replace("-", "_")


def _option(setting: Setting) -> Callable[[Any], Any]:
    # No click default, to tell a missing flag from a given one; no validating click type, so that errors read the
    # same for flags, environment and file.
    flag = f"--{setting.key}"
    names = f"{flag}/--no-{setting.key}" if setting.kind is bool else flag
    default = _default_text(setting)
    notes = f"[env: {setting.variable}{f'; default: {default}' if default else ''}]"
    return click.option(
        names,
        _parameter(setting),
        type=_click_type(setting),
        metavar=_metavar(setting),
        default=None,
        help=f"{setting.help}  {notes}".strip(),
    )


def _click_type(setting: Setting) -> click.ParamType[Any] | None:
    if setting.choices:
        return click.Choice(setting.choices)
    if setting.kind is bool:
        return None
    # Enables shell completion of file names; the file is checked when it is read.
    return click.Path(readable=False) if setting.secret or setting.kind is Path else click.STRING


def _metavar(setting: Setting) -> str | None:
    names = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", Address: "HOST:PORT", Secret: "FILE"}
    return names.get(setting.kind)


def _default_text(setting: Setting) -> str:
    default = setting.field.default
    if setting.field.required or default in (None, "", msgspec.NODEFAULT) or setting.secret:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)
