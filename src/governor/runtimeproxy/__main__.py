"""The runtime proxy's own process; the command ``governor runtime-proxy`` executes this module.

The proxy uses Unix sockets only, but uvloop and asyncio import ``ssl`` unconditionally, which costs 4 MiB of resident
memory for OpenSSL. A placeholder module takes its place; it is installed before either of them is imported.

hpack's table of Huffman codes costs 0.6 MiB. Usual header fields are decoded without it, so it is loaded on demand.
"""

import importlib
import sys
import types
from typing import Any, NoReturn


class _Unavailable(Exception):  # noqa: N818 - stands for classes and exceptions alike
    """Any class of ``ssl``: can be named, compared and caught, but not instantiated."""

    def __new__(cls, *_args: object, **_options: object) -> NoReturn:
        raise RuntimeError("this process has no TLS")


class _SslPlaceholder(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else _Unavailable


def _block_ssl() -> None:
    """Replace ``ssl`` with a placeholder; raise if it is imported already."""
    if "ssl" in sys.modules:
        raise RuntimeError("ssl was imported before it could be blocked")
    sys.modules["ssl"] = _SslPlaceholder("ssl")


def _defer_huffman_table() -> None:
    """Replace hpack's table with a module that loads it with the first text to decode."""
    name = "hpack.huffman_table"
    deferred = types.ModuleType(name)

    def decode_huffman(text: bytes | None) -> Any:
        if sys.modules.get(name) is deferred:
            del sys.modules[name]
        return importlib.import_module(name).decode_huffman(text)

    deferred.decode_huffman = decode_huffman  # type: ignore[attr-defined]
    sys.modules[name] = deferred


def run() -> int:
    """Run the proxy until it ends and return the exit code."""
    _block_ssl()
    _defer_huffman_table()
    # Every other import may import ssl.
    from governor.errors import GovernorError  # noqa: PLC0415
    from governor.process.child.exec import settings_from  # noqa: PLC0415
    from governor.process.exit_codes import EXIT_CODE, describe  # noqa: PLC0415
    from governor.runtimeproxy.main import main  # noqa: PLC0415
    from governor.runtimeproxy.settings import Settings  # noqa: PLC0415

    try:
        return main(settings_from(Settings, sys.argv[1:]))
    except GovernorError as error:
        sys.stderr.write("\n".join(describe(error)) + "\n")
        return EXIT_CODE[error.kind]


if __name__ == "__main__":
    sys.exit(run())
