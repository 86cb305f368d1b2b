"""An HTTP proxy that tunnels: what a cluster behind a firewall is reached through (``proxy-url``)."""

import asyncio

from testbed.proxies.proxy import HEAD_BYTES, Proxy, read_head


class TunnelProxy(Proxy):
    """Connects to wherever a client asks for with CONNECT, and remembers it."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        """What each tunnel led to, as ``host:port``."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One tunnel."""
        method, target, _ = (await read_head(reader)).decode("latin-1").split(" ", 2)
        if method != "CONNECT":
            await self.send(writer, b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
            return
        self.targets.append(target)
        host, _, port = target.rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port), limit=HEAD_BYTES)
        await self.send(writer, b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self.couple(up_writer, self.copy(reader, up_writer), self.copy(up_reader, writer))
