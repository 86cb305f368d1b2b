"""The machine on which a benchmark runs, and its load."""

import os
import platform
from pathlib import Path


def machine() -> str:
    """Return a sentence with processor, cores and initial load."""
    return f"{os.cpu_count()} cores of {_processor()}, load {load():.1f} at first."


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
