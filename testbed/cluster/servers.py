"""``python -m testbed.cluster.servers``: run the cluster's servers in the namespaces of this process.

It exits when one of them does. Killing process 1 of the namespaces ends everything in them. While there is a file
``restart-NAME``, the server of that name, kubelet or containerd, is killed and started again. Kubelet reaches the
container runtime by a symbolic link, ``runtime.sock``.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster.host import KERNEL_SETTINGS, PRIVATE
from testbed.cluster.network import Network, cni_config, create_links
from testbed.cluster.node import STATIC_PODS, CoreDns, Kubelet, KubeProxy, NodeContext
from testbed.cri.containerd import Containerd
from testbed.kube.control_plane import ControlPlane, Options
from testbed.kube.pki import put
from testbed.server import Server
from testbed.waiting import until
from toolchain.errors import TestbedError, tail

RESTARTABLE = ("kubelet", "containerd")
RUNTIME_LINK = "runtime.sock"
"""Link to the socket of the container runtime, or of a program between kubelet and it."""
_NODE_READY_WITHIN_S = 120.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Arguments:
    """The arguments given by the guard."""

    directory: Path
    binaries: dict[str, Path]
    network: Network
    images: tuple[Path, ...]
    machine_network: Path


def main() -> int:
    """Start all servers, write the file ``ready``, and run until one of them exits."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster.servers")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--binary", dest="binaries", type=_named_path, action="append", default=[])
    parser.add_argument("--network", type=Network, required=True)
    parser.add_argument("--image", dest="images", type=Path, action="append", default=[])
    parser.add_argument("--machine-network", type=int, required=True, help="descriptor of the host's network namespace")
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
    """Start all servers, and raise when one of them exits."""
    _mount_private(arguments.directory)
    create_links(arguments.network, arguments.machine_network)
    servers = await _start(arguments)
    requests = {restart_request(arguments.directory, each.name): each for each in servers if each.name in RESTARTABLE}
    while (exited := await _first_exit(servers, requests)) is None:
        for request, server in requests.items():
            if request.exists():
                await server.kill()
                await server.start()
                request.unlink()
    raise TestbedError(f"{exited.name} exited; the end of its log:\n{tail(exited.log)}")


def restart_request(directory: Path, server: str) -> Path:
    """Return the file that asks for a restart of a server; it is removed when the server is ready again."""
    return directory / f"restart-{server}"


async def _first_exit(servers: Sequence[Server], requests: Iterable[Path]) -> Server | None:
    """Return the first server that exits, or None once a file exists that asks for a restart."""
    ended = {asyncio.ensure_future(each.ended()): each for each in servers}
    try:
        while not any(each.exists() for each in requests):
            done, _ = await asyncio.wait(ended, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return ended[done.pop()]
    finally:
        for each in ended:
            each.cancel()
    return None


async def _start(arguments: Arguments) -> Sequence[Server]:
    binaries, directory, network = arguments.binaries, arguments.directory, arguments.network
    options = Options(controllers=True, scheduler=True, address=network.node)
    plane = ControlPlane(binaries, directory, options)
    configuration = put(directory / "cni" / "10-pods.conflist", cni_config(network, directory / "leases").encode())
    containerd = Containerd(binaries["containerd"], directory / "containerd", configuration.parent)
    await asyncio.gather(plane.start(), _start_with_images(containerd, arguments.images))
    runtime = directory / RUNTIME_LINK
    runtime.symlink_to(containerd.socket)
    context = NodeContext(plane, network, runtime)
    node = [
        Kubelet(binaries["kubelet"], directory / "kubelet", context),
        KubeProxy(binaries["kube-proxy"], directory / "kube-proxy", context),
        CoreDns(binaries["coredns"], directory / "coredns", context),
    ]
    await asyncio.gather(*(server.start() for server in node))
    await _wait_node_ready(plane)
    facts = {
        "url": plane.url,
        "kubeconfig": plane.kubeconfig,
        "kubectl": binaries["kubectl"],
        "ctr": binaries["containerd"].with_name("ctr"),
        "socket": containerd.socket,
        "registries": containerd.registries,
        "static_pods": directory / "kubelet" / STATIC_PODS,
        "pods": network.pods,
        "node": network.node,
        "machine": network.machine,
    }
    put(directory / "ready", json.dumps(facts, default=str, indent=1).encode())
    return [*plane.servers, containerd, *node]


async def _start_with_images(containerd: Containerd, images: Sequence[Path]) -> None:
    await containerd.start()
    for image in images:
        await containerd.ctr("images", "import", str(image))


async def _wait_node_ready(plane: ControlPlane) -> None:
    async def is_ready() -> bool:
        nodes: list[dict[str, Any]] = (await plane.ask("GET", "/api/v1/nodes"))["items"]
        conditions = [each for node in nodes for each in node["status"].get("conditions", [])]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    await until(is_ready, within_s=_NODE_READY_WITHIN_S)


def _mount_private(directory: Path) -> None:
    """Mount private directories and kernel settings over the host's; each mount's source names the cluster."""
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for target in PRIVATE:
        Path(target).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", str(directory), target], check=True)
    for name, value in KERNEL_SETTINGS.items():
        file = put(directory / "kernel" / name, f"{value}\n".encode())
        subprocess.run(["mount", "--bind", str(file), f"/proc/sys/{name}"], check=True)


if __name__ == "__main__":
    sys.exit(main())
