"""A Python that runs on this machine, reduced to what a program needs and made fit for another place.

In the image it lies below ``/usr``. One that somebody compiled carries debugging information and the directory that
it was compiled for; both are taken out. A distribution's is taken as it is.
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
# Left out: what tests, teaches, compiles, installs, draws windows or edits lines at a terminal.
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
_QUESTION = """
import json, sys, sysconfig
print(json.dumps({
    "executable": sys._base_executable, "prefix": sys.base_prefix, "version": list(sys.version_info[:3]),
    "build": sys.version, "library": sysconfig.get_path("stdlib"), "source": sysconfig.get_config_var("abs_srcdir"),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """What a Python says about itself; one of a virtual environment speaks of the Python that made it."""

    executable: Path
    prefix: Path
    library: Path
    version: str
    build: str
    source: str

    @property
    def name(self) -> str:
        """``python3.11``: its program, and the directory of its library."""
        return f"python{self.version.rpartition('.')[0]}"

    @property
    def is_compiled_here(self) -> bool:
        """Whether somebody compiled it for a directory of this machine."""
        return str(self.prefix) != PREFIX

    @property
    def site(self) -> str:
        """Where, below an environment's directory, its packages are."""
        return f"lib/{self.name}/site-packages"

    def modules(self) -> Iterator[Path]:
        """The files of its library that are wanted, relative to it."""
        for directory, packages, files in os.walk(self.library):
            packages[:] = sorted(filter(_is_wanted_package, packages))
            here = Path(directory).relative_to(self.library)
            yield from (here / file for file in sorted(files) if _is_wanted_module(Path(file)))

    def objects(self) -> list[Path]:
        """Its program and extension modules, where they are now."""
        return [self.executable, *(self.library / module for module in self.modules() if module.suffix == ".so")]


def ask(python: Path) -> Interpreter:
    """The interpreter behind a command."""
    try:
        printed = subprocess.run([python, "-I", "-c", _QUESTION], capture_output=True, text=True, check=True).stdout
        facts = json.loads(printed)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise TestbedError(f"{python} is no Python that could be asked what it is: {error}") from error
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


def _is_wanted_package(name: str) -> bool:
    return name not in _PACKAGES and not name.startswith("config-")


def _is_wanted_module(file: Path) -> bool:
    name = file.name.partition(".")[0]
    match file.suffix:
        case ".so":
            return name not in _EXTENSIONS and not name.startswith(_EXTENSIONS_OF_TESTS)
        case ".py":
            return name not in _MODULES
        case _:
            return file.name == "LICENSE.txt"


def put(interpreter: Interpreter, root: Path, steps: Steps) -> None:
    """Copy program and library to where they belong below a root directory; libraries are somebody else's concern."""
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
        settings.write_text(_reduced(settings), encoding="utf-8")
    neutralise(interpreter, [program, *library.rglob("*.so")], steps)


def _reduced(settings: Path) -> str:
    """The settings that it was compiled with, but none that names a place: where nothing is compiled, none is used."""
    then = runpy.run_path(str(settings))["build_time_vars"]
    kept = {name: value for name, value in sorted(then.items()) if "/" not in str(value)}
    return "build_time_vars = {\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in kept.items()) + "}\n"


def neutralise(interpreter: Interpreter, objects: list[Path], steps: Steps) -> None:
    """Take out of its own copied objects what only the machine knows on which it was compiled."""
    if not (interpreter.is_compiled_here and objects):
        return
    steps.run("strip the interpreter", ["strip", "--strip-unneeded", *sorted(objects)])
    for file in objects:
        content = file.read_bytes()
        for place in filter(None, (str(interpreter.prefix), interpreter.source)):
            content = without_place(content, place)
        file.write_bytes(content)


def without_place(content: bytes, place: str) -> bytes:
    """An object that no longer names the directories above a place.

    Equally long, for slashes in a row count as one. The place's last name stays: a linker lets other texts share the
    end of a path, and a version is often there.
    """
    above = str(Path(place).parent).rstrip("/").encode()
    return content.replace(above + b"/", b"/" * (len(above) + 1)) if above else content


def is_own(interpreter: Interpreter, library: Path) -> bool:
    """Whether a library was compiled together with the interpreter."""
    return interpreter.is_compiled_here and library.is_relative_to(interpreter.prefix)
