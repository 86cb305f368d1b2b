"""The cluster as tests and people use it."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from testbed.containerd import NAMESPACE
from testbed.errors import TestbedError
from testbed.server import Server
from testbed.wheels import REPOSITORY

_ANSWER_WITHIN_S = 120.0


class Cluster(Server):
    """A real node with its control plane; one at a time on a machine, others wait for their turn."""

    ready_within_s: ClassVar[float] = 3600.0  # its turn comes when the one before it has ended
    death_signal: ClassVar[str] = "TERM"  # its guard clears up

    def __init__(self, directory: Path, images: Sequence[Path], containerd: str = "containerd") -> None:
        super().__init__("cluster", directory, [])
        self._images = images
        self._containerd = containerd
        self._state = directory / "state"

    def command(self) -> list[str]:
        """The guard, which starts everything else."""
        images = [f"--image={image}" for image in self._images]
        guard = [sys.executable, "-m", "testbed.cluster.guard", f"--directory={self._state}"]
        return [*guard, f"--containerd={self._containerd}", *images]

    def environment(self) -> dict[str, str]:
        """The caller's own: tools that are not there yet are built as for the caller."""
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    async def is_ready(self) -> bool:
        """Whether the node is Ready."""
        return self.is_up

    @property
    def is_up(self) -> bool:
        """Whether the cluster has said that everything of it runs."""
        return (self._state / "ready").exists()

    @property
    def facts(self) -> dict[str, Any]:
        """What the cluster says about itself: its URL, addresses, files."""
        described: dict[str, Any] = json.loads((self._state / "ready").read_text(encoding="utf-8"))
        return described

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return Path(self.facts["kubeconfig"])

    @property
    def logs(self) -> list[Path]:
        """The logs of all its servers."""
        return [self.log, *sorted(self._state.glob("*/*.log"))]

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints to the administrator."""
        return await run([self.facts["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments], stdin)

    async def import_image(self, archive: Path) -> None:
        """Make an image known to the node."""
        ctr = [self.facts["ctr"], f"--address={self.facts['socket']}", f"--namespace={NAMESPACE}"]
        await run([*ctr, "images", "import", str(archive)])


async def run(argv: Sequence[str], stdin: str = "", environment: dict[str, str] | None = None) -> str:
    """What a program prints; its failure is an error with its complaints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    async with asyncio.timeout(_ANSWER_WITHIN_S):
        printed, complaints = await process.communicate(stdin.encode())
    if process.returncode != 0:
        raise TestbedError(f"{' '.join(argv)} failed: {complaints.decode()}")
    return printed.decode()
