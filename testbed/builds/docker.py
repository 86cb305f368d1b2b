"""Docker: Debian's daemon and client, unpacked without its service. It runs Debian's containerd, another recipe."""

from pathlib import Path

from toolchain import debian
from toolchain.recipe import Recipe
from toolchain.steps import Steps

_PROGRAMS = ("usr/sbin/dockerd", "usr/bin/docker")


def _unpack(result: Path, steps: Steps) -> None:
    """Unpack Debian's package: installing it would start a service."""
    debian.unpack("docker.io", result.parent, steps)
    for program in _PROGRAMS:
        (result.parent / program).rename(result / Path(program).name)


DOCKER = Recipe(
    *("docker", "debian", "dockerd", _unpack),
    inputs=_PROGRAMS,
    packages=("runc", "libdevmapper1.02.1", "libsystemd0"),
)
