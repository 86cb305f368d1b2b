"""Replacing this process by a fresh interpreter that has loaded nothing but one program.

The command line reads and checks the settings; its libraries would stay in memory for as long as the program runs. So
``exec_module`` calls execv, which keeps the pid, and passes the settings as one JSON argument. Which settings exist is
not decided here.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def exec_module(module: str, settings: msgspec.Struct) -> NoReturn:
    """Replace this process by ``python -m module``, which reads its settings with ``settings_from``."""
    # execv skips the exit handlers, which flush the logs.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # -P keeps the working directory off the module search path.
    arguments = [sys.executable, "-P", "-m", module, encode(settings)]
    os.execv(sys.executable, arguments)  # noqa: S606 - no shell is needed


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
