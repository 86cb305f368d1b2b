"""Nodes without machines (kwok): the pods bound to them become Ready, and nothing runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from testbed.kube.control_plane import ControlPlane, probe
from testbed.server import Server
from testbed.waiting import until

CAPACITY: Mapping[str, str] = {"cpu": "32", "memory": "256Gi", "pods": "110"}
_LABEL = "testbed/fake-node"
_READY_WITHIN_S = 240.0


class FakeNodes(Server):
    """Plays the kubelets of a control plane, which needs its controllers and its scheduler for pods to get there."""

    def __init__(self, binary: Path, directory: Path, plane: ControlPlane, count: int) -> None:
        super().__init__("kwok", directory, ["http"])
        self.plane = plane
        self.names = [f"fake-{number}" for number in range(count)]
        self._binary = binary

    def command(self) -> list[str]:
        """Return the command line: only our nodes are simulated; the stages are beside the program."""
        settings = {
            "kubeconfig": self.plane.kubeconfig,
            "config": self._binary.with_name("stages.yaml"),
            "manage-all-nodes": "false",
            "manage-nodes-with-label-selector": f"{_LABEL}=true",
            "cidr": "10.200.0.0/16",
            "node-ip": "10.200.255.254",
            "node-lease-duration-seconds": 40,
            "server-address": f"127.0.0.1:{self.ports['http']}",
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in settings.items())]

    async def is_ready(self) -> bool:
        """Return whether it responds."""
        return await probe(f"http://127.0.0.1:{self.ports['http']}/healthz")

    async def start(self) -> Self:
        """Start, and let the nodes join."""
        await super().start()
        nodes = {"apiVersion": "v1", "kind": "List", "items": [_node(name) for name in self.names]}
        await self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(nodes))
        await until(self._all_joined, within_s=_READY_WITHIN_S)
        return self

    async def _all_joined(self) -> bool:
        nodes = (await self.plane.ask("GET", "/api/v1/nodes"))["items"]
        return all(_is_ready(node) for node in nodes if _LABEL in node["metadata"]["labels"])


def _node(name: str) -> dict[str, Any]:
    labels = {_LABEL: "true", "kubernetes.io/hostname": name}
    status = {"allocatable": CAPACITY, "capacity": CAPACITY}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
