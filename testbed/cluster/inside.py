"""``python -m testbed.cluster.inside``: start the servers of the cluster in the namespaces that this process is in.

It ends when one of them does. Whoever ends the first process of the namespaces ends everything in them.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster.names import CoreDns
from testbed.cluster.network import Network, lay, plugin_settings
from testbed.cluster.node import Kubelet, KubeProxy, Place
from testbed.cluster.places import KERNEL_SETTINGS, PRIVATE
from testbed.cri.containerd import Containerd
from testbed.kube.control_plane import ControlPlane, Options
from testbed.kube.pki import put
from testbed.server import Server
from testbed.waiting import until
from toolchain.errors import TestbedError, tail

_NODE_READY_WITHIN_S = 120.0


@dataclass(frozen=True)
class Arguments:
    """What the process outside hands over."""

    directory: Path
    binaries: dict[str, Path]
    network: Network
    images: tuple[Path, ...]
    machine_network: Path


def main() -> int:
    """Start everything, say so, and stay."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster.inside")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--binary", dest="binaries", type=_named_path, action="append", default=[])
    parser.add_argument("--network", type=Network, required=True)
    parser.add_argument("--image", dest="images", type=Path, action="append", default=[])
    parser.add_argument("--machine-network", type=int, required=True, help="descriptor of the machine's namespace")
    given = parser.parse_args()
    machine_network = Path(f"/proc/{os.getpid()}/fd/{given.machine_network}")
    arguments = Arguments(given.directory, dict(given.binaries), given.network, tuple(given.images), machine_network)
    try:
        asyncio.run(run(arguments))
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _named_path(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


async def run(arguments: Arguments) -> None:
    """Start everything and return when any part has ended, which is an error."""
    _make_private(arguments.directory)
    lay(arguments.network, arguments.machine_network)
    servers = await _start(arguments)
    ended = [asyncio.ensure_future(server.ended()) for server in servers]
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    gone = [server for server, end in zip(servers, ended, strict=True) if end.done()]
    raise TestbedError(f"{gone[0].name} has ended; the end of its log:\n{tail(gone[0].log)}")


async def _start(arguments: Arguments) -> Sequence[Server]:
    binaries, directory, network = arguments.binaries, arguments.directory, arguments.network
    options = Options(controllers=True, scheduler=True, address=network.node)
    plane = ControlPlane(binaries, directory, options)
    configuration = put(directory / "cni" / "10-pods.conflist", plugin_settings(network, directory / "leases").encode())
    containerd = Containerd(binaries["containerd"], directory / "containerd", configuration.parent)
    await asyncio.gather(plane.start(), _with_images(containerd, arguments.images))
    place = Place(plane, network, containerd.socket)
    node = [
        Kubelet(binaries["kubelet"], directory / "kubelet", place),
        KubeProxy(binaries["kube-proxy"], directory / "kube-proxy", place),
        CoreDns(binaries["coredns"], directory / "coredns", network.node, plane.kubeconfig),
    ]
    await asyncio.gather(*(server.start() for server in node))
    await _node_is_ready(plane)
    facts = {
        "url": plane.url,
        "kubeconfig": plane.kubeconfig,
        "kubectl": binaries["kubectl"],
        "ctr": binaries["containerd"].with_name("ctr"),
        "socket": containerd.socket,
        "pods": network.pods,
        "node": network.node,
        "machine": network.machine,
    }
    put(directory / "ready", json.dumps(facts, default=str, indent=1).encode())
    return [*plane.servers, containerd, *node]


async def _with_images(containerd: Containerd, images: Sequence[Path]) -> None:
    await containerd.start()
    for image in images:
        await containerd.ctr("images", "import", str(image))


async def _node_is_ready(plane: ControlPlane) -> None:
    async def look() -> bool:
        nodes: list[dict[str, Any]] = (await plane.ask("GET", "/api/v1/nodes"))["items"]
        conditions = [each for node in nodes for each in node["status"].get("conditions", [])]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    await until(look, within_s=_NODE_READY_WITHIN_S)


def _make_private(directory: Path) -> None:
    """Put the cluster's own in place of what is the machine's; each mount names whose it is."""
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for place in PRIVATE:
        Path(place).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", str(directory), place], check=True)
    for name, value in KERNEL_SETTINGS.items():
        file = put(directory / "kernel" / name, f"{value}\n".encode())
        subprocess.run(["mount", "--bind", str(file), f"/proc/sys/{name}"], check=True)


if __name__ == "__main__":
    sys.exit(main())
