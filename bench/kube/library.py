"""What each library is used for; its module beside this one does it as the library's documents show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Session(Protocol):
    """One client of one cluster."""

    async def apply(self, manifest: dict[str, Any]) -> None:
        """Server-side apply of a ConfigMap, with force; the answer is decoded."""

    async def get(self, namespace: str, name: str) -> None:
        """Read a ConfigMap."""

    async def watch(self, namespace: str, enough: Callable[[], bool]) -> None:
        """Watch the Deployments of a namespace and call ``enough`` for each change, until it says so."""

    async def hold(self, namespace: str) -> object:
        """All Deployments of a namespace, by name."""


class Library(Protocol):
    """One library in one process."""

    async def open(self, kubeconfig: Path) -> Session:
        """A client made from a kubeconfig."""

    async def close(self) -> None:
        """Close all clients."""
