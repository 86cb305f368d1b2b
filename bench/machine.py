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


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
