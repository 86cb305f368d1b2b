"""The per-user cache of built tools: one directory per recipe, complete or absent.

A tool is built in a scratch directory beside its final place and renamed into it, under a lock per recipe: two runs
at once build it once, and an interrupted build leaves nothing that looks finished.
"""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from toolchain.recipe import Recipe
from toolchain.steps import Steps


def root() -> Path:
    """Return the directory that holds everything built."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "runtime-governor"


def log_of(name: str) -> Path:
    """Return the log file of one piece of work."""
    return root() / "logs" / f"{name}.log"


@contextmanager
def locked(name: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of that name against other runs of this user; a step that outlives this run still holds it."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with _open_lock(name) as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: waiting for another run that works on it", file=sys.stderr)
            fcntl.flock(file, kind)
        os.set_inheritable(file.fileno(), True)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def locked_if_free(name: str) -> Iterator[bool]:
    """Hold the lock of that name and yield True, or yield False if another run holds it."""
    with _open_lock(name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _open_lock(name: str) -> IO[str]:
    path = root() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8")


def executable_of(recipe: Recipe) -> Path:
    """Return the path of the recipe's executable, built or not."""
    return root() / recipe.key / recipe.executable


def provide(recipe: Recipe) -> Path:
    """Return a suitable executable of this machine, or else the recipe's own."""
    return recipe.find() or ensure(recipe)


def ensure(recipe: Recipe) -> Path:
    """Return the recipe's executable from the cache, and build it first if it is missing."""
    executable = executable_of(recipe)
    if not executable.exists():
        with locked(recipe.key):
            if not executable.exists():  # another run may have built it meanwhile
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
        shutil.rmtree(place, ignore_errors=True)  # an entry without its executable is incomplete
        result.rename(place)


def _clear_abandoned(held: str) -> None:
    """Remove the scratch directories of killed builds: those whose lock is free, or held by this run."""
    for scratch in root().glob(".*-*"):
        key = scratch.name[1:].rpartition("-")[0]
        with nullcontext(True) if key == held else locked_if_free(key) as free:
            if free:
                shutil.rmtree(scratch, ignore_errors=True)
