"""uv, the installer of Python packages: pinned by ``requirements/uv.txt``, and itself installed with pip."""

import os
import sys
from pathlib import Path

from toolchain import cache
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY, lock, pinned_version
from toolchain.steps import Argv, Steps


def run(step: str, arguments: Argv, steps: Steps) -> None:
    """Run one uv command as a step."""
    steps.run(step, [cache.ensure(UV), *arguments], cwd=REPOSITORY, environment=environment())


def install(step: str, options: Argv, steps: Steps) -> None:
    """Install packages with ``uv pip install``."""
    run(step, ["pip", "install", "--quiet", *options], steps)


def environment() -> dict[str, str]:
    """Return uv's environment: our own download cache, no other Pythons, and pip's index."""
    index = os.environ.get("PIP_INDEX_URL")
    return {
        **({"UV_DEFAULT_INDEX": index} if index else {}),
        **os.environ,
        "UV_CACHE_DIR": str(cache.root() / "uv-cache"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_CONFIG": "1",
    }


def _build(result: Path, steps: Steps) -> None:
    pip = result.with_name("pip")
    steps.run("create an environment with pip", [sys.executable, "-m", "venv", pip])
    install: Argv = [pip / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    steps.run("install from PyPI", [*install, "--require-hashes", "--target", result, "-r", _REQUIREMENTS])


_REQUIREMENTS = lock("uv")
UV = Recipe("uv", pinned_version(_REQUIREMENTS), "bin/uv", _build, (_REQUIREMENTS.read_text(encoding="utf-8"),))
