"""The per-user cache of built tools: one directory per recipe, complete or absent.

A tool is built in a scratch directory beside its place and renamed into it, under a lock per recipe: two runs at
once build once, and an interrupted build leaves nothing that looks finished.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from toolchain.recipe import Recipe
from toolchain.steps import Steps


def root() -> Path:
    """Return the directory of everything built."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "runtime-governor"


def log_of(name: str) -> Path:
    """Return the log file of a build's steps."""
    return root() / "logs" / f"{name}.log"


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock against every other run of this user; a step that outlives this process holds it too."""
    with _open_lock(name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: waiting for another run that works on it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file.fileno(), True)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def _open_lock(name: str) -> IO[str]:
    path = root() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8")


def executable_of(recipe: Recipe) -> Path:
    """Return the path of the recipe's executable once it is built."""
    return root() / recipe.key / recipe.executable


def provide(recipe: Recipe) -> Path:
    """Return a suitable executable of this machine, or the recipe's own."""
    return recipe.find() or ensure(recipe)


def ensure(recipe: Recipe) -> Path:
    """Return the recipe's executable from the cache; build it if it is missing."""
    executable = executable_of(recipe)
    if not executable.exists():
        with locked(recipe.key):
            if not executable.exists():  # the run that we waited for may have built it
                _build(recipe)
    return executable


def _build(recipe: Recipe) -> None:
    place = root() / recipe.key
    log = log_of(recipe.key)
    log.unlink(missing_ok=True)
    _clear_abandoned(recipe.key)
    with tempfile.TemporaryDirectory(dir=root(), prefix=f".{recipe.key}-") as scratch:
        result = Path(scratch, "result")
        result.mkdir()
        recipe.build(result, Steps(f"{recipe.name} {recipe.version}", log, Path(scratch)))
        shutil.rmtree(place, ignore_errors=True)  # an entry whose executable has gone is no entry
        result.rename(place)


def _clear_abandoned(held: str) -> None:
    """Remove the scratch directories of killed builds: those whose lock is ours or free."""
    for scratch in root().glob(".*-*"):
        key = scratch.name[1:].rpartition("-")[0]
        if key == held or _is_free(key):
            shutil.rmtree(scratch, ignore_errors=True)


def _is_free(name: str) -> bool:
    with _open_lock(name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
