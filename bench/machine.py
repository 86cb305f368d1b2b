"""The machine on which figures are taken, and how busy it was already."""

import os
import platform
from pathlib import Path


def machine() -> str:
    """One sentence."""
    return f"{os.cpu_count()} cores of {_processor()}, load {os.getloadavg()[0]:.1f} at first."


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
