"""containerd: Debian's, unpacked without its service, and a newer one built from its Go module."""

from pathlib import Path

from toolchain import debian, golang
from toolchain.golang import COMPILER_FLAGS, Build
from toolchain.recipe import Recipe
from toolchain.steps import Steps

VERSION = "2.4.2"
_MODULE = "github.com/containerd/containerd/v2"
_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
_PACKAGES = ("runc", "containernetworking-plugins")


def _prepare(source: Path, steps: Steps) -> Build:
    golang.copy_module(steps, _MODULE, VERSION, source)
    return Build(source, [f"./cmd/{name}" for name in _PROGRAMS], [(f"{_MODULE}/version.Version", VERSION)])


def _build(result: Path, steps: Steps) -> None:
    _prepare(result.with_name("source"), steps).compile(result, steps)


def _fetch(scratch: Path, steps: Steps) -> None:
    _prepare(scratch / "source", steps).fetch(steps)


def _unpack(result: Path, steps: Steps) -> None:
    """Unpack Debian's package: installing it would start a service."""
    debian.unpack("containerd", result.parent, steps)
    for program in _PROGRAMS:
        (result.parent / "usr" / "bin" / program).rename(result / program)


CONTAINERD = Recipe("containerd", "debian", "containerd", _unpack, inputs=_PROGRAMS, packages=_PACKAGES)
CONTAINERD_2 = Recipe(
    *("containerd", VERSION, "containerd", _build),
    inputs=(*COMPILER_FLAGS, *_PROGRAMS),
    packages=("ca-certificates", *_PACKAGES),
    fetch=_fetch,
)
