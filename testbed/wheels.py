"""Tools that come as a wheel from PyPI, pinned and hashed in ``requirements/``."""

from collections.abc import Callable
from pathlib import Path

from testbed.errors import TestbedError
from testbed.recipe import Recipe, nowhere
from testbed.steps import Argv, Steps

REPOSITORY = Path(__file__).resolve().parent.parent
VENV_PYTHON = REPOSITORY / ".venv" / "bin" / "python"


def pinned_version(requirements: Path) -> str:
    """The version of the one package that a requirements file pins."""
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.lstrip().startswith("#"):
            return line.split("==")[1].split()[0]
    raise TestbedError(f"{requirements} pins nothing: run `make lock`")


def from_wheel(name: str, executable: str, find: Callable[[], Path | None] = nowhere) -> Recipe:
    """The recipe of the tool that ``requirements/NAME.txt`` pins."""
    requirements = REPOSITORY / "requirements" / f"{name}.txt"

    def build(result: Path, steps: Steps) -> None:
        install: Argv = [VENV_PYTHON, "-m", "pip", "install", "--no-deps", "--require-hashes", "--target", result]
        steps.run("install from PyPI", [*install, "-r", requirements])

    inputs = (requirements.read_text(encoding="utf-8"),)
    return Recipe(name, pinned_version(requirements), executable, build, inputs, find=find)
