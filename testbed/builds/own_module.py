"""Programs of the test bed that have a Go module of their own, because their dependencies fit no other's."""

from pathlib import Path

from toolchain.golang import COMPILER_FLAGS, Build
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY
from toolchain.steps import Steps

_FILES = ("go.mod", "go.sum", "main.go")


def own_module(name: str, version: str) -> Recipe:
    """Return the recipe of the program in ``testbed/go/NAME``; the version is that of its main dependency."""
    source = REPOSITORY / "testbed" / "go" / name
    build = Build(source, ["."])

    def compiled(result: Path, steps: Steps) -> None:
        build.compile(result, steps)
        build.vet(steps)

    def fetch(_: Path, steps: Steps) -> None:
        build.fetch(steps)

    return Recipe(
        *(name, version, name, compiled),
        inputs=(*COMPILER_FLAGS, *((source / file).read_text(encoding="utf-8") for file in _FILES)),
        packages=("ca-certificates",),
        fetch=fetch,
    )


ALERT_CHECK = own_module("alert-check", "0.304.2")
"""Reads a PrometheusRule as the operator of Prometheus and Prometheus itself do, and prints what is wrong."""
REGISTRY = own_module("registry", "3.0.0")
"""The OCI registry of the distribution project."""
