"""Programs written in Go that stand on the other sides of the runtime proxy: a caller, a runtime and a plugin.

They are the project's own (``testbed/go``), on the gRPC library that kubelet, containerd and plugins use.
"""

from pathlib import Path

from toolchain import cache
from toolchain.golang import GO, environment
from toolchain.recipe import Recipe
from toolchain.steps import Argv, Steps
from toolchain.wheels import REPOSITORY

_MODULE = REPOSITORY / "testbed" / "go"
_SOURCES = sorted(file for file in _MODULE.rglob("*") if file.suffix in (".go", ".mod", ".proto", ".sum"))


def _build(result: Path, steps: Steps) -> None:
    compilation: Argv = [cache.provide(GO), "build", "-mod=readonly", "-ldflags", "-s -w", "-o", result, "./cmd/..."]
    steps.run("compile", compilation, cwd=_MODULE, environment=environment())


GO_PEERS = Recipe(
    "go-peers",
    "1",
    "cri-client",
    _build,
    inputs=tuple(f"{file.relative_to(_MODULE)}\n{file.read_text(encoding='utf-8')}" for file in _SOURCES),
    packages=("ca-certificates",),
)
