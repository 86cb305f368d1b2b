"""When components were written to the API server, as a watch of the benchmark receives it."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from governor.kube.client import Client, Request, Transport
from governor.kube.config.kubeconfig import load

_PATH: Final = "/apis/dapr.io/v1alpha1/components"


class _Metadata(msgspec.Struct, frozen=True):
    namespace: str


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Object


class Writes:
    """The times at which components were written, by namespace, while the context is open."""

    def __init__(self, kubeconfig: Path) -> None:
        self._access = load(kubeconfig)
        self._times: list[tuple[str, float]] = []
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running
        self._running.cancel()
        await asyncio.wait({self._running})

    def first(self, namespace: str, since: float) -> float:
        """Return when a component in a namespace was first written after a time."""
        if self._running is not None and self._running.done():
            self._running.result()
            raise RuntimeError("the API server closed the watch of components")
        found = next((when for name, when in self._times if name == namespace and when >= since), None)
        if found is None:
            raise RuntimeError(f"the watch has not shown a write in namespace {namespace}")
        return found

    async def _run(self) -> None:
        async with Transport() as transport:
            request = Request("GET", _PATH, {"watch": "true", "timeoutSeconds": "3600"})
            async with aclosing(Client(transport, self._access).stream_lines(request)) as lines:
                async for line in lines:
                    event = msgspec.json.decode(line, type=_Event)
                    self._times.append((event.object.metadata.namespace, datetime.now(UTC).timestamp()))
