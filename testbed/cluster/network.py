"""The cluster's network: a bridge in its own network namespace, and a veth pair to the host's.

The host is on the pods' network, so tests and pods reach each other at their plain addresses. Everything is removed
with the namespace.
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
HOST_LINK = "governor-bed"
"""The host's end of the veth pair."""


@dataclass(frozen=True)
class Network:
    """The addresses of one cluster."""

    pods: str

    @property
    def node(self) -> str:
        """The address of the node, the API server and CoreDNS."""
        return str(ipaddress.ip_network(self.pods)[1])

    @property
    def machine(self) -> str:
        """The host's address, as pods reach it."""
        return str(ipaddress.ip_network(self.pods)[-2])

    @property
    def prefix_length(self) -> int:
        """The prefix length of the pods' network."""
        return ipaddress.ip_network(self.pods).prefixlen

    @property
    def assignable(self) -> tuple[str, str]:
        """The first and last address that is assigned to pods."""
        network = ipaddress.ip_network(self.pods)
        return str(network[16]), str(network[-16])


def choose() -> Network:
    """Return the first candidate to which the host has no route."""
    listed = subprocess.run(["ip", "-json", "route"], capture_output=True, text=True, check=True).stdout
    return first_free([route["dst"] for route in json.loads(listed)])


def first_free(used: Sequence[str]) -> Network:
    """Return the first candidate that overlaps no network in use; raise if there is none or Services overlap."""
    if taken := _overlapping(SERVICES, used):
        raise TestbedError(f"the cluster's Services need {SERVICES}, but this machine has a route to {taken}")
    for candidate in CANDIDATES:
        if not _overlapping(candidate, used):
            return Network(candidate)
    raise TestbedError(f"the pods need one of the networks {', '.join(CANDIDATES)}; this machine has routes to all")


def _overlapping(network: str, used: Sequence[str]) -> str:
    candidate = ipaddress.ip_network(network)
    return next((each for each in used if _is_specific(each) and candidate.overlaps(ipaddress.ip_network(each))), "")


def _is_specific(destination: str) -> bool:
    """Return whether a route leads to a certain network: neither a default route nor one of its halves."""
    return destination != "default" and ipaddress.ip_network(destination).prefixlen >= _SHORTEST_PREFIX


def create_links(network: Network, machine: Path) -> None:
    """Create the bridge in this network namespace, and the veth pair from it to the host's namespace."""
    _ip("link", "set", "lo", "up")
    # Without a fixed MAC address a bridge uses the lowest of its ports', and changes it when that pod is removed.
    _ip("link", "add", _BRIDGE, "address", _BRIDGE_ADDRESS, "type", "bridge")
    _ip("addr", "add", f"{network.node}/{network.prefix_length}", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")
    _ip(
        "route", "add", SERVICES, "dev", _BRIDGE
    )  # the API server needs a route to webhooks' Services before nftables translates them
    _ip("link", "add", "machine", "type", "veth", "peer", "name", HOST_LINK, "netns", str(machine))
    _ip("link", "set", "machine", "master", _BRIDGE, "up")
    outside = ("nsenter", f"--net={machine}", "ip")
    _run(*outside, "addr", "add", f"{network.machine}/{network.prefix_length}", "dev", HOST_LINK)
    _run(*outside, "link", "set", HOST_LINK, "up")
    _run(*outside, "route", "add", SERVICES, "via", network.node)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")


def delete_host_link() -> None:
    """Delete the host's end of the veth pair; the kernel would do so only some time after the namespace is gone."""
    if Path("/sys/class/net", HOST_LINK).exists():
        subprocess.run(["ip", "link", "delete", HOST_LINK], capture_output=True, check=False)  # may be gone by now


def cni_config(network: Network, leases: Path) -> str:
    """Return the CNI configuration that gives pods their addresses."""
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
