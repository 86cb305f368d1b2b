"""Protocol errors of a peer, as RFC 9113 defines them; raised and caught inside the proxy's HTTP/2 code only."""

import enum


class ErrorCode(enum.IntEnum):
    """Error codes of RFC 9113 that we send. Codes received from peers are forwarded unchanged, known or not."""

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
    """A connection error: the connection is closed with GOAWAY."""


class Http2StreamError(_Http2Error):
    """A stream error: the stream is reset, the others continue."""
