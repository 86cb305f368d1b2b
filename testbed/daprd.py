"""A Dapr sidecar started on its own: no control plane, no mutual TLS, everything on loopback."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from testbed.server import Server

_PROBE_WITHIN_S = 2.0


@dataclass(frozen=True)
class Sidecar:
    """The settings of one sidecar."""

    app_id: str
    resources: Path
    arguments: tuple[str, ...] = ()


class Daprd(Server):
    """A standalone sidecar on loopback, without control plane and mutual TLS."""

    def __init__(self, binary: Path, directory: Path, sidecar: Sidecar) -> None:
        super().__init__("daprd", directory, ["http", "grpc", "internal-grpc", "public", "metrics"])
        self._binary = binary
        self._sidecar = sidecar

    @property
    def url(self) -> str:
        """The URL of the HTTP API."""
        return f"http://127.0.0.1:{self.ports['http']}"

    def command(self) -> list[str]:
        """Return the command line, with one port for each interface."""
        ports = self.ports
        settings = {
            "mode": "standalone",
            "app-id": self._sidecar.app_id,
            "resources-path": self._sidecar.resources,
            "dapr-http-port": ports["http"],
            "dapr-grpc-port": ports["grpc"],
            "dapr-internal-grpc-port": ports["internal-grpc"],
            "dapr-public-port": ports["public"],
            "metrics-port": ports["metrics"],
            "dapr-listen-addresses": "127.0.0.1",
            "dapr-internal-grpc-listen-address": "127.0.0.1",
            "dapr-public-listen-address": "127.0.0.1",
            "metrics-listen-address": "127.0.0.1",
            "enable-mtls": "false",
        }
        return [str(self._binary), *(f"--{name}={value}" for name, value in settings.items()), *self._sidecar.arguments]

    def environment(self) -> dict[str, str]:
        """Add the namespace: without one, resources of the same name in two namespaces conflict."""
        return {**super().environment(), "NAMESPACE": "default"}

    async def is_ready(self) -> bool:
        """Return whether the components are initialised; the application need not be up.

        A sidecar that is about to exit because of a component may be ready for a moment.
        """
        return await _status(self.ports["http"], "/v1.0/healthz/outbound") == 204


async def _status(port: int, path: str) -> int:
    """Return the status of one GET, or 0 if there is no response."""
    try:
        async with asyncio.timeout(_PROBE_WITHIN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return int((await reader.readuntil(b"\r\n")).split()[1])
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return 0
