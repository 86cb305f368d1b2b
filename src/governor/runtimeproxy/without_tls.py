"""Keeps OpenSSL out of a process that serves and connects on unix sockets only: 4 MiB of resident memory.

uvloop and asyncio import ``ssl`` whoever uses it. They get a module with its names, of which nothing can be made.
Import this before either of them.
"""

import sys
import types
from typing import Any, NoReturn


class _Nothing(Exception):  # noqa: N818 - stands for classes and for exceptions alike
    """Whatever ``ssl`` would have: may be named, compared and caught, but not made."""

    def __new__(cls, *_args: object, **_options: object) -> NoReturn:
        raise RuntimeError("this process has no TLS")


class _NoTls(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else _Nothing


def install() -> None:
    """From now on ``ssl`` is nothing; an error if it is already something."""
    if "ssl" in sys.modules:
        raise RuntimeError("ssl was imported before it could be kept out")
    sys.modules["ssl"] = _NoTls("ssl")
