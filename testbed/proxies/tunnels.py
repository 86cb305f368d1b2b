"""An HTTP CONNECT proxy, as a kubeconfig's ``proxy-url`` names it."""

import asyncio

from testbed.proxies.proxy import HEAD_BYTES, Proxy, read_head


class TunnelProxy(Proxy):
    """A proxy that opens a tunnel for each CONNECT request and records its target."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        """The target of each tunnel, as ``host:port``."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one tunnel."""
        method, target, _ = (await read_head(reader)).decode("latin-1").split(" ", 2)
        if method != "CONNECT":
            await self.send(writer, b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        self.targets.append(target)
        host, _, port = target.rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port), limit=HEAD_BYTES)
        await self.send(writer, b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self.relay(up_writer, self.copy(reader, up_writer), self.copy(up_reader, writer))
