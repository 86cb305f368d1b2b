"""What a peer did wrong, as RFC 9113 names it; raised and caught inside this package only."""

import enum


class Code(enum.IntEnum):
    """The error codes of RFC 9113; numbers of peers are passed on as they are, also unknown ones."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class _Fault(Exception):  # noqa: N818 - RFC 9113 speaks of errors of connections and streams, here they are faults
    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ConnectionFault(_Fault):
    """The peer broke a rule of the connection: it ends."""


class StreamFault(_Fault):
    """The peer broke a rule of one stream: that stream ends, the others go on."""
