"""What a recipe is: how one tool is found on the machine, or else built."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolchain.steps import Steps


def nowhere() -> Path | None:
    """Return None: the search for a tool that is never taken from this machine."""
    return None


@dataclass(frozen=True)
class Recipe:
    """One tool of one version.

    ``build`` fills an empty directory, which may be renamed afterwards; ``inputs`` are all facts that shape its
    result, so that a changed recipe is another cache entry; ``packages`` are Debian packages that it needs;
    ``find`` returns a fitting executable that the machine already has.
    """

    name: str
    version: str
    executable: str
    build: Callable[[Path, Steps], None]
    inputs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    find: Callable[[], Path | None] = nowhere

    @property
    def key(self) -> str:
        """Return the name of the cache entry: tool, version and a digest of the recipe."""
        text = "\0".join((self.name, self.version, self.executable, *self.inputs))
        return f"{self.name}-{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
