"""What a figure depends on besides the code: versions and the machine."""

import platform
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Final

from bench.machine import machine
from testbed.kube.programs import VERSION

_SHARED: Final = ("aiohttp", "msgspec", "uvloop")
_OTHERS: Final = ("kubernetes-asyncio", "lightkube", "httpx2")


def facts(packages: Path) -> str:
    """One sentence for each kind of fact; ``packages`` is where those of the others are."""
    found = {each.name.lower().replace("_", "-"): each.version for each in distributions(path=[str(packages)])}
    versions = [f"Kubernetes {VERSION}", f"Python {platform.python_version()}"]
    versions += [f"{name} {version(name)}" for name in _SHARED]
    versions += [f"{name} {found[name]}" for name in _OTHERS]
    return f"{', '.join(versions)}. {machine()}"
