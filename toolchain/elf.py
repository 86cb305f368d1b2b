"""The shared libraries that programs and extension modules need, as resolved by the dynamic loader.

``ldd`` lets the loader resolve every object; an unresolved library is an error. Only glibc's loader is supported.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolchain.errors import TestbedError

_LIBC = "libc.so.6"
# glibc opens it when a thread is cancelled, and aborts the process if it is missing.
_OPENED_BY_LIBC = "libgcc_s.so.1"


@dataclass(frozen=True)
class Resolved:
    """The loader's result: libraries by requested name, and objects with a fixed path, such as the loader itself."""

    libraries: dict[str, set[Path]] = field(default_factory=dict)
    fixed: set[Path] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)


def is_elf(path: Path) -> bool:
    """Return whether the file is an ELF program, library or extension module."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def is_static(program: Path) -> bool:
    """Return whether this is an ELF program that needs no shared library."""
    return is_elf(program) and parse(_ldd([program])) == Resolved()


def closure(objects: Iterable[Path], own: Path | None = None) -> dict[str, Path]:
    """Return the needed files by path in the image: the loader at its fixed path, libraries beside libc.

    The loader searches that directory by default. Libraries below ``own`` are left out: they ship with the objects.
    """
    resolved = parse(_ldd([*objects, _opened(_OPENED_BY_LIBC)]))
    libraries = {name: _one(name, files) for name, files in resolved.libraries.items()}
    libraries[_OPENED_BY_LIBC] = _opened(_OPENED_BY_LIBC)
    if missing := resolved.missing - libraries.keys():
        names = ", ".join(sorted(missing))
        raise TestbedError(f"the dynamic loader does not find {names}: install the packages that contain them")
    if _LIBC not in libraries:
        raise TestbedError(f"no object needs {_LIBC}: only programs linked with glibc can be put into an image")
    directory = libraries[_LIBC].parent
    outside = {name: file for name, file in libraries.items() if own is None or not file.is_relative_to(own)}
    return {
        **{str(directory / name): file for name, file in outside.items()},
        **{str(file): file for file in resolved.fixed},
    }


def parse(printed: str) -> Resolved:
    """Parse the output of ``ldd``."""
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
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "LC_"))}
    result = subprocess.run(["ldd", *objects], env=environment, capture_output=True, text=True, check=False)
    for line in result.stderr.splitlines():
        if "No such file" in line:
            raise TestbedError(f"cannot resolve the libraries of a missing file: {line}")
    return result.stdout


def _one(name: str, files: set[Path]) -> Path:
    if len({file.resolve() for file in files}) > 1:
        raise TestbedError(f"several versions of {name} are needed: {', '.join(sorted(map(str, files)))}")
    return min(files)


def _opened(name: str) -> Path:
    """Return the path at which the loader finds a library that is opened at run time."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        raise TestbedError(f"{name} is missing; Debian's package is libgcc-s1") from error
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(Path(line.split(maxsplit=5)[5]) for line in maps if line.endswith(f"/{name}"))
