"""The plugins and the directories in which proxies find them, one for each set of plugins."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bench.proxy.routes import PLUGIN_SETS
from bench.proxy.sample import plugins_answer
from governor.wire.hooks.points import Hook
from testbed.cri.peers import HookPlugin
from testbed.server import Server, short_socket
from toolchain.wheels import REPOSITORY, VENV_PYTHON


class PythonPlugin(Server):
    """The plugin in Python as a process."""

    def __init__(self, directory: Path) -> None:
        super().__init__("python-plugin", directory, [])
        self.socket = short_socket(directory / "python-plugin.sock")

    def command(self) -> list[str]:
        """The program beside this module."""
        return [str(VENV_PYTHON), "-m", "bench.proxy.python_plugin", str(self.socket)]

    def environment(self) -> dict[str, str]:
        """It is started elsewhere than in the repository."""
        return {**super().environment(), "PYTHONPATH": str(REPOSITORY)}

    async def is_ready(self) -> bool:
        """Whether it listens."""
        return self.socket.exists()


@asynccontextmanager
async def plugin_directories(directory: Path) -> AsyncIterator[dict[str, Path]]:
    """All plugins run; what to give a proxy as its directory, by set of plugins."""
    async with AsyncExitStack() as running:
        rules = [{"method": f"{Hook.PRE_CREATE_CONTAINER}Hook", "raw": plugins_answer(number)} for number in range(3)]
        in_go = [HookPlugin(directory / f"go-{number}", [rule]) for number, rule in enumerate(rules)]
        in_python = PythonPlugin(directory / "python")
        for plugin in (*in_go, in_python):
            await running.enter_async_context(plugin)
        go_sockets = [each.socket for each in in_go]
        sockets = {"": [], "go": go_sockets[:1], "python": [in_python.socket], "three": go_sockets}
        yield {name: register(directory / f"hooks-{name or 'none'}", sockets[name]) for name in PLUGIN_SETS}


def register(directory: Path, sockets: list[Path]) -> Path:
    """Write a file for each plugin; it is asked at every hook."""
    directory.mkdir()
    for order, socket in enumerate(sockets):
        text = json.dumps({"remote-endpoint": str(socket), "runtime-hooks": list(Hook), "order": order})
        (directory / f"{order}.json").write_text(text, encoding="utf-8")
    return directory
