"""The cluster's network: a bridge in its own network namespace, one end of a cable in the machine's.

The machine sits on the same network as the pods, so a test reaches them, and they the test, at plain addresses. All
of it ends with the namespace.
"""

import ipaddress
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolchain.errors import TestbedError

SERVICES = "10.96.0.0/16"
CANDIDATES = ("10.77.0.0/16", "10.177.0.0/16", "172.28.0.0/16", "192.168.192.0/18")
_SHORTEST_PREFIX = 8
_BRIDGE = "pods"
_BRIDGE_ADDRESS = "02:00:00:00:00:01"
CABLE = "governor-bed"


@dataclass(frozen=True)
class Network:
    """The addresses of one cluster."""

    pods: str

    @property
    def node(self) -> str:
        """The node's, the API server's and the name server's."""
        return str(ipaddress.ip_network(self.pods)[1])

    @property
    def machine(self) -> str:
        """Where pods reach what a test serves on the machine itself."""
        return str(ipaddress.ip_network(self.pods)[-2])

    @property
    def prefix_length(self) -> int:
        """Of the pods' network."""
        return ipaddress.ip_network(self.pods).prefixlen

    @property
    def assignable(self) -> tuple[str, str]:
        """The first and last address that pods may get."""
        network = ipaddress.ip_network(self.pods)
        return str(network[16]), str(network[-16])


def choose() -> Network:
    """The first network that the machine has no way to yet."""
    listed = subprocess.run(["ip", "-json", "route"], capture_output=True, text=True, check=True).stdout
    return first_free([route["dst"] for route in json.loads(listed)])


def first_free(used: Sequence[str]) -> Network:
    """The first network that overlaps none of those in use, which Services must not either."""
    if taken := _overlapping(SERVICES, used):
        raise TestbedError(f"the cluster's Services need {SERVICES}, but this machine has a route to {taken}")
    for candidate in CANDIDATES:
        if not _overlapping(candidate, used):
            return Network(candidate)
    raise TestbedError(f"the pods need one of the networks {', '.join(CANDIDATES)}; this machine has routes to all")


def _overlapping(network: str, used: Sequence[str]) -> str:
    wanted = ipaddress.ip_network(network)
    return next((each for each in used if _is_particular(each) and wanted.overlaps(ipaddress.ip_network(each))), "")


def _is_particular(destination: str) -> bool:
    """Whether a route leads to some network and not, as a default or its halves do, to wherever nothing else does."""
    return destination != "default" and ipaddress.ip_network(destination).prefixlen >= _SHORTEST_PREFIX


def lay(network: Network, machine: Path) -> None:
    """In the new namespace: make the bridge, and plug the cable in here and in the machine's namespace."""
    _ip("link", "set", "lo", "up")
    # Without an address of its own it takes the lowest of its ports', and changes it when that pod goes.
    _ip("link", "add", _BRIDGE, "address", _BRIDGE_ADDRESS, "type", "bridge")
    _ip("addr", "add", f"{network.node}/{network.prefix_length}", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")
    _ip("route", "add", SERVICES, "dev", _BRIDGE)  # or the API server has no way to webhooks before it is translated
    _ip("link", "add", "machine", "type", "veth", "peer", "name", CABLE, "netns", str(machine))
    _ip("link", "set", "machine", "master", _BRIDGE, "up")
    outside = ("nsenter", f"--net={machine}", "ip")
    _run(*outside, "addr", "add", f"{network.machine}/{network.prefix_length}", "dev", CABLE)
    _run(*outside, "link", "set", CABLE, "up")
    _run(*outside, "route", "add", SERVICES, "via", network.node)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")


def unplug() -> None:
    """In the machine's namespace: pull the cable out at once, where the kernel would take its time."""
    if Path("/sys/class/net", CABLE).exists():
        subprocess.run(["ip", "link", "delete", CABLE], capture_output=True, check=False)  # the kernel may be quicker


def plugin_settings(network: Network, leases: Path) -> str:
    """How the network plug-in gives pods their addresses."""
    first, last = network.assignable
    addresses = {
        "type": "host-local",
        "dataDir": str(leases),
        "ranges": [[{"subnet": network.pods, "rangeStart": first, "rangeEnd": last, "gateway": network.node}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": _BRIDGE, "hairpinMode": True, "ipam": addresses}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*argv: str) -> None:
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise TestbedError(f"{' '.join(argv)} failed: {ended.stderr.strip()}")
