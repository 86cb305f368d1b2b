"""Assembling images by command."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from toolchain.repository import REPOSITORY, VENV_PYTHON

REVISION = "a1b2c3"


def assemble(
    *options: str | Path,
    directory: Path = REPOSITORY,
    umask: int = 0o022,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command in a directory and return its output."""
    result = subprocess.run(
        [VENV_PYTHON, "-m", "deploy.image.assemble", *options],
        cwd=directory,
        env={**os.environ, **(environment or {})},
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
