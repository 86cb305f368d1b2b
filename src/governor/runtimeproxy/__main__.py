"""The runtime proxy's own process; the command ``governor runtime-proxy`` executes this module.

What libraries import and the proxy does not use is replaced before they are imported:

| module | imported by | MiB | in its place |
|---|---|---|---|
| ``ssl``, with OpenSSL | uvloop, asyncio | 4 | names without content, since the proxy uses Unix sockets only |
| protobuf in pure Python | protobuf | 0.7 | loaded on demand; the C implementation is used |
| hpack's table of Huffman codes | hpack | 0.6 | loaded on demand; usual header fields are decoded without it |
| ``ipaddress`` | ``urllib.parse`` | 0.3 | loaded on demand |
| ``typing_extensions`` | msgspec | 0.3 | nothing: msgspec uses ``typing`` if it is not installed |
"""

import importlib
import sys
import types
from typing import Any, Final, NoReturn

_DEFERRED: Final = ("google.protobuf.internal.python_message", "ipaddress")
_HUFFMAN_TABLE: Final = "hpack.huffman_table"


class _Unavailable(Exception):  # noqa: N818 - stands for classes and exceptions alike
    """Any class of ``ssl``: can be named, compared and caught, but not instantiated."""

    def __new__(cls, *_args: object, **_options: object) -> NoReturn:
        raise RuntimeError("this process has no TLS")


class _SslPlaceholder(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else _Unavailable


class _Deferred(types.ModuleType):
    """Stands for a module that is loaded with the first use of its content."""

    def load(self) -> types.ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.load(), name)


def _replace_modules() -> None:
    """Replace the modules above; raise if one of them is imported already."""
    replaced: dict[str, types.ModuleType | None] = {name: _Deferred(name) for name in _DEFERRED}
    replaced["ssl"] = _SslPlaceholder("ssl")
    replaced["typing_extensions"] = None
    replaced[_HUFFMAN_TABLE] = table = _Deferred(_HUFFMAN_TABLE)
    # hpack imports the function, which would load the module.
    table.decode_huffman = lambda text: table.load().decode_huffman(text)  # type: ignore[attr-defined]
    imported = replaced.keys() & sys.modules.keys()
    if imported:
        raise RuntimeError(f"imported before they could be replaced: {', '.join(sorted(imported))}")
    # None makes an import fail.
    sys.modules.update(replaced)  # type: ignore[arg-type]


def run() -> int:
    """Run the proxy until it ends and return the exit code."""
    _replace_modules()
    # Every other import may import one of the replaced modules.
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
