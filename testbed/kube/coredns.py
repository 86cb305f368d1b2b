"""CoreDNS: built from its Go module with the few plug-ins that a cluster of one node needs."""

from pathlib import Path

from toolchain import cache
from toolchain.golang import GO, download, environment
from toolchain.recipe import Recipe
from toolchain.steps import Argv, Steps

VERSION = "1.14.7"
_MODULE = "github.com/coredns/coredns"
_PLUGINS = ("bind", "errors", "health", "kubernetes", "metrics")


def _build(result: Path, steps: Steps) -> None:
    go = cache.provide(GO)
    source = result.with_name("source")
    steps.run("copy the module", ["cp", "-r", "--no-preserve=mode", download(steps, go, _MODULE, VERSION), source])
    imports = "".join(f'\t_ "{_MODULE}/plugin/{name}"\n' for name in _PLUGINS)
    (source / "core" / "plugin" / "zplugin.go").write_text(
        f"package plugin\n\nimport (\n{imports})\n", encoding="utf-8"
    )
    compilation: Argv = [go, "build", "-ldflags", "-s -w", "-o", result / "coredns", "."]
    steps.run("compile (some minutes)", compilation, cwd=source, environment=environment())


COREDNS = Recipe("coredns", VERSION, "coredns", _build, inputs=_PLUGINS, packages=("ca-certificates",))
