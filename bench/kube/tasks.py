"""The input and output of a worker process: a task, and the resources it used."""

from typing import Final, Literal, TypeAlias

import msgspec

LIBRARIES: Final = ("governor", "kubernetes_asyncio", "lightkube")
Operation: TypeAlias = Literal["apply", "get", "watch", "cache", "connect"]


class Task(msgspec.Struct, frozen=True):
    """One operation, ``count`` times, at most ``concurrency`` at a time."""

    operation: Operation
    kubeconfigs: tuple[str, ...]
    """Kubeconfig files: of one cluster, or for ``connect`` of all clusters."""
    namespace: str
    count: int
    concurrency: int = 1


class Usage(msgspec.Struct, frozen=True):
    """Resources used by ``count`` operations, without preparation and warm-up."""

    count: int
    seconds: float
    cpu_seconds: float
    resident_bytes: int = 0
    """Resident memory after garbage collection."""
    trimmed_bytes: int = 0
    """Resident memory after the C allocator has returned free memory too."""
    open_sockets: int = 0
    """Connections that the library has not closed."""
