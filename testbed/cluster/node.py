"""The servers of a node: kubelet, kube-proxy and CoreDNS."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from testbed.cluster.host import CGROUP, PATH
from testbed.cluster.network import Network
from testbed.kube.control_plane import ControlPlane, probe
from testbed.kube.pki import kubeconfig, put
from testbed.server import Server

NAME = "node"
STATIC_PODS = "static-pods"
"""Directory with the manifests of static pods, in kubelet's."""
_NEVER = "0%"


@dataclass(frozen=True)
class NodeContext:
    """The control plane, network and container runtime of a node."""

    control_plane: ControlPlane
    network: Network
    runtime_socket: Path


class Kubelet(Server):
    """kubelet for one node that never evicts pods, since the host runs other programs too."""

    ready_within_s: ClassVar[float] = 120.0

    def __init__(self, binary: Path, directory: Path, context: NodeContext) -> None:
        super().__init__("kubelet", directory, ["healthz"])
        self._binary = binary
        self._context = context

    def command(self) -> list[str]:
        """Write configuration and kubeconfig, and return the command line."""
        plane = self._context.control_plane
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
            "node-ip": self._context.network.node,
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in flags.items())]

    def environment(self) -> dict[str, str]:
        """Add the system's programs, with which kubelet mounts volumes."""
        return {**super().environment(), "PATH": PATH}

    async def is_ready(self) -> bool:
        """Return whether kubelet is healthy; the node becomes Ready a little later."""
        return await probe(f"http://127.0.0.1:{self.ports['healthz']}/healthz")

    def _settings(self) -> dict[str, object]:
        plane, node = self._context.control_plane, self._context.network.node
        certificate, key = plane.authority.issue(NAME, hosts=[NAME, node]).put(self.directory, "serving")
        static_pods = self.directory / STATIC_PODS
        static_pods.mkdir(exist_ok=True)
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
            "containerRuntimeEndpoint": f"unix://{self._context.runtime_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{CGROUP}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": ["none"],
            "oomScoreAdj": 0,  # lowering it may not be permitted
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
            "staticPodPath": str(static_pods),
            "podLogsDir": str(self.directory / "pod-logs"),
            "syncFrequency": "2s",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
            "maxPods": 200,
        }


class KubeProxy(Server):
    """kube-proxy with nftables rules, which are removed with the network namespace."""

    def __init__(self, binary: Path, directory: Path, context: NodeContext) -> None:
        super().__init__("kube-proxy", directory, ["healthz", "metrics"])
        self._binary = binary
        self._context = context

    def command(self) -> list[str]:
        """Return the command line; connection tracking settings of the host stay unchanged."""
        flags = {
            "kubeconfig": self._context.control_plane.kubeconfig,
            "proxy-mode": "nftables",
            "hostname-override": NAME,
            "cluster-cidr": self._context.network.pods,
            "conntrack-max-per-core": 0,
            "conntrack-tcp-timeout-established": 0,
            "conntrack-tcp-timeout-close-wait": 0,
            "healthz-bind-address": f"127.0.0.1:{self.ports['healthz']}",
            "metrics-bind-address": f"127.0.0.1:{self.ports['metrics']}",
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in flags.items())]

    def environment(self) -> dict[str, str]:
        """Add the system's programs: kube-proxy calls nft."""
        return {**super().environment(), "PATH": PATH}

    async def is_ready(self) -> bool:
        """Return whether kube-proxy has synchronized its rules recently."""
        return await probe(f"http://127.0.0.1:{self.ports['healthz']}/healthz")


class CoreDns(Server):
    """CoreDNS for the names of the cluster's Services and pods, without forwarding."""

    def __init__(self, binary: Path, directory: Path, context: NodeContext) -> None:
        super().__init__("coredns", directory, ["health"])
        self._binary = binary
        self._context = context

    def command(self) -> list[str]:
        """Write the Corefile, and return the command line."""
        corefile = _COREFILE.format(
            address=self._context.network.node,
            health=self.ports["health"],
            kubeconfig=self._context.control_plane.kubeconfig,
        )
        file = put(self.directory / "Corefile", corefile.encode())
        return [str(self._binary), "-conf", str(file)]

    async def is_ready(self) -> bool:
        """Return whether CoreDNS is healthy."""
        return await probe(f"http://127.0.0.1:{self.ports['health']}/health")


_COREFILE = """\
cluster.local:53 in-addr.arpa:53 {{
  bind {address}
  errors
  health 127.0.0.1:{health}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 2
  }}
}}
"""
