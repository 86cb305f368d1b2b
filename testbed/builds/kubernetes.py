"""Kubernetes and what is built from the Go module ``testbed/go`` with it; etcd from the module below that one.

``testbed/go`` requires exactly the dependency versions of Kubernetes and replaces newer ones, so that the Kubernetes
programs are what a release has, and everything else compiles against packages that they need anyway. etcd needs other
versions of its own packages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from toolchain.golang import COMPILER_FLAGS, Build
from toolchain.recipe import Recipe
from toolchain.repository import REPOSITORY
from toolchain.steps import Steps

VERSION = "1.36.3"
ETCD_VERSION = "3.7.3"
CRICTL_VERSION = "1.36.0"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy")
_SOURCE = REPOSITORY / "testbed" / "go"
_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR, _PATCH = VERSION.split(".")
_STAMPS = (
    (f"{_STAMP}.gitVersion", f"v{VERSION}"),
    (f"{_STAMP}.gitMajor", _MAJOR),
    (f"{_STAMP}.gitMinor", _MINOR),
    ("sigs.k8s.io/cri-tools/pkg/version.Version", CRICTL_VERSION),
)
CLIENT_GO_VERSION = f"0.{_MINOR}.{_PATCH}"
CLIENT_GO_WORKER = "client-go-worker"
PEERS = ("cri-client", "fake-runtime", "hook-plugin")
_PEER_PACKAGES = [f"./cmd/{name}" for name in PEERS]


def _recipe(
    name: str,
    version: str,
    build: Build,
    sources: Iterable[Path],
    packages: Iterable[str] = (),
    vetted: Sequence[str] = (),
) -> Recipe:
    def fetch(_: Path, steps: Steps) -> None:
        build.fetch(steps)

    def build_programs(result: Path, steps: Steps) -> None:
        build.compile(result, steps)
        if vetted:
            replace(build, packages=vetted).vet(steps)

    executable = build.packages[0].rpartition("/")[2] if len(build.packages) > 1 else name
    inputs = (*COMPILER_FLAGS, *build.packages, *_texts(build.source / "go.mod", build.source / "go.sum", *sources))
    return Recipe(name, version, executable, build_programs, inputs, ("ca-certificates", *packages), fetch=fetch)


def _texts(*places: Path) -> list[str]:
    """Return the text of each file at or below these places."""
    files = [file for place in places for file in sorted(place.rglob("*")) or [place] if file.is_file()]
    return [file.read_text(encoding="utf-8") for file in files]


KUBERNETES = _recipe(
    "kubernetes",
    VERSION,
    Build(_SOURCE, [*(f"k8s.io/kubernetes/cmd/{name}" for name in PROGRAMS), "./cmd/coredns"], _STAMPS),
    sources=[_SOURCE / "cmd" / "coredns"],
    packages=["iproute2", "mount", "nftables", "util-linux"],
)
CRI_TOOLS = _recipe(
    "cri-tools",
    CRICTL_VERSION,
    Build(_SOURCE, ["sigs.k8s.io/cri-tools/cmd/crictl", *_PEER_PACKAGES], _STAMPS),
    sources=[_SOURCE / "internal", *(_SOURCE / "cmd" / name for name in PEERS)],
    vetted=_PEER_PACKAGES,
)
CLIENT_GO = _recipe(
    CLIENT_GO_WORKER,
    CLIENT_GO_VERSION,
    Build(_SOURCE, [f"./cmd/{CLIENT_GO_WORKER}"]),
    sources=[_SOURCE / "cmd" / CLIENT_GO_WORKER],
    vetted=[f"./cmd/{CLIENT_GO_WORKER}"],
)
ETCD = _recipe("etcd", ETCD_VERSION, Build(_SOURCE / "etcd", ["."]), sources=[_SOURCE / "etcd" / "main.go"])
