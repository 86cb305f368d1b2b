"""Recipes: how one tool is found on the machine, or else built."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolchain.steps import Steps


def not_found() -> Path | None:
    """Return nothing: for tools that are never taken from the machine."""
    return None


@dataclass(frozen=True)
class Recipe:
    """One tool of one version."""

    name: str
    version: str
    executable: str
    build: Callable[[Path, Steps], None]
    """Fills an empty directory, which is renamed afterwards."""
    inputs: tuple[str, ...] = ()
    """Everything that shapes the result, so that a changed recipe is another cache entry."""
    packages: tuple[str, ...] = ()
    """Debian packages that the build or the tool needs."""
    find: Callable[[], Path | None] = not_found
    """Returns a suitable executable that the machine already has."""
    fetch: Callable[[Path, Steps], None] | None = None
    """Downloads, with the help of a scratch directory, what the build would otherwise wait for."""

    @property
    def key(self) -> str:
        """The name of the cache entry: tool, version and a digest of the recipe."""
        text = "\0".join((self.name, self.version, self.executable, *self.inputs))
        return f"{self.name}-{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
