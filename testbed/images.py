"""Images that the test bed runs in containers, built from programs of this machine.

Each function returns the archive of one image, which contains the image's name. Archives are kept in the per-user
cache; of the governor's image only the large layers are, since the product changes often.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from deploy.image.assemble import governor_image
from deploy.image.interpreter import inspect
from deploy.image.layers import VENV, compile_all, environment, python_layer, skeleton
from testbed.recipes import provide
from toolchain import cache, debian, elf, oci
from toolchain.errors import TestbedError
from toolchain.oci import (
    LOCAL,
    NONROOT,
    Archive,
    Directory,
    File,
    Image,
    Link,
    Node,
    tree_of,
    write_archive,
    write_layer,
)
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY, VENV_PYTHON
from toolchain.steps import Steps

_ARCHIVE = "image.tar"
_BUSYBOX = Path("/bin/busybox")
_APP = (REPOSITORY / "demo" / "__init__.py", REPOSITORY / "demo" / "order_app.py")

MakeImage = Callable[[Path, Steps], Image]


def governor(directory: Path) -> Archive:
    """Write the image of the current product into a directory."""
    steps = Steps("image governor", cache.log_of("image-governor"))
    with governor_image(steps) as image:
        return write_archive(image, directory / "governor.tar")


def order_app() -> Archive:
    """Return the image of the order application, by default with the ports that it uses beside a sidecar in a pod."""
    interpreter = inspect(VENV_PYTHON)
    base = python_layer(interpreter)
    name = f"{LOCAL}/order-app:1"

    def image(scratch: Path, steps: Steps) -> Image:
        package = scratch / "root" / VENV / interpreter.site / "demo"
        package.mkdir(parents=True)
        for module in _APP:
            shutil.copyfile(module, package / module.name)
        compile_all(interpreter, scratch / "root", [package], steps)
        layer = write_layer("order application", tree_of(scratch / "root"), scratch / "layer.tar")
        run = (f"/{VENV}/bin/python3", "-m", "demo.order_app")
        ports = ("--port=3000", "--dapr-port=3500")
        return Image(name, (base, layer), run, ports, environment(), volumes=("/tmp",))

    return _cached(name, image, base.digest, *(module.read_text(encoding="utf-8") for module in _APP))


def redis() -> Archive:
    """Return the image of Debian's Redis, with data in ``/data``; without a password it serves its own pod only."""
    program = provide(["redis"])["redis"].resolve()
    files = {"/usr/bin/redis-server": program, **elf.closure([program])}
    nodes: dict[str, Node] = {path[1:]: File(file, executable=True) for path, file in files.items()}
    nodes["data"] = Directory(0o750, NONROOT)
    return _single(f"{LOCAL}/redis:1", nodes, ("/usr/bin/redis-server",), volume="/data")


def busybox() -> Archive:
    """Return an image with a shell and small tools."""
    return _single(f"{LOCAL}/busybox:1", _applets(), ("/bin/sh",))


def pause() -> Archive:
    """Return the pause image, whose idle process holds a pod's namespaces."""
    return _single(f"{LOCAL}/pause:1", _applets(), ("/bin/sleep", "infinity"))


def static(name: str, binary: Path) -> Archive:
    """Return an image with one static program, in the root directory under the image's short name."""
    if not elf.is_static(binary):
        raise TestbedError(f"{binary} needs shared libraries: build it with CGO_ENABLED=0 to put it into an image")
    return _single(name, {_short(name): File(binary, executable=True)}, (f"/{_short(name)}",))


def _single(name: str, nodes: dict[str, Node], entrypoint: tuple[str, ...], volume: str = "") -> Archive:
    """Return an image with one layer."""
    tree = {**skeleton(), **nodes}

    def image(scratch: Path, _: Steps) -> Image:
        layer = write_layer(_short(name), tree, scratch / "layer.tar")
        volumes = (volume,) if volume else ()
        return Image(name, (layer,), entrypoint, directory=volume or "/", volumes=volumes)

    return _cached(name, image, *(f"{path} {_described(node)}" for path, node in tree.items()))


def _cached(name: str, make: MakeImage, *inputs: str) -> Archive:
    """Return an image's archive, built now unless it is cached for the same inputs."""

    def build(result: Path, steps: Steps) -> None:
        write_archive(make(result.parent, steps), result / _ARCHIVE)

    programs = [Path(module).read_text(encoding="utf-8") for module in (__file__, oci.__file__)]
    recipe = Recipe(
        f"image-{_short(name)}", name.rpartition(":")[2], _ARCHIVE, build, inputs=(name, *inputs, *programs)
    )
    return oci.read_archive(cache.ensure(recipe))


def _described(node: Node) -> str:
    """Return a node's description, with the digest of a file's content instead of its path."""
    if isinstance(node, File) and isinstance(node.content, Path):
        with node.content.open("rb") as content:
            return f"{hashlib.file_digest(content, 'sha256').hexdigest()} {node.executable}"
    return repr(node)


def _short(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]


def _applets() -> dict[str, Node]:
    debian.require(["busybox-static"])
    names = subprocess.run([_BUSYBOX, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links: dict[str, Node] = {f"bin/{name}": Link("busybox") for name in names if name != "busybox"}
    return {"bin/busybox": File(_BUSYBOX, executable=True), **links}
