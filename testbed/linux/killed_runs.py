"""What a killed run of the tests leaves on the machine, cleared by the next one.

Most ends with a run however that ends; what does not is found by the run's directory: processes in sessions of their
own, such as an agent's sidecars, which outlive it on purpose; file systems; cgroups of pods that had named none. The
directory itself stays for whoever wants to read its logs, until pytest has enough newer ones.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.cri.containerd import NAMESPACE
from testbed.linux.cgroups import below_hierarchies, remove

_RUNS = "pytest-of-"
# pytest says there which process uses the directory, and does not touch that of a killed one for three days.
_CLAIM = "pytest-*/.lock"
_TASKS = f"state/io.containerd.runtime.v2.task/{NAMESPACE}/*"
_ESCAPED = re.compile(r"\\(\d{3})")


def clear(runs: Path) -> None:
    """Clear what killed runs left, given the directory in which pytest keeps those of all of a user's runs."""
    if not runs.name.startswith(_RUNS):  # somebody chose another directory for a run: what is beside it is not ours
        return
    for claim in runs.glob(_CLAIM):
        if not claim.parent.is_symlink() and _is_abandoned(claim):
            _clear(claim.parent)
            claim.unlink(missing_ok=True)


def _is_abandoned(claim: Path) -> bool:
    try:
        process = claim.read_text(encoding="utf-8")
    except FileNotFoundError:  # its run has just ended
        return False
    return process != "" and not Path("/proc", process).exists()


def _clear(run: Path) -> None:
    for leader in _session_leaders(run):
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    for place in reversed(list(_mounts(run))):
        subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
    tasks = [task.name for depth in ("*/*", "*/*/*") for task in run.glob(f"{depth}/{_TASKS}")]
    remove(cgroup for task in tasks for cgroup in below_hierarchies(f"{NAMESPACE}/{task}"))


def _session_leaders(run: Path) -> Iterator[int]:
    """Those without a terminal whose command line names something of the run: nobody looks at its logs with them."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            _, _, _, session, terminal, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if session == process.name and terminal == "0" and f"{run}/".encode() in words:
            yield int(process.name)


def _mounts(run: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split()[4])
        if place.startswith(f"{run}/"):
            yield place
