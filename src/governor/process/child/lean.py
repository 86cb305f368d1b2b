"""A program in a process of its own that has loaded nothing but the program.

The command line reads and checks the settings; its libraries would stay in memory for as long as the program runs.
So the process becomes another one, under the same number, which gets the settings as they are. Which settings there
are is ``settings``' business.
"""

import os
import sys
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def become(module: str, settings: msgspec.Struct) -> NoReturn:
    """Run ``python -m module`` in place of this process; it reads its settings with ``given``."""
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a directory in which somebody happens to start the program must not be searched for its modules.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, encoded(settings)])  # noqa: S606 - nothing else is meant


def encoded(settings: msgspec.Struct) -> str:
    """Settings as one argument."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def given(cls: type[S], arguments: list[str]) -> S:
    """The settings with which this process was started by ``become``."""
    if len(arguments) != 1:
        raise SystemExit("this program is started by the command `governor`")
    return msgspec.json.decode(arguments[0], type=cls, dec_hook=_decoded)


def _decoded(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value)
    raise NotImplementedError(f"settings of the type {kind.__name__}")
