"""Write ``requirements/*.txt`` from ``pyproject.toml``: every package pinned and hashed, no index address.

Versions already pinned stay unless ``pyproject.toml`` no longer allows them; delete a file to move all of its pins.
"""

import sys

from toolchain import cache, uv
from toolchain.errors import TestbedError
from toolchain.steps import Steps

_COMPILE = ("pip", "compile", "--universal", "--python-version", "3.11", "--generate-hashes", "--no-header")
_SOURCES = {
    "runtime": ("pyproject.toml",),
    "dev": ("pyproject.toml", "--group", "dev", "--constraints", "requirements/runtime.txt"),
    "bench": ("--group", "bench", "--constraints", "requirements/runtime.txt"),
    "go": ("--group", "go"),
    "helm": ("--group", "helm"),
    "uv": ("--group", "uv"),
}


def main() -> int:
    """Compile every lock."""
    try:
        steps = Steps("lock", cache.log_of("lock"))
        for name, sources in _SOURCES.items():
            lock = f"requirements/{name}.txt"
            uv.run(lock, [*_COMPILE, *sources, "--output-file", lock], steps)
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
