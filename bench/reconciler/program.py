"""``governor reconciler`` as a process, and what its metrics show."""

import os
import re
import sys
from pathlib import Path
from typing import Final

import aiohttp

from governor.reconciler.controllers.module_instances import NAME
from testbed.server import Server

HUB: Final = "runtime-governor"
"""The hub namespace."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)


class Reconciler(Server):
    """``governor reconciler`` with default settings; of the renderers it finds only one."""

    def __init__(self, directory: Path, kubeconfig: Path, renderer: Path) -> None:
        super().__init__("governor-reconciler", directory, ["health"])
        self._kubeconfig = kubeconfig
        self._renderer = renderer

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
            "NAMESPACE": HUB,
            "KUBECONFIG": str(self._kubeconfig),
            "LOCAL_CLUSTER": "true",
            "HEALTH_LISTEN": f"127.0.0.1:{self.ports['health']}",
        }
        prefixed = {f"GOVERNOR_RECONCILER_{name}": value for name, value in settings.items()}
        return {**super().environment(), **prefixed, "PATH": os.pathsep.join([str(programs), os.defpath])}

    async def is_ready(self) -> bool:
        """Return whether it has prepared the hub."""
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


def reconciled(metrics: str) -> float:
    """Return how many reconciliations of ModuleInstances have found everything as desired, or made it so."""
    return _total(metrics, "controller_runtime_reconcile_total", f'controller="{NAME}",result="success"')


def waiting(metrics: str) -> float:
    """Return how many keys of all controllers wait or are being reconciled."""
    return _total(metrics, "workqueue_depth") + _total(metrics, "controller_runtime_active_workers")


def is_caught_up(metrics: str, modules: int) -> bool:
    """Return whether the program leads, has reconciled all ModuleInstances, and has nothing left to do."""
    is_leader = _total(metrics, "leader_election_master_status") == 1
    return is_leader and reconciled(metrics) >= modules and waiting(metrics) == 0


def _total(metrics: str, name: str, label: str = "") -> float:
    found = re.findall(rf"^{name}\{{[^}}]*{label}[^}}]*\}} (\S+)", metrics, re.MULTILINE)
    return sum(map(float, found))
