"""Prepare this working copy: the virtual environment, its locked dependencies, the project itself, real servers.

Run by ``tools/bootstrap`` with the Python that makes the environment; needs only the standard library. What is
already as it should be costs nothing: each part leaves a stamp of what it was made from.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable

from testbed.recipes import provide, require_packages
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.steps import Steps
from toolchain.wheels import REPOSITORY, VENV_PYTHON

_VENV = VENV_PYTHON.parent.parent
_LOCK = REPOSITORY / "requirements" / "dev.txt"
_PIP = (VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check")


def main(servers: list[str]) -> int:
    """Prepare everything, then say which servers are used."""
    try:
        require_packages(servers)
        _prepare_environment()
        for name, path in provide(servers).items():
            print(f"{name}: {path}")
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


def _prepare_environment() -> None:
    name = f"venv-{_digest([str(REPOSITORY)])}"
    steps = Steps("virtual environment", cache.log_of(name))
    with cache.locked(name):
        _once(".dependencies", [sys.version, _LOCK.read_text(encoding="utf-8")], lambda: _install_dependencies(steps))
        pyproject = REPOSITORY / "pyproject.toml"
        _once(".project", [pyproject.read_text(encoding="utf-8")], lambda: _install_project(steps))


def _install_dependencies(steps: Steps) -> None:
    """From nothing, so that no package outlives its line in the lock."""
    steps.log.unlink(missing_ok=True)
    steps.run("create .venv", [sys.executable, "-m", "venv", "--clear", _VENV])
    steps.run("install the locked dependencies", [*_PIP, "--require-hashes", "--requirement", _LOCK])


def _install_project(steps: Steps) -> None:
    steps.run("install the project", [*_PIP, "--no-deps", "--no-build-isolation", "--editable", REPOSITORY])


def _once(stamp: str, made_from: Iterable[str], make: Callable[[], None]) -> None:
    """Make a part of the environment unless it was made from just this already."""
    file = _VENV / stamp
    digest = _digest(made_from)
    if not file.exists() or file.read_text(encoding="utf-8") != digest:
        make()
        file.write_text(digest, encoding="utf-8")


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
