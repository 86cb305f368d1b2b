"""Header blocks: decoded with the connection's table, written without one, and checked as RFC 9113 asks.

Blocks are written as literals that no table keeps, so each can be delayed, dropped or sent to another connection
without the others noticing. A field that must never be indexed stays one. What the fields mean is not here.
"""

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from hpack import Decoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError

Field: TypeAlias = tuple[bytes, bytes]
Fields: TypeAlias = Sequence[Field]
"""In order, and never changed: the same list may serve many messages."""

_NO_TABLE: Final = b"\x20"
"""Sets our table's size to 0: allowed whatever SETTINGS_HEADER_TABLE_SIZE the peer chooses, at any time."""

_ENTRY: Final = 32
"""What a field counts besides its bytes."""

_CACHED_MOST: Final = 512
_CACHED_SIZE: Final = 256
_LITERAL: Final = 0x00
_NEVER_INDEXED: Final = 0x10

_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_LENGTH: Final = b"content-length"
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")
_VALUES: Final = {b"te": re.compile(rb"trailers"), _LENGTH: re.compile(rb"[0-9]{1,19}")}
"""Fields that cannot have any value."""
HOP_BY_HOP: Final = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_REQUEST: Final = {b":method", b":scheme", b":path", b":authority"}
_RESPONSE: Final = {b":status"}
_TRAILERS: Final[set[bytes]] = set()


class CachedFields(list[Field]):
    """The fields of a block that will come again: keeps what was once found out about them."""

    __slots__ = ("leading", "literals")

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.literals = b""
        """How they are written, which is the same on every connection."""
        self.leading: tuple[set[bytes], dict[bytes, bytes]] | None = None
        """Their pseudo-header fields and length, and which were allowed when they were found right."""


class HeaderDecoder:
    """Decodes the blocks of one direction of a connection, each of them, in order."""

    __slots__ = ("_decoder", "_known")

    def __init__(self, list_size: int) -> None:
        self._decoder = Decoder(list_size)
        self._known: dict[bytes, CachedFields] = {}
        """Blocks that only name entries of the table, until it changes: most responses."""

    def read(self, block: bytes) -> Fields:
        """The fields of a block, not to be changed; afterwards the connection is of no use if this fails."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            return self._read(block)
        except OversizedHeaderListError as error:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header list that is too large") from error
        except HPACKError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "a header block that cannot be decoded") from error

    def _read(self, block: bytes) -> Fields:
        """Most fields are one byte, an index: those are looked up here, the rest is the library's."""
        fields: list[Field] = []
        entry = self._decoder.header_table.get_by_index
        for at, byte in enumerate(block):
            if not 0x80 < byte < 0xFF:
                self._known.clear()
                self._read_rest(fields, block[at:])
                self._check_size(fields)
                return fields
            fields.append(entry(byte & 0x7F))
        self._check_size(fields)
        if len(self._known) < _CACHED_MOST and len(block) <= _CACHED_SIZE:
            fields = self._known[block] = CachedFields(fields)
        return fields

    def _read_rest(self, fields: list[Field], block: bytes) -> None:
        if fields and block[0] & 0xE0 == _NO_TABLE[0]:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "a table's size changes within a header block")
        fields.extend(self._decoder.decode(block, raw=True))

    def _check_size(self, fields: Fields) -> None:
        if sum([len(name) + len(value) + _ENTRY for name, value in fields]) > self._decoder.max_header_list_size:
            raise OversizedHeaderListError


class HeaderEncoder:
    """Writes the blocks of one direction of a connection, and remembers how frequent fields are written."""

    __slots__ = ("_begun", "_cache")

    def __init__(self) -> None:
        self._cache: dict[Field, bytes] = {}
        self._begun = False

    def write(self, fields: Fields) -> bytes:
        """A block that depends on no other."""
        if not isinstance(fields, CachedFields):
            block = self._literals(fields)
        else:
            block = fields.literals or self._literals(fields)
            fields.literals = block
        if self._begun:
            return block
        self._begun = True
        return _NO_TABLE + block

    def _literals(self, fields: Fields) -> bytes:
        return b"".join([self._known(field) or self._literal(field) for field in fields])

    def _known(self, field: Field) -> bytes | None:
        return None if isinstance(field, NeverIndexedHeaderTuple) else self._cache.get(field)

    def _literal(self, field: Field) -> bytes:
        written = literal(field)
        if len(written) <= _CACHED_SIZE and not isinstance(field, NeverIndexedHeaderTuple):
            if len(self._cache) >= _CACHED_MOST:
                self._cache.clear()
            self._cache[field] = written
        return written


def literal(field: Field) -> bytes:
    """One field by the static table alone."""
    name, value = field
    if isinstance(field, NeverIndexedHeaderTuple):
        return _named(name, HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))[0], _NEVER_INDEXED) + _text(value)
    index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
    if value in values:
        return bytes([0x80 | values[value]])
    return _named(name, index, _LITERAL) + _text(value)


def _named(name: bytes, index: int, how: int) -> bytes:
    prefix = encode_integer(index, 4)
    prefix[0] |= how
    return bytes(prefix) if index else bytes(prefix) + _text(name)


def _text(text: bytes) -> bytes:
    return bytes(encode_integer(len(text), 7)) + text


class FieldValidator:
    """What RFC 9113 asks of the fields of a message; remembers fields that it found right."""

    __slots__ = ("_right",)

    def __init__(self) -> None:
        self._right: set[Field] = set()

    def check_request(self, fields: Fields) -> tuple[bytes, int | None]:
        """The path of a request and its length if it says one; without a path, as CONNECT, it cannot be relayed."""
        leading = self._leading(fields, _REQUEST)
        if not (leading.get(b":path") and b":method" in leading and b":scheme" in leading):
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "a request without method, scheme or path")
        length = leading.get(_LENGTH)
        return leading[b":path"], None if length is None else int(length)

    def check_response(self, fields: Fields) -> bytes:
        """The HTTP status of a response."""
        status = self._leading(fields, _RESPONSE).get(b":status", b"")
        if len(status) != len(b"200") or not status.isdigit():
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "a response without a status")
        return status

    def check_trailers(self, fields: Fields) -> None:
        """Trailers have no pseudo-header fields."""
        self._leading(fields, _TRAILERS)

    def _leading(self, fields: Fields, known: set[bytes]) -> dict[bytes, bytes]:
        """The pseudo-header fields, which come first and once each; with them the length, if there is one."""
        if not isinstance(fields, CachedFields):
            return self._find_leading(fields, known)
        if fields.leading is None or fields.leading[0] is not known:
            fields.leading = known, self._find_leading(fields, known)
        return fields.leading[1]

    def _find_leading(self, fields: Fields, known: set[bytes]) -> dict[bytes, bytes]:
        leading: dict[bytes, bytes] = {}
        right = self._right
        ordinary = False
        for field in fields:
            if field not in right:
                self._check(field)
            name = field[0]
            if name[0] != 0x3A:
                ordinary = True
                if name == _LENGTH and leading.setdefault(_LENGTH, field[1]) != field[1]:
                    raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "two lengths of one message")
            elif ordinary or name in leading or name not in known:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, f"the pseudo-header field {name!r} is out of place")
            else:
                leading[name] = field[1]
        return leading

    def _check(self, field: Field) -> None:
        name, value = field
        if not _NAME.fullmatch(name) or name in HOP_BY_HOP:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, f"a field with the name {name[:64]!r}")
        if not _VALUES.get(name, _VALUE).fullmatch(value):
            raise Http2StreamError(
                ErrorCode.PROTOCOL_ERROR, f"the field {name[:64]!r} has a value that no such field can have"
            )
        if len(name) + len(value) <= _CACHED_SIZE:
            if len(self._right) >= _CACHED_MOST:
                self._right.clear()
            self._right.add((name, value))
