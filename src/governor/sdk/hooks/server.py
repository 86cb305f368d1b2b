"""Serves a plugin on its socket, and registers it with the runtime proxy.

Needs the extra ``runtime-governor[hooks]``.
"""

import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import msgspec

from governor.errors import GovernorError
from governor.sdk.hooks.messages import handle, handle_synchronize
from governor.sdk.hooks.plugin import Plugin, Rejection
from governor.sdk.hooks.testkit import Recorder
from governor.wire.hooks.points import SERVICE, Hook

HOOK_SERVER_DIR: Final = Path("/etc/runtime/hookserver.d")
_SYNCHRONIZATION: Final = "governor.hooks.v1alpha1.Synchronization"
_THREADS: Final = 4


class PluginServer:
    """A plugin on a socket; a context manager that serves while it is entered."""

    def __init__(self, plugin: Plugin, socket: str | Path, record: Path | None = None) -> None:
        self._plugin = plugin
        self._socket = Path(socket)
        self._recorder = Recorder(record) if record is not None else None
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        hooks = {f"{hook}Hook": _method(self._handler(hook)) for hook in plugin.hooks}
        others = {"Synchronize": _method(lambda message: handle_synchronize(plugin, message))}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, hooks),
                grpc.method_handlers_generic_handler(_SYNCHRONIZATION, others if plugin.synchronizes else {}),
            )
        )

    def __enter__(self) -> "PluginServer":
        self._socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=5).wait()
        self._socket.unlink(missing_ok=True)

    def _handler(self, hook: Hook) -> Callable[[bytes], bytes]:
        def called(message: bytes) -> bytes:
            if self._recorder is not None:
                self._recorder.add(hook, message)
            return handle(self._plugin, hook, message)

        return called


def serve(
    plugin: Plugin,
    socket: str | Path,
    *,
    register_as: str = "",
    directory: Path = HOOK_SERVER_DIR,
    record: Path | None = None,
    **settings: Any,
) -> None:
    """Serve a plugin until SIGTERM or SIGINT.

    With ``register_as`` its registration file is written; ``settings`` are further keys of it, with ``_`` for ``-``.
    With ``record`` every request is appended to a file, which the test kit can replay.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with PluginServer(plugin, socket, record):
        if register_as:
            register(plugin, socket, register_as, directory, settings)
        stop.wait()


def register(plugin: Plugin, socket: str | Path, name: str, directory: Path, settings: Mapping[str, Any]) -> Path:
    """Write the registration file of a plugin atomically and return its path."""
    keys: dict[str, Any] = {"remote-endpoint": str(Path(socket).absolute()), "runtime-hooks": list(plugin.hooks)}
    if plugin.synchronizes:
        keys["synchronize"] = True
    keys |= {key.replace("_", "-"): value for key, value in settings.items()}
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(keys)))
    return new.replace(path)


def _method(handler: Callable[[bytes], bytes]) -> Any:
    def called(message: bytes, context: Any) -> bytes:
        try:
            return handler(message)
        except Rejection as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except GovernorError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(called)
