"""``python -m testbed.cluster.guard``: hold the one cluster that a machine can have, and leave nothing of it behind.

It waits for the machine-wide lock, starts ``inside`` in namespaces of its own, and when it is told to end, or its own
starter has gone, it ends them and removes the cgroups. If it is itself killed, the kernel ends the namespaces with all
processes, mounts and devices in them, and the next guard removes the cgroups.
"""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed import recipes
from testbed.cluster.network import choose, unplug
from testbed.cluster.node import CGROUP
from testbed.errors import TestbedError

LOCK = Path("/run/lock/runtime-governor-cluster")
PRIVATE = ("/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
"""Fixed places that node programs write to; in the cluster's namespaces each is empty and its own."""
PROGRAMS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    *("kubelet", "kube-proxy", "coredns"),
)
_HIERARCHIES = Path("/sys/fs/cgroup")
_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# A shell as the first process takes the orphans that shims leave; a last command alone it would replace itself with.
_FIRST_PROCESS = ("sh", "-c", '"$@"; exit $?', "sh")
_GONE_WITHIN_S = 30.0


def main() -> int:
    """Hold the cluster until told to end."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster.guard")
    parser.add_argument("--directory", type=Path, required=True, help="all files of the cluster; removed at the end")
    parser.add_argument("--image", dest="images", type=Path, action="append", default=[], help="archive to import")
    parser.add_argument("--containerd", default="containerd", choices=["containerd", "containerd-2"])
    given = parser.parse_args()
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, _end)
    try:
        with _alone(given.directory):
            return _hold(given.directory, given.images, given.containerd)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1


def _end(*_: object) -> None:
    sys.exit(0)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    if os.geteuid() != 0:
        raise TestbedError("a real node needs root: namespaces, mounts and cgroups are made")
    with LOCK.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            print(f"waiting for the cluster of {file.read().strip()}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()} in {directory}\n")
        file.flush()
        yield


def _hold(directory: Path, images: list[Path], containerd: str) -> int:
    binaries = recipes.provide([*PROGRAMS, containerd])
    binaries["containerd"] = binaries.pop(containerd)
    _remove_leftovers()
    absent = [place for place in map(Path, PRIVATE) if not place.exists()]
    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    inside = [
        *(sys.executable, "-m", "testbed.cluster.inside"),
        *(f"--directory={directory}", f"--network={choose().pods}", f"--machine-network={network}"),
        *(f"--binary={name}={path}" for name, path in binaries.items()),
        *(f"--image={image}" for image in images),
    ]
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, *_FIRST_PROCESS, *inside]
    try:
        _make_cgroups()
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[network], start_new_session=True)
        try:
            return process.wait()
        finally:
            _ignore_signals()
            process.kill()
            process.wait()
    finally:
        _clear(directory, absent)


def sweep() -> None:
    """Remove what a killed guard could not, unless another one has taken over."""
    with LOCK.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _remove_leftovers()


def _remove_leftovers() -> None:
    unplug()
    _remove_cgroups()


def _ignore_signals() -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)


def _clear(directory: Path, absent: list[Path]) -> None:
    _ignore_signals()
    _remove_leftovers()
    shutil.rmtree(directory, ignore_errors=True)
    for place in absent:
        with suppress(OSError):  # somebody else has put something there meanwhile
            place.rmdir()


def _cgroups() -> list[Path]:
    """The cluster's cgroup in each hierarchy, of which there is one or, in version 1, one per controller."""
    if (_HIERARCHIES / "cgroup.controllers").exists():
        return [_HIERARCHIES / CGROUP]
    return [each / CGROUP for each in _HIERARCHIES.iterdir() if each.is_dir() and not each.is_symlink()]


def _make_cgroups() -> None:
    for cgroup in _cgroups():
        cgroup.mkdir()
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, and then no process may join it
            if (cgroup / name).exists():
                (cgroup / name).write_text((cgroup.parent / name).read_text(encoding="utf-8"), encoding="utf-8")


def _remove_cgroups() -> None:
    """Remove all below the cluster's cgroups; processes that were just killed may hold them for a moment."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while left := [cgroup for cgroup in _cgroups() if cgroup.exists()]:
        for cgroup in left:
            for directory, _, _ in os.walk(cgroup, topdown=False):
                with suppress(OSError):
                    Path(directory).rmdir()
        if time.monotonic() > deadline:
            raise TestbedError(f"processes are still in {left[0]}")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
