"""The layers of images of Python programs: Python with the locked packages, programs of the toolchain, and the product.

All but the last are large and change rarely; they are kept in the per-user cache, keyed by all their inputs. The
product layer is small and built each time.
"""

import hashlib
import shutil
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

from deploy.image.interpreter import PREFIX, Interpreter, is_own, put, strip_paths
from toolchain import cache, debian, elf, golang, oci, uv
from toolchain.errors import TestbedError
from toolchain.oci import NONROOT, Directory, File, Layer, Link, Node, read_layer, tree_of, write_layer
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY, VENV_PYTHON
from toolchain.steps import Argv, Steps

VENV: Final = "opt/venv"
DATA: Final = "var/lib/governor"
CERTIFICATES: Final = "etc/ssl/certs/ca-certificates.crt"
_LOCK = REPOSITORY / "requirements" / "runtime.txt"
_LAYER = "layer.tar"
# Mozilla's authorities as packaged by Debian; the bundle in /etc may contain local ones.
_AUTHORITIES = Path("/usr/share/ca-certificates/mozilla")
# Read by compilers and type checkers, never at run time.
_SOURCES_OF_OTHERS = {".c", ".h", ".pxd", ".pxi", ".pyi", ".pyx"}
# Records of an installer, with paths and digests of this machine.
_NOTES_OF_INSTALLERS = {"direct_url.json", "INSTALLER", "RECORD", "REQUESTED"}
_FILES = {
    "etc/passwd": f"root:x:0:0::/:/sbin/nologin\nnonroot:x:{NONROOT}:{NONROOT}::/tmp:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{NONROOT}:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def environment() -> dict[str, str]:
    """Return the environment variables of an image's Python program."""
    return {
        "PATH": f"/{VENV}/bin:{PREFIX}/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "SSL_CERT_FILE": f"/{CERTIFICATES}",
    }


def skeleton() -> dict[str, Node]:
    """Return the files of every image: accounts, name resolution, and mount points for runtimes."""
    files: dict[str, Node] = {path: File(text.encode()) for path, text in _FILES.items()}
    return {**files, "tmp": Directory(0o1777), "proc": Directory(), "sys": Directory(), "dev": Directory()}


def python_layer(interpreter: Interpreter) -> Layer:
    """Return the layer with the interpreter, the locked packages, their shared libraries and trusted authorities."""
    debian.require(["ca-certificates", *(["binutils"] if interpreter.is_compiled_here else [])])

    def build(result: Path, steps: Steps) -> None:
        root = result.with_name("root")
        put(interpreter, root, steps)
        site = root / VENV / interpreter.site
        install_locked(interpreter, site, steps)
        libraries = _put_libraries(interpreter, root, site, steps)
        compile_all(interpreter, root, [root / PREFIX[1:], site], steps)
        tree = {
            **skeleton(),
            **_environment_of(interpreter),
            CERTIFICATES: File(_bundle()),
            **tree_of(root),
            **libraries,
        }
        write_layer("python", tree, result / _LAYER)

    recipe = Recipe("image-python", interpreter.version, _LAYER, build, inputs=_inputs(interpreter))
    return read_layer("python", cache.ensure(recipe))


def program_layer(recipe: Recipe) -> Layer:
    """Return the layer with a static program of the toolchain, which is built first if it is missing."""
    with golang.caches_in_use():
        program = cache.provide(recipe)

    def build(result: Path, _: Steps) -> None:
        tree = {f"{PREFIX[1:]}/bin/{program.name}": File(program, executable=True)}
        write_layer(recipe.name, tree, result / _LAYER)

    layer = Recipe(f"image-{recipe.name}", recipe.version, _LAYER, build, inputs=recipe.inputs)
    return read_layer(recipe.name, cache.ensure(layer))


@dataclass(frozen=True)
class Product:
    """The layer with the project's wheel, and the wheel's metadata."""

    layer: Layer
    metadata: Message


def product_layer(interpreter: Interpreter, scratch: Path, steps: Steps) -> Product:
    """Build the project's wheel and return its layer, with the mount point of the data directory."""
    build: Argv = [VENV_PYTHON, "-m", "hatchling", "build", "--target", "wheel", "--directory", scratch / "wheel"]
    steps.run("build the wheel", build, cwd=REPOSITORY, environment=reproducible())
    (wheel,) = (scratch / "wheel").glob("*.whl")
    site = scratch / "product" / VENV / interpreter.site
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (information,) = site.glob("*.dist-info")
    compile_all(interpreter, scratch / "product", [site], steps)
    commands = _commands(information / "entry_points.txt")
    tree = {**tree_of(scratch / "product"), **commands, DATA: Directory(0o750, NONROOT)}
    metadata = Parser().parsestr((information / "METADATA").read_text(encoding="utf-8"))
    return Product(write_layer("product", tree, scratch / "product.tar"), metadata)


def compile_all(interpreter: Interpreter, root: Path, directories: Iterable[Path], steps: Steps) -> None:
    """Compile to bytecode that is never checked against its source and contains paths in the image.

    One process compiles in order: the output depends on the strings that the process has interned before.
    """
    mode = ("--invalidation-mode", "unchecked-hash")
    places: Argv = ["-s", root, "-p", "/", *directories]
    command: Argv = [interpreter.executable, "-s", "-P", "-m", "compileall", "-q", "-f", *mode, *places]
    steps.run("compile to bytecode", command, environment=reproducible())


def install_locked(interpreter: Interpreter, site: Path, steps: Steps) -> None:
    """Install the locked packages into a directory, without what only installers and compilers read."""
    place: Argv = ["--python", interpreter.executable, "--target", site, "--link-mode", "copy"]
    locked = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", _LOCK)
    uv.install("install the locked packages", [*place, *locked], steps)
    shutil.rmtree(site / "bin", ignore_errors=True)
    notes = [file for name in _NOTES_OF_INSTALLERS for file in site.glob(f"*.dist-info/{name}")]
    sources = [file for suffix in _SOURCES_OF_OTHERS for file in site.rglob(f"*{suffix}")]
    for file in (*notes, *sources):
        file.unlink()


def _put_libraries(interpreter: Interpreter, root: Path, site: Path, steps: Steps) -> dict[str, Node]:
    """Return the shared libraries by path in the image, without build paths if compiled with the interpreter."""
    objects = [*interpreter.objects(), *(file for file in sorted(site.rglob("*.so*")) if elf.is_elf(file))]
    libraries = {path[1:]: file for path, file in elf.closure(objects, own=site).items()}
    own = {path: file for path, file in libraries.items() if is_own(interpreter, file)}
    copies = {path: Path(shutil.copy(file, root.with_name(file.name))) for path, file in own.items()}
    strip_paths(interpreter, list(copies.values()), steps)
    return {path: File(file, executable=True) for path, file in {**libraries, **copies}.items()}


def _environment_of(interpreter: Interpreter) -> dict[str, Node]:
    """Return a virtual environment, the only package directory that every distribution's Python uses."""
    settings = f"home = {PREFIX}/bin\ninclude-system-site-packages = false\nversion = {interpreter.version}\n"
    program = Link(f"{PREFIX}/bin/{interpreter.name}")
    return {f"{VENV}/pyvenv.cfg": File(settings.encode()), f"{VENV}/bin/python3": program}


def _commands(entry_points: Path) -> dict[str, Node]:
    """Return the wheel's console scripts, which need no shell."""
    sections = ConfigParser(delimiters="=")
    sections.read(entry_points, encoding="utf-8")
    commands = sections["console_scripts"].items()
    return {f"{VENV}/bin/{name}": File(_command(*target.split(":")), executable=True) for name, target in commands}


def _command(module: str, function: str) -> bytes:
    return f"#!/{VENV}/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n".encode()


def _bundle() -> bytes:
    certificates = sorted(_AUTHORITIES.glob("*.crt"))
    if not certificates:
        raise TestbedError(f"{_AUTHORITIES} has no certificates: install Debian's package ca-certificates")
    return b"".join(file.read_bytes().rstrip(b"\n") + b"\n" for file in certificates)


def _inputs(interpreter: Interpreter) -> tuple[str, ...]:
    """Return the cache key's inputs. The machine's libraries are compared by size and modification time."""
    libraries = {**elf.closure(interpreter.objects()), "": interpreter.executable}.values()
    states = [(file, file.stat()) for file in sorted(set(libraries))]
    programs = [Path(__file__), Path(__file__).with_name("interpreter.py"), Path(elf.__file__), Path(oci.__file__)]
    return (
        str(interpreter.executable),
        interpreter.build,
        _LOCK.read_text(encoding="utf-8"),
        hashlib.sha256(_bundle()).hexdigest(),
        *(f"{file} {state.st_size} {state.st_mtime_ns}" for file, state in states),
        *(program.read_text(encoding="utf-8") for program in programs),
    )


def reproducible() -> dict[str, str]:
    """Return the environment of reproducible builds."""
    return {"PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "1580601600", "LC_ALL": "C.UTF-8"}
