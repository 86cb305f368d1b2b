"""What a cluster needs from the host (root, installed and built programs), and the host paths that a node writes to."""

import os
import shutil
from pathlib import Path

from testbed import recipes
from testbed.cri.containerd import PLUGINS
from toolchain import debian
from toolchain.errors import TestbedError

PRIVATE = ("/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
"""Directories over which the cluster's mount namespace has an empty file system."""
KERNEL_SETTINGS = {
    "kernel/keys/root_maxbytes": 25_000_000,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
}
"""Values below /proc/sys that kubelet would set host-wide; in the namespaces it reads them as already set."""
CGROUP = "runtime-governor"
"""The parent of all pods' cgroups in each hierarchy."""
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
    """Raise unless this process runs as root."""
    if os.geteuid() != 0:
        raise TestbedError("a real node needs root to create namespaces, mounts and cgroups: run this as root")


def programs(containerd: str = "containerd") -> dict[str, Path]:
    """Return a cluster's programs by name, built now if missing; raise if a package is not installed."""
    require_root()
    debian.require(package for program, package in _PACKAGES.items() if not shutil.which(program, path=PATH))
    found = recipes.provide([*_BUILT, containerd])
    return {**{name: found[name] for name in _BUILT}, "containerd": found[containerd]}
