"""What a peer did wrong, as RFC 9113 names it; raised and caught inside this package only."""

import enum


class ErrorCode(enum.IntEnum):
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


class _Http2Error(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Http2ConnectionError(_Http2Error):
    """The peer broke a rule of the connection: it ends."""


class Http2StreamError(_Http2Error):
    """The peer broke a rule of one stream: that stream ends, the others go on."""
