"""Tools and libraries that come as wheels from PyPI, pinned and hashed in ``requirements/``."""

import sys
from collections.abc import Callable
from pathlib import Path

from toolchain.errors import TestbedError
from toolchain.recipe import Recipe, nowhere
from toolchain.steps import Argv, Steps

REPOSITORY = Path(__file__).resolve().parent.parent
VENV_PYTHON = REPOSITORY / ".venv" / "bin" / "python"


def pinned_version(requirements: Path) -> str:
    """Return the version of the one package that a requirements file pins."""
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.lstrip().startswith("#"):
            return line.split("==")[1].split()[0]
    raise TestbedError(f"{requirements} pins nothing: run `make lock`")


def from_wheel(name: str, executable: str, find: Callable[[], Path | None] = nowhere) -> Recipe:
    """Return the recipe of the tool that ``requirements/NAME.txt`` pins."""
    return _recipe(name, pinned_version(_requirements(name)), executable, find)


def from_wheels(name: str, package: str) -> Recipe:
    """Return the recipe of a package and everything that ``requirements/NAME.txt`` pins with it."""
    major, minor, *_ = sys.version_info
    return _recipe(name, f"python{major}.{minor}", package, nowhere)


def _recipe(name: str, version: str, file: str, find: Callable[[], Path | None]) -> Recipe:
    requirements = _requirements(name)

    def build(result: Path, steps: Steps) -> None:
        install: Argv = [VENV_PYTHON, "-m", "pip", "install", "--no-deps", "--require-hashes", "--target", result]
        steps.run("install from PyPI", [*install, "-r", requirements])

    return Recipe(name, version, file, build, (requirements.read_text(encoding="utf-8"),), find=find)


def _requirements(name: str) -> Path:
    return REPOSITORY / "requirements" / f"{name}.txt"
