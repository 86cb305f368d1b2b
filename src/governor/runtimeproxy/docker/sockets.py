"""One connected Unix socket: bytes in and out with back-pressure, and each direction closed on its own."""

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Final, cast

_MAX_UNREAD: Final = 320 * 1024
"""Bytes received and not taken above which the peer is not read; the longest head fits."""
_CREDENTIALS: Final = struct.Struct("3i")


class PeerSocket(asyncio.Protocol):
    """The socket of a client or of dockerd."""

    def __init__(self, connected: Callable[["PeerSocket"], None] = lambda _: None) -> None:
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._unread = 0
        self._is_reading = True
        self._is_paused = False
        """The peer does not read."""
        self._has_sent_end = False
        self._waiters: set[asyncio.Future[None]] = set()
        self.ended = False
        """The peer has sent its last byte."""
        self.lost = False
        """The connection is closed in both directions."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        """Keep what was received; stop reading if it is much."""
        self._received.append(data)
        self._unread += len(data)
        self._regulate()
        self._wake()

    def eof_received(self) -> bool:
        """Keep the connection open: the peer may still read."""
        self.ended = True
        self._wake()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        self.ended = self.lost = True
        self._transport = None
        self._wake()

    def pause_writing(self) -> None:
        """Note that the peer does not keep up."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Note that the peer reads again."""
        self._is_paused = False
        self._wake()

    @property
    def has_data(self) -> bool:
        """Return whether there are bytes that were not taken."""
        return bool(self._unread)

    @property
    def pid(self) -> int:
        """Return the process id of the peer, or 0 if the connection is closed."""
        if self._transport is None:
            return 0
        sock = self._transport.get_extra_info("socket")
        return int(_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0])

    def is_gone(self) -> bool:
        """Return whether the peer has closed both directions; one that only ended its own can still read."""
        if self._transport is None or self._transport.is_closing():
            return True
        if not self.ended:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def take(self) -> bytes:
        """Return and remove all bytes received."""
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received.clear()
        self._unread = 0
        self._regulate()
        return data

    def put_back(self, data: bytes) -> None:
        """Return bytes that were taken and not used."""
        if data:
            self._received.insert(0, data)
            self._unread += len(data)
            self._regulate()

    async def wait(self) -> bool:
        """Wait for bytes; return False if there are none and no more will come."""
        while not self._unread:
            if self.ended:
                return False
            await self.changed()
        return True

    async def wait_lost(self) -> None:
        """Wait until the connection is closed in both directions."""
        while not self.lost:
            await self.changed()

    def changed(self) -> "asyncio.Future[None]":
        """Return a future that is done when something happens on the socket from now on."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    def write(self, data: bytes) -> None:
        """Write; what the peer can no longer receive is dropped."""
        if self._transport is not None and not self._has_sent_end:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the peer keeps up or is gone."""
        while self._is_paused and not self.lost:
            await self.changed()

    def send_end(self) -> None:
        """Close the direction to the peer, after what was written; it may still send."""
        if self._transport is not None and not self._has_sent_end and not self._transport.is_closing():
            self._has_sent_end = True
            with contextlib.suppress(OSError):
                self._transport.write_eof()

    def refuse_more(self) -> None:
        """Close the direction from the peer: its writes fail from now on, and what it has written can be read.

        So a client that sends its next request in this moment knows that it was not received, and sends it elsewhere.
        """
        if self._transport is None or self.ended:
            return
        duplicate = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        with duplicate, contextlib.suppress(OSError):
            duplicate.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close after what was written, however long the peer takes to read it."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _regulate(self) -> None:
        if self._transport is None or self.ended or self._transport.is_closing():
            return
        is_wanted = self._unread < _MAX_UNREAD
        if is_wanted != self._is_reading:
            self._is_reading = is_wanted
            (self._transport.resume_reading if is_wanted else self._transport.pause_reading)()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
