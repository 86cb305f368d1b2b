"""The answers that we give in place of an upstream: a gRPC status without a message."""

import base64
import re
from typing import Final

from governor.runtimeproxy.http2.blocks import Fields

RESOURCE_EXHAUSTED: Final = 8
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

_ENCODED: Final = re.compile(rb"[^ -$&-~]")


def trailers(status: int, message: str, details: bytes = b"") -> Fields:
    """The fields that end a response which has begun."""
    text = _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], message.encode(errors="replace"))
    fields = [(b"grpc-status", b"%d" % status), (b"grpc-message", text)]
    if details:
        fields.append((b"grpc-status-details-bin", base64.b64encode(details).rstrip(b"=")))
    return fields


def trailers_only(status: int, message: str, details: bytes = b"") -> Fields:
    """The fields that are a whole response."""
    return [(b":status", b"200"), (b"content-type", b"application/grpc"), *trailers(status, message, details)]


def status_in(fields: Fields) -> bytes:
    """The gRPC status of a response's last fields, empty if it has none."""
    for name, value in fields:
        if name == b"grpc-status":
            return value
    return b""


def with_length(fields: Fields, length: int) -> Fields:
    """The same fields for a body of another length; gRPC seldom declares one."""
    return [(name, b"%d" % length if name == b"content-length" else value) for name, value in fields]
