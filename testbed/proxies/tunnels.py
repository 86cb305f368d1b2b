"""An HTTP CONNECT proxy, as HTTPS_PROXY or a kubeconfig's ``proxy-url`` names it."""

import asyncio
from collections.abc import Mapping

from testbed.proxies.proxy import HEAD_BYTES, Proxy, fields, read_head


class TunnelProxy(Proxy):
    """A proxy that opens a tunnel for each CONNECT request and records its target.

    ``names`` are host names that only the proxy can resolve, with their addresses.
    """

    def __init__(self, names: Mapping[str, str] | None = None, host: str = "127.0.0.1") -> None:
        super().__init__(host=host)
        self.names = dict(names or {})
        self.targets: list[str] = []
        """The target of each tunnel, as ``host:port``."""
        self.authorizations: list[str] = []
        """The Proxy-Authorization of each tunnel, or ``""``."""
        self.rejection = ""
        """The status with which tunnels are rejected, such as ``403 Forbidden``."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one tunnel."""
        head = await read_head(reader)
        method, target, _ = head.decode("latin-1").split(" ", 2)
        rejection = "405 Method Not Allowed" if method != "CONNECT" else self.rejection
        if rejection:
            await self.send(writer, f"HTTP/1.1 {rejection}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        self.targets.append(target)
        self.authorizations.append(fields(head).get(b"proxy-authorization", b"").decode("latin-1"))
        name, _, port = target.rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(self.names.get(name, name), int(port), limit=HEAD_BYTES)
        await self.send(writer, b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self.relay(up_writer, self.copy(reader, up_writer), self.copy(up_reader, writer))
