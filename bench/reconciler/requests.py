"""Requests that an API server has received, by verb, resource and status, from its metrics."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from governor.kube.client import Client, Request

_LINE: Final = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<count>\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_READS: Final = frozenset({"CONNECT", "GET", "LIST", "PROXY", "WATCH", "WATCHLIST"})
_LEASES: Final = "leases.coordination.k8s.io"
_FIRST_ERROR: Final = 400


class Kind(msgspec.Struct, frozen=True):
    """Requests that are counted together."""

    verb: str
    resource: str
    """Plural and group."""
    status: int

    def __str__(self) -> str:
        error = f" ({self.status})" if self.status >= _FIRST_ERROR else ""
        return f"{self.verb} {self.resource}{error}"

    @property
    def is_write(self) -> bool:
        """Whether it is a request to write, granted or not, and not of a Lease."""
        return self.verb not in _READS and self.resource != _LEASES

    @property
    def is_list(self) -> bool:
        """Whether it is a list, also one at the beginning of a watch."""
        return self.verb in ("LIST", "WATCHLIST")


class Requests(msgspec.Struct, frozen=True):
    """Number of requests of each kind; dry runs are not among them."""

    counts: Mapping[Kind, int]

    def since(self, earlier: "Requests") -> "Requests":
        """Return the requests between two readings."""
        return Requests(
            {kind: number for kind, count in self.counts.items() if (number := count - earlier.counts.get(kind, 0))}
        )

    @property
    def total(self) -> int:
        """Number of all requests but those of Leases."""
        return sum(count for kind, count in self.counts.items() if kind.resource != _LEASES)

    @property
    def writes(self) -> dict[str, int]:
        """Number of requests to write by verb, resource and error."""
        return {str(kind): count for kind, count in self.counts.items() if kind.is_write}

    @property
    def lists(self) -> dict[str, int]:
        """Number of lists by resource."""
        found: Counter[str] = Counter()
        for kind, count in self.counts.items():
            if kind.is_list:
                found[kind.resource] += count
        return dict(found)


def parse(metrics: str) -> Requests:
    """Return the requests that the metrics of an API server count."""
    found: Counter[Kind] = Counter()
    for line in _LINE.finditer(metrics):
        labels = dict(_LABEL.findall(line["labels"]))
        if labels["resource"] and not labels["dry_run"]:
            resource = ".".join(filter(None, (labels["resource"], labels["group"])))
            found[Kind(labels["verb"], resource, int(labels["code"]))] += int(float(line["count"]))
    return Requests(found)


async def read(client: Client) -> Requests:
    """Read the metrics of an API server."""
    return parse((await client.send(Request("GET", "/metrics", accept="text/plain"))).decode())
