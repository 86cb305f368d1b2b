"""Start, stop and use the cluster from tests and from the command line."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

from testbed.cluster import machine_lock
from testbed.cluster.machine_lock import Holder, Notify
from testbed.cluster.servers import RUNTIME_LINK, restart_request
from testbed.cri.containerd import NAMESPACE
from testbed.waiting import until
from toolchain.errors import TestbedError, tail
from toolchain.repository import REPOSITORY

LOCK_TIMEOUT_S = 600.0
_READY_WITHIN_S = 240.0
_ENDED_WITHIN_S = 90.0
ROLLOUT_TIMEOUT_S = 240
"""Allows for a busy machine: rollouts take seconds on an idle one."""
_COMMAND_TIMEOUT_S = ROLLOUT_TIMEOUT_S + 60.0


class Cluster:
    """A real node with its control plane. The machine-wide lock allows one at a time."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        """The owner, as shown to users that wait for the lock."""
        self.log = directory / "cluster.log"
        self.state = directory / "state"
        """All files of the running cluster; removed with it."""
        self.dapr = ""
        """The version of Dapr that this process has brought the running cluster to."""
        self._guard: subprocess.Popen[bytes] | None = None
        self._imported: set[tuple[Path, int]] = set()

    async def start(
        self, programs: Mapping[str, Path], images: Sequence[Path], *, notify: Notify = print, detached: bool = False
    ) -> None:
        """Wait for the lock and start; the cluster ends with this process unless it is detached."""
        with await machine_lock.acquire(notify, LOCK_TIMEOUT_S) as lock:
            shutil.rmtree(self.state, ignore_errors=True)  # left if the machine went down
            self.directory.mkdir(parents=True, exist_ok=True)
            self._guard = self._spawn(lock, programs, images, detached=detached)
        try:
            await until(self._is_settled, within_s=_READY_WITHIN_S)
        except TimeoutError as error:
            tails = "\n".join(f"{log}\n{tail(log)}" for log in self.logs)
            await self.stop()
            raise TestbedError(f"the cluster was not ready within {_READY_WITHIN_S:.0f} s\n{tails}") from error
        except BaseException:
            await self.stop()
            raise
        if not self.is_up:
            raise TestbedError(f"the cluster did not start; its log is {self.log}\n{tail(self.log)}")

    def _spawn(
        self, lock: IO[str], programs: Mapping[str, Path], images: Sequence[Path], *, detached: bool
    ) -> "subprocess.Popen[bytes]":
        argv = [
            *([] if detached else ["setpriv", "--pdeathsig", "TERM", "--"]),
            *(sys.executable, "-m", "testbed.cluster.guard", f"--lock={lock.fileno()}", f"--name={self.name}"),
            *(f"--directory={self.state}", *([] if detached else [f"--starter={os.getpid()}"]), "--"),
            *(f"--binary={name}={path}" for name, path in programs.items()),
            *(f"--image={image}" for image in images),
        ]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        with self.log.open("wb") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )

    async def _is_settled(self) -> bool:
        return self.is_up or self._guard is None or self._guard.poll() is not None

    async def stop(self) -> None:
        """End the cluster, even if another process started it, and return when everything is removed."""
        if holder := self._holder():
            os.kill(holder.guard, signal.SIGTERM)
        elif self._guard:
            self._guard.terminate()
        try:
            await until(self._has_ended, within_s=_ENDED_WITHIN_S)
        except TimeoutError as error:
            raise TestbedError(
                f"the cluster did not end within {_ENDED_WITHIN_S:.0f} s; its log is {self.log}\n{tail(self.log)}"
            ) from error
        self._guard = None

    async def _has_ended(self) -> bool:
        return self._guard.poll() is not None if self._guard else self._holder() is None

    @property
    def is_up(self) -> bool:
        """Whether all servers are running."""
        return self._holder() is not None and (self.state / "ready").exists()

    def _holder(self) -> Holder | None:
        """Return the current holder of the lock if it is this cluster."""
        holder = machine_lock.current_holder()
        return holder if holder and holder.directory == str(self.state) else None

    @property
    def facts(self) -> dict[str, Any]:
        """The running cluster's URL, addresses and files."""
        described: dict[str, Any] = json.loads((self.state / "ready").read_text(encoding="utf-8"))
        return described

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return Path(self.facts["kubeconfig"])

    @property
    def logs(self) -> list[Path]:
        """The logs of all servers."""
        return [self.log, *sorted(self.state.glob("*/*.log"))]

    def pod_logs(self, namespace: str) -> list[Path]:
        """Return the logs of all containers in a namespace."""
        return sorted((self.state / "kubelet" / "pod-logs").glob(f"{namespace}_*/*/*.log"))

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl as the administrator and return its output."""
        environment = {"HOME": str(self.state)}  # for its discovery cache
        return await run([self.facts["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments], stdin, environment)

    async def restart_kubelet(self) -> None:
        """Kill kubelet, and return when it is healthy again; containers run on meanwhile."""
        await self.restart("kubelet")

    @asynccontextmanager
    async def runtime_at(self, socket: Path) -> AsyncIterator[None]:
        """Let kubelet use another socket as its container runtime within the context; it is restarted for that."""
        await self._link_runtime(socket)
        try:
            yield
        finally:
            await self._link_runtime(Path(self.facts["socket"]))

    async def _link_runtime(self, socket: Path) -> None:
        link = self.state / RUNTIME_LINK
        new = link.with_suffix(".new")
        new.symlink_to(socket)
        new.replace(link)
        await self.restart_kubelet()

    async def restart(self, server: str) -> None:
        """Kill kubelet or containerd, and return when it is ready again; containers run on meanwhile."""
        request = restart_request(self.state, server)
        request.touch()

        async def is_done() -> bool:
            return not request.exists()

        await until(is_done, within_s=_READY_WITHIN_S)

    async def import_image(self, archive: Path) -> None:
        """Import an image archive into the node's containerd, unless this version of it was imported before."""
        if (version := _version(archive)) not in self._imported:
            ctr = [self.facts["ctr"], f"--address={self.facts['socket']}", f"--namespace={NAMESPACE}"]
            await run([*ctr, "images", "import", str(archive)])
            self._imported.add(version)


def _version(file: Path) -> tuple[Path, int]:
    return file, file.stat().st_mtime_ns


async def run(argv: Sequence[str], stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run a program and return its standard output; raise with its standard error if it fails."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            stdout, stderr = await process.communicate(stdin.encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise TestbedError(f"{' '.join(argv)} failed: {stderr.decode()}")
    return stdout.decode()
