"""What a cluster needs of the machine: root, some of its programs, and those that are built for it."""

import os
import shutil
from pathlib import Path

from testbed import recipes
from testbed.cri.containerd import PLUGINS
from toolchain import debian
from toolchain.errors import TestbedError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILT = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
    *("kubelet", "kube-proxy", "coredns"),
)
_PACKAGES = {
    "ip": "iproute2",
    "mount": "mount",
    "nft": "nftables",
    "runc": "runc",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    f"{PLUGINS}/bridge": "containernetworking-plugins",
    f"{PLUGINS}/host-local": "containernetworking-plugins",
}


def require_root() -> None:
    """Refuse to begin what cannot be done."""
    if os.geteuid() != 0:
        raise TestbedError("a real node needs root, for it makes namespaces, mounts and cgroups: run this as root")


def programs(containerd: str = "containerd") -> dict[str, Path]:
    """All programs of a cluster by name, found or built now; an error says what is missing."""
    require_root()
    debian.require(package for program, package in _PACKAGES.items() if not shutil.which(program, path=PATH))
    found = recipes.provide([*_BUILT, containerd])
    return {**{name: found[name] for name in _BUILT}, "containerd": found[containerd]}
