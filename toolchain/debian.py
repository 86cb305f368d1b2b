"""Debian packages: installed as root, reported to other users, or unpacked without installing."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.steps import Steps

_INSTALL = ("apt-get", "install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")


def missing(packages: Iterable[str]) -> list[str]:
    """Return the packages that are not installed, in order and without duplicates."""
    return [package for package in dict.fromkeys(packages) if not _is_installed(package)]


def require(packages: Iterable[str]) -> None:
    """Install missing packages; without root, raise with the command that installs them."""
    absent = missing(packages)
    if not absent:
        return
    if not shutil.which("apt-get"):
        raise TestbedError(f"this machine has no apt-get: install the equivalents of Debian's {' '.join(absent)}")
    if os.geteuid() != 0:
        raise TestbedError(
            f"Debian packages are missing; install them with:\n  sudo {' '.join(_INSTALL[:3])} {' '.join(absent)}"
        )
    _install(absent)


def unpack(package: str, directory: Path, steps: Steps) -> None:
    """Unpack a package into a directory; installing it would start its services."""
    with cache.locked("debian-packages"):
        steps.run("update the package lists", ["apt-get", "update"])
        steps.run(f"download Debian's {package}", ["apt-get", "download", package], cwd=directory)
    (archive,) = directory.glob(f"{package}_*.deb")
    steps.run("unpack it", ["dpkg-deb", "--extract", archive, directory])
    archive.unlink()


def _is_installed(package: str) -> bool:
    if not shutil.which("dpkg-query"):
        return False
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    result = subprocess.run(query, capture_output=True, text=True, check=False)
    return result.stdout == "installed"


def _install(packages: Sequence[str]) -> None:
    steps = Steps("Debian packages", cache.log_of("debian-packages"))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with cache.locked("debian-packages"):
        steps.run("update the package lists", ["apt-get", "update"], environment=environment)
        steps.run(f"install {' '.join(packages)}", [*_INSTALL, *packages], environment=environment)
