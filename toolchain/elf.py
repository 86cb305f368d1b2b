"""The libraries without which programs and extension modules do not load, as the dynamic loader itself names them.

Nothing is guessed from names: ``ldd`` lets the loader resolve every object, and an object that it cannot resolve is
an error. Only the GNU C library's loader is understood.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.errors import TestbedError

_LIBC = "libc.so.6"
# The C library opens it only when a thread is made to end, and ends the whole process if it is not there.
_OPENED_BY_LIBC = "libgcc_s.so.1"


@dataclass(frozen=True)
class Resolved:
    """What the loader said: libraries by the name under which they are wanted, others by their own path."""

    libraries: dict[str, set[Path]] = field(default_factory=dict)
    fixed: set[Path] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


def is_elf(path: Path) -> bool:
    """Whether the file is a program, a library or an extension module."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def is_static(program: Path) -> bool:
    """Whether this is a program, and one that needs no library at all."""
    return is_elf(program) and parse(_ldd([program])) == Resolved()


def closure(objects: Iterable[Path], own: Path | None = None) -> dict[str, Path]:
    """Path in the image of each file that the objects need: the loader where they look for it, libraries beside libc.

    There the loader looks without being told. Libraries below ``own`` travel with the objects themselves.
    """
    resolved = parse(_ldd([*objects, _opened(_OPENED_BY_LIBC)]))
    libraries = {name: _one(name, files) for name, files in resolved.libraries.items()}
    libraries[_OPENED_BY_LIBC] = _opened(_OPENED_BY_LIBC)
    if lost := resolved.missing - libraries.keys():
        raise TestbedError(f"the dynamic loader does not find {', '.join(sorted(lost))}: install what they come from")
    if _LIBC not in libraries:
        raise TestbedError(f"no object needs {_LIBC}: only programs of the GNU C library can be put into an image")
    place = libraries[_LIBC].parent
    outside = {name: file for name, file in libraries.items() if own is None or not file.is_relative_to(own)}
    return {
        **{str(place / name): file for name, file in outside.items()},
        **{str(file): file for file in resolved.fixed},
    }


def parse(printed: str) -> Resolved:
    """Read what ``ldd`` printed about any number of objects."""
    resolved = Resolved()
    for line in printed.splitlines():
        name, arrow, found = line.strip().partition(" => ")
        path = Path((found or name).rpartition(" (0x")[0])
        if found == "not found":
            resolved.missing.add(name)
        elif arrow:
            resolved.libraries.setdefault(name, set()).add(path)
        elif line.startswith("\t/") and path.is_absolute():
            resolved.fixed.add(path)
    return resolved


def _ldd(objects: Sequence[Path]) -> str:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "LC_"))}
    result = subprocess.run(["ldd", *objects], env=surroundings, capture_output=True, text=True, check=False)
    for complaint in result.stderr.splitlines():
        if "No such file" in complaint:
            raise TestbedError(f"cannot find the libraries of a file that is not there: {complaint}")
    return result.stdout


def _one(name: str, files: set[Path]) -> Path:
    if len({file.resolve() for file in files}) > 1:
        raise TestbedError(f"{name} is wanted in several versions: {', '.join(sorted(map(str, files)))}")
    return min(files)


def _opened(name: str) -> Path:
    """Where the loader finds a library that nothing names before it is opened."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise TestbedError(f"{name} is missing; Debian's package is libgcc-s1") from error
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(Path(line.split(maxsplit=5)[5]) for line in maps if line.endswith(f"/{name}"))
