"""Heads of HTTP/1.1 requests and responses, without I/O.

A head is forwarded as the bytes that were received; it is parsed to find where the message ends and what it asks. What
two parsers could read differently is refused, so that no client can hide a request from the proxy: bare CR or LF,
folded lines, space before a colon, Content-Length beside Transfer-Encoding, different Content-Lengths.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.runtimeproxy.docker.bodies import Body, Chunked, NoBody, Sized, UntilClose

MAX_HEAD_BYTES: Final = 256 * 1024
"""Registry credentials for a build are sent in one header field."""
_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_BARE_LINE_END: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)(?!\Z)")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_SWITCHING_PROTOCOLS: Final = 101
_NO_CONTENT: Final = 204
_NOT_MODIFIED: Final = 304

Fields = tuple[tuple[bytes, bytes], ...]
"""Names in lower case, and values without surrounding space."""


class Head(msgspec.Struct, frozen=True):
    """What requests and responses have in common."""

    raw: bytes
    fields: Fields
    minor: int
    """The minor version: 0 for HTTP/1.0."""

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a field."""
        return [value for key, value in self.fields if key == name]

    def tokens(self, name: bytes) -> set[bytes]:
        """Return the elements of a list field, in lower case."""
        return {each.strip().lower() for value in self.values(name) for each in value.split(b",")}

    @property
    def closes(self) -> bool:
        """Return whether the connection ends with this message."""
        return self.minor == 0 or b"close" in self.tokens(b"connection")


class RequestHead(Head, frozen=True):
    """The head of a request."""

    method: str = ""
    target: bytes = b""

    @property
    def expects_continue(self) -> bool:
        """Return whether the client waits for ``100 Continue`` before it sends the body."""
        return b"100-continue" in self.tokens(b"expect")

    @property
    def upgrades(self) -> bool:
        """Return whether the client asks for another protocol on this connection."""
        return bool(self.values(b"upgrade")) and b"upgrade" in self.tokens(b"connection")

    def body(self) -> Body:
        """Return the framing of the request's body."""
        if self.values(b"transfer-encoding"):
            return Chunked()
        lengths = self.values(b"content-length")
        return Sized(int(lengths[0])) if lengths else NoBody()

    def with_body(self, length: int | None) -> bytes:
        """Return the head for a body that is sent at once, with another length if given; all else is unchanged."""
        dropped = {b"expect"}
        if length is not None:
            dropped |= {b"transfer-encoding", b"content-length", b"trailer"}
        first, *lines = self.raw[: -len(_END)].split(b"\r\n")
        kept = [line for line in lines if line.partition(b":")[0].lower() not in dropped]
        added = [b"Content-Length: %d" % length] if length is not None else []
        return b"\r\n".join([first, *kept, *added]) + _END


class ResponseHead(Head, frozen=True):
    """The head of a response."""

    status: int = 0

    @property
    def is_interim(self) -> bool:
        """Return whether another response follows for the same request."""
        return 100 <= self.status < 200 and self.status != _SWITCHING_PROTOCOLS

    @property
    def switches(self) -> bool:
        """Return whether the connection speaks another protocol from now on."""
        return self.status == _SWITCHING_PROTOCOLS

    def body(self, method: str) -> Body:
        """Return the framing of the response's body to a request of this method."""
        if method == "HEAD" or self.status in (_NO_CONTENT, _NOT_MODIFIED) or self.is_interim:
            return NoBody()
        if self.values(b"transfer-encoding"):
            return Chunked()
        lengths = self.values(b"content-length")
        return Sized(int(lengths[0])) if lengths else UntilClose()


def head_length(data: bytes | bytearray) -> int:
    """Return the length of the head at the start of ``data``, or 0 if it is incomplete; raise INVALID or EXHAUSTED."""
    end = data.find(_END)
    length = 0 if end < 0 else end + len(_END)
    if (length or len(data)) > MAX_HEAD_BYTES:
        raise GovernorError(Kind.EXHAUSTED, "http-head", f"the head is longer than {MAX_HEAD_BYTES} bytes")
    if _BARE_LINE_END.search(data, 0, length or len(data)):
        raise _malformed("a line does not end with CR LF")
    return length


def request_head(raw: bytes) -> RequestHead:
    """Return a complete request head; raise INVALID if it is malformed or ambiguous."""
    first, fields = _parts(raw)
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        raise _malformed("the request line is malformed, or not of HTTP/1.1")
    head = RequestHead(raw, fields, int(matched[3]), matched[1].decode(), matched[2])
    _check_length(head)
    return head


def response_head(raw: bytes) -> ResponseHead:
    """Return a complete response head; raise INVALID if it is malformed or ambiguous."""
    first, fields = _parts(raw)
    matched = _STATUS_LINE.fullmatch(first)
    if matched is None:
        raise _malformed("the status line is malformed, or not of HTTP/1.1")
    head = ResponseHead(raw, fields, int(matched[1]), int(matched[2]))
    _check_length(head)
    return head


def _parts(raw: bytes) -> tuple[bytes, Fields]:
    first, *lines = raw[: -len(_END)].split(b"\r\n")
    return first, tuple(_fields(lines))


def _fields(lines: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    for line in lines:
        matched = _FIELD.fullmatch(line)
        if matched is None:
            raise _malformed("a header line is malformed")
        yield matched[1].lower(), matched[2].rstrip(b" \t")


def _check_length(head: Head) -> None:
    lengths, codings = set(head.values(b"content-length")), head.values(b"transfer-encoding")
    if lengths and codings:
        raise _malformed("both Content-Length and Transfer-Encoding are given")
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise _malformed("Content-Length is not one number")
    if codings and (head.minor == 0 or [each.lower() for each in codings] != [b"chunked"]):
        raise _malformed("Transfer-Encoding is not chunked")


def _malformed(reason: str) -> GovernorError:
    return invalid("http-head", f"malformed HTTP head: {reason}")
