"""This working copy: its root, its virtual environment, and its locks."""

from pathlib import Path

from toolchain.errors import TestbedError

REPOSITORY = Path(__file__).resolve().parent.parent
VENV_PYTHON = REPOSITORY / ".venv" / "bin" / "python"


def lock(name: str) -> Path:
    """Return the requirements file of that name."""
    return REPOSITORY / "requirements" / f"{name}.txt"


def pinned_version(requirements: Path) -> str:
    """Return the version of the one package that a requirements file pins."""
    for line in requirements.read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.lstrip().startswith("#"):
            return line.split("==")[1].split()[0]
    raise TestbedError(f"{requirements} pins nothing: run `make lock`")
