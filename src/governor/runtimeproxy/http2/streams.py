"""A relayed stream and its two lanes, one at the client's connection and one at the upstream's.

What is read from one lane is put into the other; a lane that is held keeps what is put in. Reading, writing and all
decisions are elsewhere.
"""

import enum
from collections import deque
from typing import Final

from governor.runtimeproxy.http2.flow_control import Flow
from governor.runtimeproxy.http2.frames import Payload
from governor.runtimeproxy.http2.header_blocks import Fields

_JOINED_MOST: Final = 4096


class Peer(enum.IntEnum):
    """The peers of a relay: the client, the runtime, and the image service if it is elsewhere."""

    CLIENT = 0
    RUNTIME = 1
    IMAGES = 2


class Stream:
    """One stream at one connection: what is still to be written to it, and how far each direction is closed."""

    __slots__ = (
        "credited",
        "ending",
        "flow",
        "got_end",
        "got_head",
        "head_ends",
        "heads",
        "held",
        "id",
        "length",
        "over",
        "sent_end",
        "sent_head",
        "size",
        "stream",
        "tail",
        "waiting",
    )

    def __init__(self, stream: "Exchange") -> None:
        self.stream = stream
        self.id = 0
        self.flow: Flow | None = None
        self.held = False
        self.heads: list[Fields] = []
        self.waiting: deque[Payload] = deque()
        self.head_ends = False
        """The last head is the end, and not an empty DATA frame after it: peers tell these apart."""
        self.tail: Fields | None = None
        self.ending = False
        """Nothing more will be put in."""
        self.size = 0
        """Bytes of DATA that wait."""
        self.credited = False
        """Whether the sender of what waits already got its credit, as for everything that was held."""
        self.length: int | None = None
        """Bytes of DATA that are still to be read, if the peer has said how many there are."""
        self.got_head = False
        self.got_end = False
        self.sent_head = False
        self.sent_end = False
        self.over = False
        """Nothing is read from it or written to it any more."""

    def put(self, payload: Payload) -> None:
        """DATA to be written. Flush, or ``keep``, before what it is a view of is given up."""
        if payload:
            self.waiting.append(payload)
            self.size += len(payload)

    def keep(self) -> None:
        """Make what was put in last our own, as a view keeps all that was read with it; many small parts become few."""
        if not self.waiting:
            return
        last = bytes(self.waiting.pop())
        if self.waiting and len(self.waiting[-1]) + len(last) <= _JOINED_MOST:
            last = b"".join((self.waiting.pop(), last))
        self.waiting.append(last)

    def joined(self) -> bytes:
        """All DATA that waits, and goes on waiting."""
        body = b"".join(self.waiting)
        self.replace(body)
        return body

    def replace(self, body: bytes) -> None:
        """Other DATA than what waits."""
        self.waiting.clear()
        self.size = 0
        self.put(body)

    def clear(self) -> None:
        """Nothing that waits will be written."""
        self.heads.clear()
        self.head_ends = False
        self.waiting.clear()
        self.size = 0
        self.tail = None
        self.ending = False
        self.held = False


class Outcome(enum.Enum):
    """How a stream ended."""

    COMPLETED = "completed"
    """The upstream answered and the client got all of it, whatever status it carries."""
    CANCELLED = "cancelled"
    """The client gave up, or went away."""
    RESET = "reset"
    """The upstream broke it off, or did not take it."""
    REFUSED = "refused"
    """We answered it instead of the upstream."""


class Exchange:
    """A request and its response; named by the client's stream number."""

    __slots__ = ("client", "hooked", "id", "interim", "outcome", "path", "side", "status", "upstream")

    def __init__(self, stream_id: int, path: bytes, side: Peer, *, hooked: bool) -> None:
        self.id = stream_id
        self.path = path
        self.side = side
        self.hooked = hooked
        self.client = Stream(self)
        self.upstream = Stream(self)
        self.interim = 0
        self.outcome = Outcome.COMPLETED
        self.status = b""
        """The gRPC status that the client is told, once known."""
