"""What one fresh process is asked to do with a library, and what that took."""

from typing import Final, Literal, TypeAlias

import msgspec

LIBRARIES: Final = ("governor", "kubernetes_asyncio", "lightkube")
Act: TypeAlias = Literal["apply", "get", "watch", "hold", "connect"]


class Task(msgspec.Struct, frozen=True):
    """One act, ``count`` times, ``at_once`` of them side by side."""

    act: Act
    kubeconfigs: tuple[str, ...]
    """Their files: of the one cluster, or to ``connect`` of all of them."""
    namespace: str
    count: int
    at_once: int = 1


class Usage(msgspec.Struct, frozen=True):
    """What ``count`` acts took of the process; preparation and the first acts are not in it."""

    count: int
    seconds: float
    cpu_seconds: float
    resident_bytes: int = 0
    """Memory of the process, without garbage."""
    held_bytes: int = 0
    """Also without what the C library's allocator keeps for later."""
    open_sockets: int = 0
    """Connections that the library has not let go of."""
