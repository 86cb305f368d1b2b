"""What makes a machine a node: kubelet and kube-proxy."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from testbed.cluster.network import Network
from testbed.cluster.places import CGROUP
from testbed.kube.control_plane import ControlPlane, probe
from testbed.kube.pki import kubeconfig, put
from testbed.server import Server

NAME = "node"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NEVER = "0%"


@dataclass(frozen=True)
class Place:
    """Where a node's programs work: which control plane, network and runtime."""

    control_plane: ControlPlane
    network: Network
    runtime_socket: Path


class Kubelet(Server):
    """kubelet for one node that never evicts: the machine belongs to others too."""

    ready_within_s: ClassVar[float] = 120.0

    def __init__(self, binary: Path, directory: Path, place: Place) -> None:
        super().__init__("kubelet", directory, ["healthz"])
        self._binary = binary
        self._place = place

    def command(self) -> list[str]:
        """kubelet with its settings and its own certificate in files."""
        plane = self._place.control_plane
        user = plane.authority.issue(f"system:node:{NAME}", groups=["system:nodes"])
        files = {
            "config": put(self.directory / "kubelet.json", json.dumps(self._settings(), indent=1).encode()),
            "kubeconfig": put(self.directory / "kubeconfig", kubeconfig(plane.url, plane.authority.certificate, user)),
        }
        flags = {
            **files,
            "root-dir": self.directory / "root",
            "cert-dir": self.directory / "certificates",
            "hostname-override": NAME,
            "node-ip": self._place.network.node,
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in flags.items())]

    def environment(self) -> dict[str, str]:
        """It mounts volumes with the system's programs."""
        return {**super().environment(), "PATH": _PATH}

    async def is_ready(self) -> bool:
        """Whether it says so itself; the node is Ready a little later."""
        return await probe(f"http://127.0.0.1:{self.ports['healthz']}/healthz")

    def _settings(self) -> dict[str, object]:
        plane, node = self._place.control_plane, self._place.network.node
        certificate, key = plane.authority.issue(NAME, hosts=[NAME, node]).put(self.directory, "serving")
        resolv = put(self.directory / "resolv.conf", f"nameserver {node}\n".encode())
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node,
            "healthzPort": self.ports["healthz"],
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(plane.api.authority)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._place.runtime_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": ["none"],
            "oomScoreAdj": 0,  # a lower one is not ours to take
            "makeIPTablesUtilChains": False,
            "evictionHard": {
                "memory.available": _NEVER,
                "nodefs.available": _NEVER,
                "nodefs.inodesFree": _NEVER,
                "imagefs.available": _NEVER,
                "imagefs.inodesFree": _NEVER,
            },
            "imageGCHighThresholdPercent": 100,
            "clusterDNS": [node],
            "clusterDomain": "cluster.local",
            "resolvConf": str(resolv),
            "volumePluginDir": str(self.directory / "volume-plugins"),
            "podLogsDir": str(self.directory / "pod-logs"),
            "syncFrequency": "2s",
            "maxPods": 200,
        }


class KubeProxy(Server):
    """kube-proxy with nftables, which live and end with the network namespace."""

    def __init__(self, binary: Path, directory: Path, place: Place) -> None:
        super().__init__("kube-proxy", directory, ["healthz", "metrics"])
        self._binary = binary
        self._place = place

    def command(self) -> list[str]:
        """It leaves the machine's own connection tracking as it is."""
        flags = {
            "kubeconfig": self._place.control_plane.kubeconfig,
            "proxy-mode": "nftables",
            "hostname-override": NAME,
            "cluster-cidr": self._place.network.pods,
            "conntrack-max-per-core": 0,
            "conntrack-tcp-timeout-established": 0,
            "conntrack-tcp-timeout-close-wait": 0,
            "healthz-bind-address": f"127.0.0.1:{self.ports['healthz']}",
            "metrics-bind-address": f"127.0.0.1:{self.ports['metrics']}",
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in flags.items())]

    def environment(self) -> dict[str, str]:
        """It calls the system's nft."""
        return {**super().environment(), "PATH": _PATH}

    async def is_ready(self) -> bool:
        """Whether it has written its rules lately."""
        return await probe(f"http://127.0.0.1:{self.ports['healthz']}/healthz")
