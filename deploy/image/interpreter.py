"""A Python of this machine, reduced to what a program needs and relocated to ``/usr`` in the image.

A locally compiled Python contains debugging information and its build directory; both are removed. A distribution's
Python is copied unchanged.
"""

import json
import os
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import TestbedError
from toolchain.steps import Steps

PREFIX = "/usr"
OLDEST = (3, 11)
# Excluded: tests, demos, compilers, installers, GUIs and terminal line editing.
_PACKAGES = {
    *(
        "__phello__",
        "__pycache__",
        "_pyrepl",
        "curses",
        "dbm",
        "dist-packages",
        "distutils",
        "ensurepip",
        "idlelib",
        "lib2to3",
    ),
    *("pydoc_data", "site-packages", "test", "tests", "tkinter", "turtledemo", "venv"),
}
_MODULES = {"antigravity", "sitecustomize", "this", "turtle", "turtledemo", "usercustomize"}
_EXTENSIONS = {"_curses", "_curses_panel", "_dbm", "_gdbm", "_tkinter", "nis", "ossaudiodev", "readline"}
_EXTENSIONS_OF_TESTS = ("_ctypes_test", "_test", "_xxtest", "xxlimited", "xxsubtype")
_INSPECTION = """
import json, sys, sysconfig
print(json.dumps({
    "executable": sys._base_executable, "prefix": sys.base_prefix, "version": list(sys.version_info[:3]),
    "build": sys.version, "library": sysconfig.get_path("stdlib"), "source": sysconfig.get_config_var("abs_srcdir"),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """Facts about a Python; for a virtual environment, about the Python that created it."""

    executable: Path
    prefix: Path
    library: Path
    version: str
    build: str
    source: str

    @property
    def name(self) -> str:
        """``python3.11``: the name of the program and of the library directory."""
        return f"python{self.version.rpartition('.')[0]}"

    @property
    def is_compiled_here(self) -> bool:
        """Whether it was compiled for a directory of this machine."""
        return str(self.prefix) != PREFIX

    @property
    def site(self) -> str:
        """The directory of packages, relative to a virtual environment."""
        return f"lib/{self.name}/site-packages"

    def modules(self) -> Iterator[Path]:
        """Yield the library files to copy, relative to the library."""
        for directory, packages, files in os.walk(self.library):
            packages[:] = sorted(filter(_is_included_package, packages))
            here = Path(directory).relative_to(self.library)
            yield from (here / file for file in sorted(files) if _is_included_module(Path(file)))

    def objects(self) -> list[Path]:
        """Return the paths of the program and its extension modules."""
        return [self.executable, *(self.library / module for module in self.modules() if module.suffix == ".so")]


def inspect(python: Path) -> Interpreter:
    """Run a Python and return the facts about it; raise if it cannot be put into an image."""
    try:
        printed = subprocess.run([python, "-I", "-c", _INSPECTION], capture_output=True, text=True, check=True).stdout
        facts = json.loads(printed)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise TestbedError(f"{python} is not a working Python: {error}") from error
    if tuple(facts["version"]) < OLDEST:
        raise TestbedError(f"{python} is older than {'.'.join(map(str, OLDEST))}: name a newer one with --python")
    if not Path(facts["library"], "os.py").exists():
        raise TestbedError(f"{python} has no standard library in {facts['library']}: name another with --python")
    return Interpreter(
        executable=Path(facts["executable"]).resolve(),
        prefix=Path(facts["prefix"]),
        library=Path(facts["library"]),
        version=".".join(map(str, facts["version"])),
        build=facts["build"],
        source=facts["source"] or "",
    )


def _is_included_package(name: str) -> bool:
    return name not in _PACKAGES and not name.startswith("config-")


def _is_included_module(file: Path) -> bool:
    name = file.name.partition(".")[0]
    match file.suffix:
        case ".so":
            return name not in _EXTENSIONS and not name.startswith(_EXTENSIONS_OF_TESTS)
        case ".py":
            return name not in _MODULES
        case _:
            return file.name == "LICENSE.txt"


def put(interpreter: Interpreter, root: Path, steps: Steps) -> None:
    """Copy program and standard library below a root directory; shared libraries are copied elsewhere."""
    program = root / PREFIX[1:] / "bin" / interpreter.name
    library = root / PREFIX[1:] / "lib" / interpreter.name
    for source, target in [
        (interpreter.executable, program),
        *((interpreter.library / module, library / module) for module in interpreter.modules()),
    ]:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    program.chmod(0o755)
    for settings in library.glob("_sysconfigdata*.py"):
        settings.write_text(_without_paths(settings), encoding="utf-8")
    strip_paths(interpreter, [program, *library.rglob("*.so")], steps)


def _without_paths(settings: Path) -> str:
    """Return the build settings without those that contain paths, which only compilation needs."""
    variables = runpy.run_path(str(settings))["build_time_vars"]
    kept = {name: value for name, value in sorted(variables.items()) if "/" not in str(value)}
    return "build_time_vars = {\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in kept.items()) + "}\n"


def strip_paths(interpreter: Interpreter, objects: list[Path], steps: Steps) -> None:
    """Remove debugging information and build paths from copied objects of a locally compiled interpreter."""
    if not (interpreter.is_compiled_here and objects):
        return
    steps.run("strip the interpreter", ["strip", "--strip-unneeded", *sorted(objects)])
    for file in objects:
        content = file.read_bytes()
        for directory in filter(None, (str(interpreter.prefix), interpreter.source)):
            content = without_parents(content, directory)
        file.write_bytes(content)


def without_parents(content: bytes, directory: str) -> bytes:
    """Return an object with the parents of a directory replaced by slashes.

    The length stays the same, since repeated slashes count as one. The directory's own name stays: linkers let other
    strings share the end of a path, which is often a version.
    """
    parents = str(Path(directory).parent).rstrip("/").encode()
    return content.replace(parents + b"/", b"/" * (len(parents) + 1)) if parents else content


def is_own(interpreter: Interpreter, library: Path) -> bool:
    """Return whether a library was compiled together with the interpreter."""
    return interpreter.is_compiled_here and library.is_relative_to(interpreter.prefix)
