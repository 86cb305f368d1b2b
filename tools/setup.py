"""Prepare this working copy: the virtual environment, its locked dependencies, the project itself, real servers.

``tools/bootstrap`` runs it with the Python that the environment is made from; it needs only the standard library. Each
part leaves a stamp of what it was made from and costs nothing while that is unchanged.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable

from testbed.recipes import provide, require_packages
from toolchain import cache, golang, uv
from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY, VENV_PYTHON, lock
from toolchain.steps import Argv, Steps

_VENV = VENV_PYTHON.parent.parent
_LOCK = lock("dev")


def main(servers: list[str]) -> int:
    """Prepare everything, then print which servers are used."""
    try:
        require_packages(servers)
        _prepare_environment()
        for name, path in provide(servers).items():
            print(f"{name}: {path}")
        golang.delete_caches()
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the next run continues from here", file=sys.stderr)
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
    """Create the environment from nothing, so that no package outlives its line in the lock."""
    steps.log.unlink(missing_ok=True)
    uv.run("create .venv", ["venv", "--quiet", "--clear", "--python", sys.executable, _VENV], steps)
    options: Argv = ["--python", VENV_PYTHON, "--compile-bytecode", "--require-hashes", "--requirement", _LOCK]
    uv.install("install the locked dependencies", options, steps)


def _install_project(steps: Steps) -> None:
    options: Argv = ["--python", VENV_PYTHON, "--no-deps", "--no-build-isolation", "--editable", REPOSITORY]
    uv.install("install the project", options, steps)


def _once(stamp: str, made_from: Iterable[str], make: Callable[[], None]) -> None:
    """Make a part of the environment unless it was made from exactly this already."""
    file = _VENV / stamp
    digest = _digest(made_from)
    if not file.exists() or file.read_text(encoding="utf-8") != digest:
        make()
        file.write_text(digest, encoding="utf-8")


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
