"""The cluster as tests and people use it."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from testbed.cluster import turn
from testbed.cluster.turn import Holder, Say
from testbed.cri.containerd import NAMESPACE
from testbed.waiting import until
from toolchain.errors import TestbedError, tail
from toolchain.wheels import REPOSITORY

TURN_WITHIN_S = 600.0
_READY_WITHIN_S = 240.0
_ENDED_WITHIN_S = 90.0
PATIENCE_S = 240
"""How long something in the cluster may take that takes seconds on a machine with nothing else to do."""
_ANSWER_WITHIN_S = PATIENCE_S + 60.0


class Cluster:
    """A real node with its control plane; one at a time on a machine, others wait for their turn."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        """Who wants it, for those who wait for their turn."""
        self.log = directory / "cluster.log"
        self.state = directory / "state"
        """All files of the running cluster; they end with it."""
        self._guard: subprocess.Popen[bytes] | None = None
        self._imported: set[tuple[Path, int]] = set()

    async def start(
        self, programs: Mapping[str, Path], images: Sequence[Path], *, say: Say = print, lasting: bool = False
    ) -> None:
        """Wait for its turn and start; it ends with this process unless it is to last."""
        with await turn.wait(say, TURN_WITHIN_S) as lock:
            shutil.rmtree(self.state, ignore_errors=True)  # of one that ended with the machine itself
            self.directory.mkdir(parents=True, exist_ok=True)
            self._guard = self._spawn(lock, programs, images, lasting=lasting)
        try:
            await until(self._is_settled, within_s=_READY_WITHIN_S)
        except TimeoutError as error:
            ends = "\n".join(f"{log}\n{tail(log)}" for log in self.logs)
            await self.stop()
            raise TestbedError(f"the cluster was not ready within {_READY_WITHIN_S:.0f} s\n{ends}") from error
        except BaseException:
            await self.stop()
            raise
        if not self.is_up:
            raise TestbedError(f"the cluster did not start; its log is {self.log}\n{tail(self.log)}")

    def _spawn(
        self, lock: IO[str], programs: Mapping[str, Path], images: Sequence[Path], *, lasting: bool
    ) -> "subprocess.Popen[bytes]":
        argv = [
            *([] if lasting else ["setpriv", "--pdeathsig", "TERM", "--"]),
            *(sys.executable, "-m", "testbed.cluster.guard", f"--lock={lock.fileno()}", f"--name={self.name}"),
            *(f"--directory={self.state}", *([] if lasting else [f"--starter={os.getpid()}"]), "--"),
            *(f"--binary={name}={path}" for name, path in programs.items()),
            *(f"--image={image}" for image in images),
        ]
        surroundings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        with self.log.open("wb") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=surroundings,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )

    async def _is_settled(self) -> bool:
        return self.is_up or self._guard is None or self._guard.poll() is not None

    async def stop(self) -> None:
        """End it, whoever has started it, and return when nothing of it is left."""
        if holder := self._holder():
            os.kill(holder.guard, signal.SIGTERM)
        elif self._guard:
            self._guard.terminate()
        try:
            await until(self._has_ended, within_s=_ENDED_WITHIN_S)
        except TimeoutError as error:
            raise TestbedError(f"the cluster does not end; its log is {self.log}\n{tail(self.log)}") from error
        self._guard = None

    async def _has_ended(self) -> bool:
        return self._guard.poll() is not None if self._guard else self._holder() is None

    @property
    def is_up(self) -> bool:
        """Whether everything of it runs."""
        return self._holder() is not None and (self.state / "ready").exists()

    def _holder(self) -> Holder | None:
        """Its guard as it describes itself."""
        holder = turn.holder()
        return holder if holder and holder.directory == str(self.state) else None

    @property
    def facts(self) -> dict[str, Any]:
        """What the cluster says about itself: its URL, addresses, files."""
        described: dict[str, Any] = json.loads((self.state / "ready").read_text(encoding="utf-8"))
        return described

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return Path(self.facts["kubeconfig"])

    @property
    def logs(self) -> list[Path]:
        """The logs of all its servers."""
        return [self.log, *sorted(self.state.glob("*/*.log"))]

    def pod_logs(self, namespace: str) -> list[Path]:
        """The logs of all containers of a namespace."""
        return sorted((self.state / "kubelet" / "pod-logs").glob(f"{namespace}_*/*/*.log"))

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints to the administrator."""
        surroundings = {"HOME": str(self.state)}  # where it keeps what it has learnt about servers
        return await run([self.facts["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments], stdin, surroundings)

    async def import_image(self, archive: Path) -> None:
        """Make an image known to the node."""
        if (known := _written(archive)) not in self._imported:
            ctr = [self.facts["ctr"], f"--address={self.facts['socket']}", f"--namespace={NAMESPACE}"]
            await run([*ctr, "images", "import", str(archive)])
            self._imported.add(known)


def _written(file: Path) -> tuple[Path, int]:
    """A file as it was written last."""
    return file, file.stat().st_mtime_ns


async def run(argv: Sequence[str], stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """What a program prints; its failure is an error with its complaints."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            printed, complaints = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise TestbedError(f"{' '.join(argv)} failed: {complaints.decode()}")
    return printed.decode()
