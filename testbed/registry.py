"""The OCI registry of the distribution project, with TLS, passwords or tokens if they are wanted."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.server import Server


@dataclass(frozen=True)
class Protection:
    """How a registry is protected; by default not at all."""

    certificate: Path | None = None
    key: Path | None = None
    auth: dict[str, Any] | None = None
    """The section ``auth`` of its configuration."""


class Registry(Server):
    """A registry, by default on loopback; its content stays in its directory."""

    def __init__(
        self,
        binary: Path,
        directory: Path,
        protection: Protection = Protection(),  # noqa: B008
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__("registry", directory, ["registry"])
        self._binary = binary
        self._protection = protection
        self._host = host

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self._host}:{self.ports['registry']}"

    def command(self) -> list[str]:
        """Write the configuration and return the command line."""
        protection = self._protection
        http: dict[str, Any] = {"addr": self.address}
        if protection.certificate is not None:
            http["tls"] = {"certificate": str(protection.certificate), "key": str(protection.key)}
        auth = {"auth": protection.auth} if protection.auth else {}
        storage = {"filesystem": {"rootdirectory": str(self.directory / "storage")}}
        settings = {"version": "0.1", "storage": storage, "http": http, **auth}
        file = self.directory / "registry.json"
        file.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
        return [str(self._binary), str(file)]

    async def is_ready(self) -> bool:
        """Return whether the server accepts connections."""
        try:
            _, writer = await asyncio.open_connection(self._host, self.ports["registry"])
        except OSError:
            return False
        writer.close()
        return True
