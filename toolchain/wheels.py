"""Tools and libraries that come as wheels from PyPI, pinned and hashed in ``requirements/``."""

import sys
from collections.abc import Callable
from pathlib import Path

from toolchain import uv
from toolchain.recipe import Recipe, not_found
from toolchain.repository import lock, pinned_version
from toolchain.steps import Argv, Steps


def from_wheel(name: str, executable: str, find: Callable[[], Path | None] = not_found) -> Recipe:
    """Return the recipe of the tool that ``requirements/NAME.txt`` pins."""
    return _recipe(name, pinned_version(lock(name)), executable, find)


def from_wheels(name: str, package: str) -> Recipe:
    """Return the recipe of one package and all that ``requirements/NAME.txt`` pins with it, for this Python version."""
    major, minor, *_ = sys.version_info
    return _recipe(name, f"python{major}.{minor}", package, not_found)


def _recipe(name: str, version: str, file: str, find: Callable[[], Path | None]) -> Recipe:
    requirements = lock(name)

    def build(result: Path, steps: Steps) -> None:
        options: Argv = [
            "--python",
            sys.executable,
            "--no-deps",
            "--require-hashes",
            "--target",
            result,
            "-r",
            requirements,
        ]
        uv.install("install from PyPI", options, steps)

    return Recipe(name, version, file, build, (requirements.read_text(encoding="utf-8"),), find=find)
