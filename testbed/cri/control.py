"""How a test speaks to the programs of ``testbed/go``: JSON over HTTP on a control socket.

Bytes are base64 there and ``bytes`` here; messages have the field names of their .proto files.
"""

import base64
import io
import json
from pathlib import Path
from typing import Any

import aiohttp

from testbed.recipes import provide
from testbed.server import Server, short_socket
from toolchain.errors import TestbedError

_ANSWER_WITHIN_S = 600.0

Json = dict[str, Any]


class Peer(Server):
    """One of the programs, which answers on its control socket."""

    def __init__(self, program: str, directory: Path) -> None:
        super().__init__(program, directory, [])
        self._binary = provide(["cri-client"])["cri-client"].with_name(program)
        self._control = short_socket(directory / "control")

    async def is_ready(self) -> bool:
        """Return whether the control socket is served."""
        try:
            await self.ask("GET", "/")
        except aiohttp.ClientConnectionError:
            return False
        except TestbedError:
            pass
        return True

    async def ask(self, method: str, path: str, wanted: object = None) -> Any:
        """Send one request to the control socket and return the response."""
        # As a file, since aiohttp warns of large texts.
        data = None if wanted is None else io.BytesIO(as_json(wanted).encode())
        timeout = aiohttp.ClientTimeout(_ANSWER_WITHIN_S)
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._control)), timeout=timeout) as session,
            session.request(method, f"http://control{path}", data=data) as answer,
        ):
            if answer.status != 200:
                raise TestbedError(f"{self.name} refuses {method} {path}: {await answer.text()}")
            return await answer.json()


def as_json(wanted: object) -> str:
    """Text for a program of the test bed."""
    return json.dumps(wanted, default=_base64)


def _base64(value: object) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value)} cannot be sent to a program of the test bed")
    return base64.b64encode(value).decode()


def decoded(text: str | None) -> bytes:
    """Bytes that a program of the test bed has sent."""
    return base64.b64decode(text or "")
