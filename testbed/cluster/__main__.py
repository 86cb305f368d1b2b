"""``python -m testbed.cluster up|down``: the real cluster for a person, until they have done with it."""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from testbed import cache
from testbed.cluster import dapr
from testbed.cluster.cluster import Cluster
from testbed.cluster.guard import sweep
from testbed.errors import TestbedError, tail
from testbed.images import busybox, pause

_ENDED_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.05


def main() -> int:
    """Start or end the cluster of this user."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="up|down")
    up = commands.add_parser("up", help="start it and say how to use it")
    up.add_argument("--dapr", metavar="VERSION", help="install Dapr of that version, or upgrade to it")
    up.add_argument("--containerd", default="containerd", choices=["containerd", "containerd-2"])
    up.set_defaults(act=lambda given: _up(given.dapr, given.containerd))
    commands.add_parser("down", help="end it and remove everything of it").set_defaults(act=lambda _: _down())
    given = parser.parse_args()
    try:
        given.act(given)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(dapr_version: str | None, containerd: str) -> None:
    began = time.monotonic()
    cluster = Cluster(_directory(), [pause().file, busybox().file], containerd)
    if not cluster.is_up:
        _start(cluster)
    print(f"The cluster is ready after {time.monotonic() - began:.0f} s.", file=sys.stderr)
    if dapr_version:
        asyncio.run(dapr.install(cluster, dapr_version))
        print(f"Dapr {dapr_version} is ready after {time.monotonic() - began:.0f} s.", file=sys.stderr)
    print(_ADVICE.format(kubeconfig=cluster.kubeconfig, kubectl=cluster.facts["kubectl"], **_addresses(cluster)))


def _start(cluster: Cluster) -> None:
    """Leave the guard running when this command has ended."""
    cluster.directory.mkdir(parents=True, exist_ok=True)
    with cluster.log.open("wb") as log:
        process = subprocess.Popen(
            cluster.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=cluster.environment(),
            start_new_session=True,
        )
    _pid_file().write_text(str(process.pid), encoding="utf-8")
    while not cluster.is_up:
        if process.poll() is not None:
            raise TestbedError(f"the cluster did not start; its log is {cluster.log}\n{tail(cluster.log)}")
        time.sleep(_LOOK_EVERY_S)


def _down() -> None:
    if (pid := _guard()) is not None:
        os.kill(pid, signal.SIGTERM)
        _wait_for_end(pid)
    sweep()
    shutil.rmtree(_directory(), ignore_errors=True)
    print("The cluster has ended; nothing of it is left.")


def _guard() -> int | None:
    """The running guard of this user's cluster."""
    if not _pid_file().exists():
        return None
    pid = int(_pid_file().read_text(encoding="utf-8"))
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return pid if b"testbed.cluster.guard" in command and str(_directory()).encode() in command else None


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    if Path(f"/proc/{pid}").exists():
        raise TestbedError(f"process {pid}, which holds the cluster, does not end; its log is in {_directory()}")


def _directory() -> Path:
    return cache.root() / "cluster"


def _pid_file() -> Path:
    return _directory() / "guard.pid"


def _addresses(cluster: Cluster) -> dict[str, str]:
    return {name: cluster.facts[name] for name in ("node", "machine")}


_ADVICE = """\
export KUBECONFIG={kubeconfig}

Try next:
  {kubectl} get pods --all-namespaces
  {kubectl} run shell --rm --stdin --tty --image=local.test/busybox:1 --image-pull-policy=IfNotPresent

The node is {node}; pods reach what you serve on this machine at {machine}, and you reach them at their own addresses.
There is no image registry: bring images of your own as archives. `make testbed-down` removes everything.
"""


if __name__ == "__main__":
    sys.exit(main())
