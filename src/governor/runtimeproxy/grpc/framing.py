"""One gRPC message in the body of a unary call: a flag, four bytes of length, the message, perhaps compressed.

| the message is | read as |
|---|---|
| not compressed | it is |
| compressed with gzip | unpacked, up to the size that kubelet and runtimes accept |
| compressed otherwise, or announced as compressed without an encoding | UNIMPLEMENTED: nobody can be asked about it |

What is written is never compressed: the flag of each message says so, whatever encoding the headers announced.
"""

import zlib
from typing import Final

from governor.errors import GovernorError, Kind, invalid

MESSAGE_LIMIT_BYTES: Final = 16 * 1024 * 1024
_PREFIX_BYTES: Final = 5
_GZIP_WINDOW: Final = 31


def unwrap(body: bytes, encoding: str = "") -> bytes:
    """The one message in ``body``; ``encoding`` is the header ``grpc-encoding`` that came with it."""
    if len(body) < _PREFIX_BYTES:
        raise invalid("grpc-frame", f"a body of {len(body)} bytes holds no gRPC message")
    flag, length, message = body[0], int.from_bytes(body[1:_PREFIX_BYTES]), body[_PREFIX_BYTES:]
    if length != len(message):
        raise invalid("grpc-frame", f"a gRPC message of {length} bytes came in {len(message)} bytes: not one message")
    match flag:
        case 0:
            return message
        case 1:
            return _unpack(message, encoding)
        case _:
            raise invalid("grpc-frame", f"a gRPC message begins with {flag}, which is neither 0 nor 1")


def wrap(message: bytes) -> bytes:
    """The body of a call with this one message, not compressed."""
    return b"\0" + len(message).to_bytes(_PREFIX_BYTES - 1) + message


def _unpack(message: bytes, encoding: str) -> bytes:
    if encoding != "gzip":
        complaint = f"a gRPC message compressed with encoding {encoding!r} cannot be read"
        raise GovernorError(Kind.UNIMPLEMENTED, "grpc-encoding", complaint)
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        unpacked = unpacker.decompress(message, MESSAGE_LIMIT_BYTES + 1)
    except zlib.error as error:
        raise invalid("grpc-frame", f"a gRPC message is not the gzip it is said to be: {error}") from error
    if len(unpacked) > MESSAGE_LIMIT_BYTES:
        complaint = f"a gRPC message unpacks to more than {MESSAGE_LIMIT_BYTES} bytes"
        raise GovernorError(Kind.EXHAUSTED, "grpc-message-size", complaint)
    if not unpacker.eof:
        raise invalid("grpc-frame", "a gRPC message in gzip ends too early")
    return unpacked
