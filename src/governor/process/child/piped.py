"""Children that are spoken to: their standard input and output are one stream, standard error is kept as a tail."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from governor.process.child import child
from governor.process.child.child import Child

_BUFFER_BYTES: Final = 1024 * 1024


class Piped:
    """A child process and the stream to it."""

    def __init__(self, process: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer

    async def stop(self, grace_s: float) -> child.ChildExit:
        """Close the stream, then stop the child with SIGTERM, and with SIGKILL after ``grace_s``."""
        self.writer.close()
        return await self.process.stop(grace_s)


async def start(argv: Sequence[str], *, env: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()) -> Piped:
    """Start ``argv`` with a stream as its standard input and output; it inherits ``descriptors``, too."""
    ours, theirs = socket.socketpair()
    try:
        reader, writer = await asyncio.open_connection(sock=ours, limit=_BUFFER_BYTES)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    try:
        process = await child.start(argv, env=env, channel=theirs, descriptors=descriptors)
    except BaseException:
        writer.close()
        raise
    finally:
        theirs.close()
    return Piped(process, reader, writer)
