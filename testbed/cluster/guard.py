"""``python -m testbed.cluster.guard``: hold this machine's one cluster, and remove everything of it at the end.

The guard inherits the machine-wide lock and starts ``servers`` in new namespaces. On a termination signal, or when its
starter exits, it kills them and removes what lies outside of the namespaces. If the guard itself is killed, the kernel
removes the namespaces with their processes, mounts and devices; the next guard or ``make testbed-down`` removes the
rest.
"""

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from testbed.cluster import machine_lock
from testbed.cluster.cleanup import create_cgroups, sweep
from testbed.cluster.host import PRIVATE
from testbed.cluster.machine_lock import Holder
from testbed.cluster.network import choose
from toolchain.errors import TestbedError

_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# The shell reaps the orphans of shims as process 1. `exit` keeps it from replacing itself with the command.
_INIT = ("sh", "-c", '"$@"; exit $?', "sh")


def main() -> int:
    """Hold the cluster until a termination signal."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster.guard")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of the machine-wide lock")
    parser.add_argument("--name", required=True, help="owner of the cluster, shown to users that wait for it")
    parser.add_argument("--directory", type=Path, required=True, help="all files of the cluster; removed at the end")
    parser.add_argument("--starter", type=int, help="process with which the cluster ends; without, it is detached")
    parser.add_argument("servers", nargs="*", help="further arguments of testbed.cluster.servers")
    given = parser.parse_args()
    termination = _termination()
    if given.starter and os.getppid() != given.starter:  # it exited before the death signal was set
        return 0
    with os.fdopen(given.lock, "r+", encoding="utf-8") as lock:
        sweep(lock)
        created = tuple(directory for directory in PRIVATE if not Path(directory).exists())
        holder = Holder(given.name, os.getpid(), str(given.directory), created, detached=given.starter is None)
        machine_lock.write_holder(lock, holder)
        try:
            _hold(holder, lock, termination, given.servers)
        except TestbedError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            sweep(lock)
    return 0


def _termination() -> socket.socket:
    """Return a socket that becomes readable on a termination signal, which then interrupts nothing."""
    readable, writable = socket.socketpair()
    writable.setblocking(False)
    signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    return readable


def _hold(holder: Holder, lock: IO[str], termination: socket.socket, servers: Sequence[str]) -> None:
    """Run the servers until termination. Every process in the namespaces inherits the lock and holds it too."""
    Path(holder.directory).mkdir()
    create_cgroups()
    machine_network = os.open("/proc/self/ns/net", os.O_RDONLY)
    argv = [
        *("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_NAMESPACES, *_INIT),
        *(sys.executable, "-m", "testbed.cluster.servers", f"--directory={holder.directory}"),
        *(f"--network={choose().pods}", f"--machine-network={machine_network}", *servers),
    ]
    inherited = (machine_network, lock.fileno())
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=inherited, start_new_session=True)
    select.select([termination.fileno(), os.pidfd_open(process.pid)], [], [])
    if process.poll() is None:
        _kill(process)
    else:
        raise TestbedError("a server of the cluster exited")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the namespaces' process 1. The kernel reaps it after all others in them; then its parent exits too."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    for pid in map(int, children) if children else [process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
