"""The hook plugins, and one registration directory for each set of plugins."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bench.proxy.requests import ANNOTATION, hook_response
from bench.proxy.routes import PLUGIN_SETS, POLICY
from governor.wire.hooks.points import Hook
from testbed.cri.peers import HookPlugin
from testbed.server import Server, short_socket
from toolchain.repository import REPOSITORY, VENV_PYTHON


class PythonPlugin(Server):
    """The Python plugin as a process."""

    def __init__(self, directory: Path) -> None:
        super().__init__("python-plugin", directory, [])
        self.socket = short_socket(directory / "python-plugin.sock")

    def command(self) -> list[str]:
        """Return the command that runs ``python_plugin``."""
        return [str(VENV_PYTHON), "-m", "bench.proxy.python_plugin", str(self.socket)]

    def environment(self) -> dict[str, str]:
        """Add the repository to the import path: the working directory is elsewhere."""
        return {**super().environment(), "PYTHONPATH": str(REPOSITORY)}

    async def is_ready(self) -> bool:
        """Whether its socket exists."""
        return self.socket.exists()


@asynccontextmanager
async def plugin_directories(directory: Path) -> AsyncIterator[dict[str, Path]]:
    """Run all plugins; yield the registration directory of each set."""
    async with AsyncExitStack() as running:
        rules = [{"method": f"{Hook.PRE_CREATE_CONTAINER}Hook", "raw": hook_response(number)} for number in range(3)]
        in_go = [HookPlugin(directory / f"go-{number}", [rule]) for number, rule in enumerate(rules)]
        in_python = PythonPlugin(directory / "python")
        for plugin in (*in_go, in_python):
            await running.enter_async_context(plugin)
        go_sockets = [each.socket for each in in_go]
        sockets = {"": [], "go": go_sockets[:1], "python": [in_python.socket], "three": go_sockets, POLICY: []}
        yield {name: register(directory / f"hooks-{name or 'none'}", sockets[name]) for name in PLUGIN_SETS}


def write_policy(directory: Path) -> None:
    """Write a policy that changes what the plugins change."""
    directory.mkdir(parents=True)
    changes = f"{{set: {{cpuShares: 256, annotations: {{{ANNOTATION.format(0)}: called}}}}}}"
    head = "apiVersion: runtime-governor.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: bench}\n"
    (directory / "bench.yaml").write_text(f"{head}spec: {{container: {changes}}}\n", encoding="utf-8")


def register(directory: Path, sockets: list[Path]) -> Path:
    """Write a registration file for each plugin, for every hook."""
    directory.mkdir()
    for order, socket in enumerate(sockets):
        text = json.dumps({"remote-endpoint": str(socket), "runtime-hooks": list(Hook), "order": order})
        (directory / f"{order}.json").write_text(text, encoding="utf-8")
    return directory
