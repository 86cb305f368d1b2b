"""Replacing this process by a fresh interpreter that has loaded nothing but one program.

The command line reads and checks the settings; its libraries would stay in memory for as long as the program runs. So
``exec_module`` calls execv, which keeps the pid, and passes the settings as one JSON argument. Which settings exist is
not decided here.
"""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


_COMMAND: Final = "GOVERNOR_COMMAND"


def exec_module(
    module: str, settings: msgspec.Struct, command: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> NoReturn:
    """Replace this process by ``python -m module``, which reads its settings with ``settings_from``.

    It finds ``command`` by ``command_from``, to start itself again. ``variables`` are environment variables that are
    read before the program starts; the user's take precedence.
    """
    if command:
        os.environ[_COMMAND] = msgspec.json.encode(command).decode()
    for name, value in (variables or {}).items():
        os.environ.setdefault(name, value)
    # execv skips the exit handlers, which flush the logs.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # -P keeps the working directory off the module search path.
    arguments = [sys.executable, "-P", "-m", module, encode(settings)]
    os.execv(sys.executable, arguments)  # noqa: S606 - no shell is needed


def own_command() -> list[str]:
    """Return the command line that starts this program again, also another version that was installed meanwhile."""
    script = Path(sys.argv[0])
    # A script names its own interpreter, which may be another one then.
    if script.suffix != ".py" and os.access(script, os.X_OK):
        return [str(script.absolute()), *sys.argv[1:]]
    return list(sys.orig_argv)


def command_from(environ: MutableMapping[str, str]) -> list[str]:
    """Return and remove the command that ``exec_module`` passed to this process; empty if it passed none."""
    text = environ.pop(_COMMAND, "")
    return msgspec.json.decode(text, type=list[str]) if text else []


def encode(settings: msgspec.Struct) -> str:
    """Return the settings as one JSON argument."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def settings_from(cls: type[S], arguments: list[str]) -> S:
    """Return the settings that ``exec_module`` passed to this process."""
    if len(arguments) != 1:
        raise SystemExit("this program is started by the command `governor`")
    return msgspec.json.decode(arguments[0], type=cls, dec_hook=_decode)


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"settings of the type {kind.__name__}")
