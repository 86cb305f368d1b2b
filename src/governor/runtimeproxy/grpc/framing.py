"""The gRPC message in the body of a unary call: a compression flag, four bytes of length, the message.

| the message is | read as |
|---|---|
| not compressed | itself |
| compressed with gzip | decompressed, up to the size that kubelet and runtimes accept |
| compressed with another encoding, or none announced | UNIMPLEMENTED: plugins cannot be called for it |

Messages are written uncompressed, which the flag permits whatever encoding the headers announced.
"""

import zlib
from typing import Final

from governor.errors import GovernorError, Kind, invalid

MESSAGE_LIMIT_BYTES: Final = 16 * 1024 * 1024
PREFIX_BYTES: Final = 5
_GZIP_WINDOW: Final = 31


def unwrap(body: bytes | bytearray, encoding: str = "", limit_bytes: int = MESSAGE_LIMIT_BYTES) -> bytes:
    """Return the only message in ``body``; ``encoding`` is the grpc-encoding header."""
    if len(body) < PREFIX_BYTES:
        raise invalid("grpc-frame", f"a body of {len(body)} bytes is too short for a gRPC message")
    flag, length = body[0], announced_bytes(body)
    if length != len(body) - PREFIX_BYTES:
        got = len(body) - PREFIX_BYTES
        raise invalid("grpc-frame", f"expected one gRPC message of {length} bytes, got {got} bytes")
    match flag:
        case 0 if isinstance(body, bytes):
            return body[PREFIX_BYTES:]
        case 0:
            return bytes(memoryview(body)[PREFIX_BYTES:])
        case 1:
            return _decompress(bytes(memoryview(body)[PREFIX_BYTES:]), encoding, limit_bytes)
        case _:
            raise invalid("grpc-frame", f"the compression flag of a gRPC message is {flag}, expected 0 or 1")


def announced_bytes(body: bytes | bytearray) -> int:
    """Return the length that the message in ``body`` announces, or 0 while its prefix is incomplete."""
    return int.from_bytes(body[1:PREFIX_BYTES]) if len(body) >= PREFIX_BYTES else 0


def body_bytes(prefix: bytes) -> int:
    """Return the size of a body that starts so, as far as it says."""
    return PREFIX_BYTES + announced_bytes(prefix) if prefix[:1] in (b"\0", b"\1") else len(prefix)


def wrap(message: bytes) -> bytes:
    """Return a body with one uncompressed message."""
    return b"\0" + len(message).to_bytes(PREFIX_BYTES - 1) + message


def _decompress(message: bytes, encoding: str, limit_bytes: int) -> bytes:
    if encoding != "gzip":
        text = f"a gRPC message compressed with encoding {encoding!r} is not supported"
        raise GovernorError(Kind.UNIMPLEMENTED, "grpc-encoding", text)
    decompressor = zlib.decompressobj(_GZIP_WINDOW)
    try:
        decompressed = decompressor.decompress(message, limit_bytes + 1)
    except zlib.error as error:
        raise invalid("grpc-frame", f"a gRPC message is not valid gzip: {error}") from error
    if len(decompressed) > limit_bytes:
        text = f"a gRPC message decompresses to more than {limit_bytes} bytes"
        raise GovernorError(Kind.EXHAUSTED, "grpc-message-size", text)
    if not decompressor.eof:
        raise invalid("grpc-frame", "a gRPC message in gzip is truncated")
    return decompressed
