"""The servers that can be asked for by name."""

from collections.abc import Iterable
from pathlib import Path

from testbed.cri.containerd import CONTAINERD, CONTAINERD_2
from testbed.cri.crictl import CRICTL
from testbed.cri.go_peers import GO_PEERS
from testbed.dapr_services import services
from testbed.daprd import DAPRD, DAPRD_1_16, VERSION, VERSION_1_16
from testbed.kube.coredns import COREDNS
from testbed.kube.programs import (
    ETCD,
    KUBE_APISERVER,
    KUBE_CONTROLLER_MANAGER,
    KUBE_PROXY,
    KUBE_SCHEDULER,
    KUBECTL,
    KUBELET,
    KWOK,
)
from testbed.redis import REDIS
from toolchain import cache, debian
from toolchain.errors import TestbedError
from toolchain.helm import HELM
from toolchain.recipe import Recipe

_CONTROL_PLANE = (ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER, KUBECTL, KWOK)
_NODE = (KUBELET, KUBE_PROXY, COREDNS, CONTAINERD, HELM, services(VERSION))
_RUNTIME_PROXY = (GO_PEERS, CRICTL)
RECIPES = {
    **{each.name: each for each in (DAPRD, REDIS, *_CONTROL_PLANE, *_NODE, *_RUNTIME_PROXY)},
    "daprd-1.16": DAPRD_1_16,
    "dapr-services-1.16": services(VERSION_1_16),
    "containerd-2": CONTAINERD_2,
}


def require_packages(names: Iterable[str]) -> None:
    """See to the Debian packages of all servers named at once: who may not install them hears of all together."""
    absent = [recipe for recipe in map(_named, names) if not _present(recipe)]
    debian.require(package for recipe in absent for package in recipe.packages)


def provide(names: Iterable[str]) -> dict[str, Path]:
    """Return the executable of each named server: found, cached or built."""
    names = list(names)
    require_packages(names)
    return {name: cache.provide(_named(name)) for name in names}


def _named(name: str) -> Recipe:
    if name not in RECIPES:
        raise TestbedError(f"no server is called {name!r}; known are {', '.join(RECIPES)}")
    return RECIPES[name]


def _present(recipe: Recipe) -> bool:
    return cache.executable_of(recipe).exists() or recipe.find() is not None
