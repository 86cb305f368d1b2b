"""Kubernetes' own programs, etcd and kwok: built from their Go modules.

Kubernetes' module is not meant to be depended on: its parts are required at a version that does not exist. So each
program is built in a module of our own that requires what Kubernetes requires, its parts at the release's version.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolchain import cache
from toolchain.golang import GO, download, environment
from toolchain.recipe import Recipe
from toolchain.steps import Argv, Steps

VERSION = "1.36.3"
ETCD_VERSION = "3.7.3"
KWOK_VERSION = "0.8.0"
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
_UNRELEASED = "v0.0.0"
_STAMP = "k8s.io/component-base/version"
_MAIN_OF_ETCD = """\
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""


def program(name: str, *packages: str) -> Recipe:
    """Return the recipe of a Kubernetes program; later ones reuse what was compiled for the first.

    The packages are what it calls when it runs.
    """

    def build(result: Path, steps: Steps) -> None:
        go = cache.provide(GO)
        source = result.with_name("source")
        source.mkdir()
        original = download(steps, go, "k8s.io/kubernetes", VERSION)
        wanted = json.loads(steps.output("read its go.mod", [go, "mod", "edit", "-json", original / "go.mod"]))
        (source / "go.mod").write_text(_go_mod(wanted), encoding="utf-8")
        (source / "go.sum").write_bytes((original / "go.sum").read_bytes())
        _compile(steps, go, source, result / name, f"k8s.io/kubernetes/cmd/{name}", ("-ldflags", _flags()))

    return Recipe(name, VERSION, name, build, inputs=(_flags(),), packages=("ca-certificates", *packages))


def _flags() -> str:
    major, minor, _ = VERSION.split(".")
    stamps = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {_STAMP}.{name}={value}" for name, value in stamps.items())])


def _go_mod(original: dict[str, Any]) -> str:
    """Return a go.mod that requires Kubernetes and its dependencies."""
    required = [(each["Path"], each["Version"]) for each in original["Require"]]
    parts = [path for path, version in required if version == _UNRELEASED]
    staged = VERSION.replace("1", "0", 1)
    return "\n".join(
        [
            "module testbed",
            f"go {original['Go']}",
            *(f"require {path} {version}" for path, version in [*required, ("k8s.io/kubernetes", f"v{VERSION}")]),
            *(f"replace {path} => {path} v{staged}" for path in parts),
            "",
        ]
    )


def _build_etcd(result: Path, steps: Steps) -> None:
    go = cache.provide(GO)
    source = result.with_name("source")
    source.mkdir()
    (source / "main.go").write_text(_MAIN_OF_ETCD, encoding="utf-8")
    required = f"require go.etcd.io/etcd/server/v3 v{ETCD_VERSION}"
    (source / "go.mod").write_text(f"module testbed\ngo 1.26\n{required}\n", encoding="utf-8")
    steps.run("resolve its modules", [go, "mod", "tidy"], cwd=source, environment=environment())
    _compile(steps, go, source, result / "etcd", ".", ("-ldflags", "-s -w"))


def _build_kwok(result: Path, steps: Steps) -> None:
    go = cache.provide(GO)
    source = result.with_name("source")
    original = download(steps, go, "sigs.k8s.io/kwok", KWOK_VERSION)
    steps.run("copy the module", ["cp", "-r", "--no-preserve=mode", original, source])
    _compile(steps, go, source, result / "kwok", "./cmd/kwok", ("-ldflags", "-s -w"))
    (result / "stages.yaml").write_text(_joined(source / "kustomize" / "stage"), encoding="utf-8")


def _joined(stages: Path) -> str:
    """Return the stages that make nodes and pods ready as one file; without any, kwok exits."""
    files = [file for name in STAGES for file in sorted((stages / name).glob("*.yaml"))]
    texts = [file.read_text(encoding="utf-8") for file in files if file.name != "kustomization.yaml"]
    return "\n---\n".join(texts)


def _compile(steps: Steps, go: Path, source: Path, binary: Path, package: str, flags: Iterable[str]) -> None:
    compilation: Argv = [go, "build", *flags, "-o", binary, package]
    steps.run("compile (some minutes)", compilation, cwd=source, environment=environment())


ETCD = Recipe("etcd", ETCD_VERSION, "etcd", _build_etcd, inputs=(_MAIN_OF_ETCD,), packages=("ca-certificates",))
KWOK = Recipe("kwok", KWOK_VERSION, "kwok", _build_kwok, inputs=STAGES, packages=("ca-certificates",))
KUBE_APISERVER = program("kube-apiserver")
KUBE_CONTROLLER_MANAGER = program("kube-controller-manager")
KUBE_SCHEDULER = program("kube-scheduler")
KUBECTL = program("kubectl")
KUBELET = program("kubelet", "iproute2", "mount", "util-linux")
KUBE_PROXY = program("kube-proxy", "nftables")
