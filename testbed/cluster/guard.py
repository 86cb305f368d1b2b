"""``python -m testbed.cluster.guard``: hold the one cluster that a machine can have, and leave nothing of it behind.

It inherits the machine-wide lock, starts ``inside`` in namespaces of its own, and when it is told to end, or its own
starter has gone, it ends them and removes what is not theirs. If it is itself killed, the kernel ends the namespaces
with all processes, mounts and devices in them, and the next guard or ``make testbed-down`` removes the rest.
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

from testbed.cluster import turn
from testbed.cluster.leftovers import make_cgroups, sweep
from testbed.cluster.network import choose
from testbed.cluster.places import PRIVATE
from testbed.cluster.turn import Holder
from toolchain.errors import TestbedError

_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
# A shell as the first process takes the orphans that shims leave; a last command alone it would replace itself with.
_FIRST_PROCESS = ("sh", "-c", '"$@"; exit $?', "sh")


def main() -> int:
    """Hold the cluster until told to end."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster.guard")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of the machine-wide lock")
    parser.add_argument("--name", required=True, help="who wants the cluster, for those who wait for it")
    parser.add_argument("--directory", type=Path, required=True, help="all files of the cluster; removed at the end")
    parser.add_argument("--starter", type=int, help="the process with which it ends; without, it lasts")
    parser.add_argument("inside", nargs="*", help="further arguments of what is started in the namespaces")
    given = parser.parse_args()
    told = _told_to_end()
    if given.starter and os.getppid() != given.starter:  # it went before its end could be noticed
        return 0
    with os.fdopen(given.lock, "r+", encoding="utf-8") as lock:
        sweep(lock)
        made = tuple(place for place in PRIVATE if not Path(place).exists())
        holder = Holder(given.name, os.getpid(), str(given.directory), made, lasting=given.starter is None)
        turn.write(lock, holder)
        try:
            _hold(holder, lock, told, given.inside)
        except TestbedError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            sweep(lock)
    return 0


def _told_to_end() -> socket.socket:
    """What can be read as soon as somebody tells this process to end; nothing is interrupted by it."""
    told, telling = socket.socketpair()
    telling.setblocking(False)
    signal.set_wakeup_fd(telling.detach(), warn_on_full_buffer=False)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    return told


def _hold(holder: Holder, lock: IO[str], told: socket.socket, inside: Sequence[str]) -> None:
    """Run the namespaces until told to end them; as long as anything in them lives, they hold the lock too."""
    Path(holder.directory).mkdir()
    make_cgroups()
    machine_network = os.open("/proc/self/ns/net", os.O_RDONLY)
    argv = [
        *("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_NAMESPACES, *_FIRST_PROCESS),
        *(sys.executable, "-m", "testbed.cluster.inside", f"--directory={holder.directory}"),
        *(f"--network={choose().pods}", f"--machine-network={machine_network}", *inside),
    ]
    inherited = (machine_network, lock.fileno())
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=inherited, start_new_session=True)
    select.select([told.fileno(), os.pidfd_open(process.pid)], [], [])
    if process.poll() is None:
        _end(process)
    else:
        raise TestbedError("the cluster has ended by itself")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the first process of the namespaces: it has ended when all others have, and then its parent ends too."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
    for pid in map(int, children) if children else [process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
