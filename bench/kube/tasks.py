"""The input and output of a worker process: a task, and the resources it used.

The worker is ``bench.kube.worker``, or for client-go the program in ``testbed/go/cmd/client-go-worker``.
"""

from typing import Any, Final, Literal, TypeAlias

import msgspec

OURS: Final = "governor"
PYTHON_PEERS: Final = ("kubernetes_asyncio", "lightkube")
CLIENT_GO: Final = ("client-go typed", "client-go dynamic")
"""client-go with its generated clients and their types, or with maps for objects of any kind."""
LIBRARIES: Final = (OURS, *CLIENT_GO, *PYTHON_PEERS)
"""What every task is run with."""
PROTOBUF: Final = "client-go protobuf"
TUNED_CACHES: Final = ("client-go stripped", "client-go projected", "client-go struct")
"""Informers with a transform: without managedFields, maps with our fields only, a hand-written struct of them."""
WARM_UP_FRACTION: Final = 10
"""One tenth of the operations runs before measuring."""
Operation: TypeAlias = Literal["apply", "get", "watch", "cache", "connect"]


def variant_of(library: str) -> str:
    """Return how client-go is used, or ``""`` for another library."""
    name, _, variant = library.partition(" ")
    return variant if name == "client-go" else ""


class Task(msgspec.Struct, frozen=True):
    """One operation, ``count`` times or until the time limit, at most ``concurrency`` at a time."""

    operation: Operation
    kubeconfigs: tuple[str, ...]
    """Kubeconfig files: of one cluster, or for ``connect`` of all clusters."""
    namespace: str
    count: int
    concurrency: int = 1
    limit_s: float = 0.0
    """How long to measure at most; 0 means no limit."""
    settle_s: float = 0.0
    """Idle time before the memory of idle clients is measured."""
    warm_up_namespace: str = ""
    """Objects to cache once before the memory of the cache is measured."""
    names: tuple[str, ...] = ()
    """The ConfigMaps to apply and get."""
    manifest: dict[str, Any] = {}
    """The ConfigMap to apply, except for its name and one text."""
    manager: str = ""
    is_replayed: bool = False
    """Whether the server replays a list and a watch, so that client-go must not ask for both in one."""

    @property
    def warm_up(self) -> int:
        """How many requests come before those that are measured, for connections, code and caches."""
        return max(self.concurrency, self.count // WARM_UP_FRACTION)


class Usage(msgspec.Struct, frozen=True):
    """Resources used by ``count`` operations, without preparation and warm-up."""

    count: int
    seconds: float
    cpu_seconds: float
    resident_bytes: int = 0
    """Resident memory after garbage collection."""
    trimmed_bytes: int = 0
    """Resident memory after the allocator has returned free memory too."""
    server_cpu_seconds: float = 0.0
    """What the API server and etcd used meanwhile; set by the program that starts them."""
    open_sockets: int = 0
    """Connections that the library has not closed."""
