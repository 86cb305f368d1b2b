"""``governor reconciler`` as a process."""

import os
import sys
from pathlib import Path
from typing import Final

import aiohttp

from testbed.server import Server

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)


class Reconciler(Server):
    """``governor reconciler`` of one hub namespace; of the renderers it finds only one."""

    def __init__(self, directory: Path, kubeconfig: Path, renderer: Path, namespace: str) -> None:
        super().__init__("governor-reconciler", directory, ["health"])
        self._kubeconfig = kubeconfig
        self._renderer = renderer
        self._namespace = namespace
        self.settings: dict[str, str] = {}
        """More settings, by the names of their variables without prefix; they are read at the start."""

    def command(self) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "governor.cli.main", "reconciler"]

    def environment(self) -> dict[str, str]:
        """Return the settings and a PATH that begins with a directory with only the renderer."""
        programs = self.directory / "bin"
        programs.mkdir(exist_ok=True)
        link = programs / self._renderer.name
        if not link.is_symlink():
            link.symlink_to(self._renderer)
        settings = {
            "NAMESPACE": self._namespace,
            "KUBECONFIG": str(self._kubeconfig),
            "LOCAL_CLUSTER": "true",
            "HEALTH_LISTEN": f"127.0.0.1:{self.ports['health']}",
        }
        prefixed = {f"GOVERNOR_RECONCILER_{name}": value for name, value in {**settings, **self.settings}.items()}
        return {**super().environment(), **prefixed, "PATH": os.pathsep.join([str(programs), os.defpath])}

    async def is_ready(self) -> bool:
        """Return whether it leads and its controllers have started."""
        try:
            return (await self._get("readyz"))[0] == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def metrics(self) -> str:
        """Return its metrics."""
        return (await self._get("metrics"))[1]

    async def _get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.ports['health']}/{path}"
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
            return answer.status, await answer.text()
