"""Header blocks (HPACK): decoded with the connection's dynamic table, encoded without one, validated per RFC 9113.

Blocks are encoded as literals without indexing, so that each can be delayed, dropped or sent to another connection
independently of the others. Never-indexed fields stay never-indexed. The meaning of fields is not handled here.
"""

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from hpack import Decoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError
from hpack.hpack import encode_integer
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError

Field: TypeAlias = tuple[bytes, bytes]
Fields: TypeAlias = Sequence[Field]
"""Field lines in order. Never mutated: one list may serve many messages."""

_TABLE_SIZE_ZERO: Final = b"\x20"
"""Dynamic table size update to 0, which is allowed for any SETTINGS_HEADER_TABLE_SIZE, at any time."""

_FIELD_OVERHEAD: Final = 32
"""Added to the size of each field line (RFC 9113 section 6.5.2)."""

_INDEXED: Final = 0x80
_NEW_NAME: Final = 0x40
_LONG_INDEX: Final = 0xFF
"""An indexed field whose index takes another byte; with two, each entry of a table of the default size is reached."""
_STATIC: Final = ((b"", b""), *HeaderTable.STATIC_TABLE)
"""By index, which starts with 1."""
_FIRST_DYNAMIC: Final = len(_STATIC)

_MAX_CACHED: Final = 128
_MAX_CACHED_BYTES: Final = 256
_SHORT: Final = 0x7F
_SHORT_LENGTHS: Final = [bytes([length]) for length in range(_SHORT)]
_WITHOUT_INDEXING: Final = 0x00
_NEVER_INDEXED: Final = 0x10

_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_CONTENT_LENGTH: Final = b"content-length"
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")
_RESTRICTED_VALUES: Final = {b"te": re.compile(rb"trailers"), _CONTENT_LENGTH: re.compile(rb"[0-9]{1,19}")}
HOP_BY_HOP: Final = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_REQUEST_PSEUDO: Final = {b":method", b":scheme", b":path", b":authority"}
_RESPONSE_PSEUDO: Final = {b":status"}
_NO_PSEUDO: Final[set[bytes]] = set()


class PlainFields(list[Field]):
    """Fields of which none is never-indexed."""

    __slots__ = ()


class CachedFields(PlainFields):
    """The fields of a block that is likely to recur, with the results of encoding and validating them."""

    __slots__ = ("encoded", "validated")

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.encoded = b""
        """The literals, which are the same on every connection."""
        self.validated: tuple[set[bytes], dict[bytes, bytes]] | None = None
        """The pseudo-header fields that were allowed, and the special fields found."""


class HeaderDecoder:
    """Decodes all header blocks received on one connection, in order."""

    __slots__ = ("_cache", "_decoder")

    def __init__(self, max_list_size: int) -> None:
        self._decoder = Decoder(max_list_size)
        self._cache: dict[bytes, CachedFields] = {}
        """Fully indexed blocks, as most responses are, until the dynamic table changes."""

    def decode(self, block: bytes) -> Fields:
        """Return the fields of a block, not to be mutated. After an error the connection is unusable."""
        cached = self._cache.get(block)
        if cached is not None:
            return cached
        try:
            return self._decode(block)
        except OversizedHeaderListError as error:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header list too large") from error
        except HPACKError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "header block cannot be decoded") from error

    def _decode(self, block: bytes) -> Fields:
        """Decode the usual representations here, which takes a third of the time; leave the rest to the library."""
        fields: list[Field] = PlainFields()
        table = self._decoder.header_table
        dynamic = table.dynamic_entries
        at, end, is_changed = 0, len(block), False
        while at < end:
            byte = block[at]
            if byte > _INDEXED:
                index, after = (byte & 0x7F, at + 1) if byte < _LONG_INDEX else _long_index(block, at + 1)
                if 0 < index < _FIRST_DYNAMIC + len(dynamic):
                    fields.append(_STATIC[index] if index < _FIRST_DYNAMIC else dynamic[index - _FIRST_DYNAMIC])
                    at = after
                    continue
            is_changed = True
            field, after = _literal_to_index(table, block, at)
            if field is None:
                fields = self._decode_rest(fields, block[at:])
                break
            table.add(*field)
            fields.append(field)
            at = after
        self._check_size(fields, end)
        if is_changed:
            self._cache.clear()
        elif len(self._cache) < _MAX_CACHED and end <= _MAX_CACHED_BYTES:
            fields = self._cache[block] = CachedFields(fields)
        return fields

    def _decode_rest(self, fields: list[Field], block: bytes) -> list[Field]:
        """Return all fields; some of the rest may be never-indexed."""
        if fields and block[0] & 0xE0 == _TABLE_SIZE_ZERO[0]:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "table size update within a header block")
        return [*fields, *self._decoder.decode(block, raw=True)]

    def _check_size(self, fields: Fields, block_bytes: int) -> None:
        limit = self._decoder.max_header_list_size
        # An entry of the table has at most its size, and what is coded in the block less than twice that.
        if len(fields) * self._decoder.max_allowed_table_size + 2 * block_bytes <= limit:
            return
        size = sum([len(name) + len(value) + _FIELD_OVERHEAD for name, value in fields])
        if size > limit:
            raise OversizedHeaderListError


def _long_index(block: bytes, at: int) -> tuple[int, int]:
    """Return an index whose second byte is at ``at``, and where it ends; 0 if it is longer or cut off."""
    if at >= len(block) or block[at] & 0x80:
        return 0, at
    return 0x7F + block[at], at + 1


def _literal_to_index(table: HeaderTable, block: bytes, at: int) -> tuple[Field | None, int]:
    """Return a literal with incremental indexing, and where it ends.

    The field is None if the representation is another one, long, or cut off.
    """
    byte = block[at]
    if not _NEW_NAME <= byte < 0x7F:
        return None, at
    name, after = _string(block, at + 1) if byte == _NEW_NAME else (table.get_by_index(byte & 0x3F)[0], at + 1)
    value, after = _string(block, after)
    return (None if name is None or value is None else (name, value)), after


def _string(block: bytes, at: int) -> tuple[bytes | None, int]:
    """Return a string and where it ends; None if it is long, cut off, or has rare characters."""
    if at >= len(block):
        return None, at
    length, begin = block[at] & 0x7F, at + 1
    after = begin + length
    if length == 0x7F or after > len(block):
        return None, at
    text = block[begin:after]
    return (_huffman_decoded(text) if block[at] & 0x80 else text), after


def _huffman_decoded(text: bytes) -> bytes | None:
    """Return a text whose characters all have codes of up to 8 bits, as letters and digits; None for another one."""
    bits, left = int.from_bytes(text), 8 * len(text)
    decoded = bytearray()
    while left > 0:
        window = bits >> (left - 8) & 0xFF if left >= 8 else (bits << (8 - left) | 0xFF >> left) & 0xFF
        symbol, size = _SHORT_CODES[window]
        if not size or size > left:
            # The end is padded with fewer than 8 ones.
            return bytes(decoded) if left < 8 and bits & ((1 << left) - 1) == (1 << left) - 1 else None
        decoded.append(symbol)
        left -= size
    return bytes(decoded)


def _short_codes() -> list[tuple[int, int]]:
    """Return symbol and length of the code that starts with each byte; length 0 for longer codes."""
    table = [(0, 0)] * 256
    for symbol, (code, size) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        if size <= 8:
            first = code << (8 - size)
            table[first : first + (1 << (8 - size))] = [(symbol, size)] * (1 << (8 - size))
    return table


_SHORT_CODES: Final = _short_codes()


class HeaderEncoder:
    """Encodes the header blocks sent on one connection; caches frequent fields."""

    __slots__ = ("_cache", "_table_disabled")

    def __init__(self) -> None:
        self._cache: dict[Field, bytes] = {}
        self._table_disabled = False

    def encode(self, fields: Fields) -> bytes:
        """Return a block that does not depend on any other."""
        if not isinstance(fields, CachedFields):
            block = self._literals(fields)
        else:
            block = fields.encoded or self._literals(fields)
            fields.encoded = block
        if self._table_disabled:
            return block
        self._table_disabled = True
        return _TABLE_SIZE_ZERO + block

    def _literals(self, fields: Fields) -> bytes:
        get, literal = self._cache.get, self._literal
        if isinstance(fields, PlainFields):
            return b"".join([get(field) or literal(field) for field in fields])
        return b"".join(
            [
                literal(field) if type(field) is NeverIndexedHeaderTuple else get(field) or literal(field)
                for field in fields
            ]
        )

    def _literal(self, field: Field) -> bytes:
        encoded = encode_literal(field)
        if len(encoded) <= _MAX_CACHED_BYTES and not isinstance(field, NeverIndexedHeaderTuple):
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[field] = encoded
        return encoded


def encode_literal(field: Field) -> bytes:
    """Encode one field with the static table only."""
    name, value = field
    if isinstance(field, NeverIndexedHeaderTuple):
        index = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))[0]
        return _encode_name(name, index, _NEVER_INDEXED) + _encode_string(value)
    index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
    if value in values:
        return bytes([0x80 | values[value]])
    return _encode_name(name, index, _WITHOUT_INDEXING) + _encode_string(value)


def _encode_name(name: bytes, index: int, representation: int) -> bytes:
    if not index:
        return bytes([representation]) + _encode_string(name)
    prefix = encode_integer(index, 4)
    prefix[0] |= representation
    return bytes(prefix)


def _encode_string(text: bytes) -> bytes:
    size = len(text)
    return (_SHORT_LENGTHS[size] if size < _SHORT else bytes(encode_integer(size, 7))) + text


class FieldValidator:
    """Checks the fields of messages against RFC 9113 section 8; caches valid fields."""

    __slots__ = ("_valid",)

    def __init__(self) -> None:
        self._valid: set[Field] = set()

    def check_request(self, fields: Fields) -> tuple[bytes, int | None]:
        """Return a request's path and content length, if present. CONNECT has no path and cannot be relayed."""
        special = self._special_fields(fields, _REQUEST_PSEUDO)
        if not (special.get(b":path") and b":method" in special and b":scheme" in special):
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "request without :method, :scheme or :path")
        length = special.get(_CONTENT_LENGTH)
        return special[b":path"], None if length is None else int(length)

    def check_response(self, fields: Fields) -> bytes:
        """Return a response's HTTP status."""
        status = self._special_fields(fields, _RESPONSE_PSEUDO).get(b":status", b"")
        if len(status) != len(b"200") or not status.isdigit():
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "response without a valid :status")
        return status

    def check_trailers(self, fields: Fields) -> None:
        """Check trailers, which have no pseudo-header fields."""
        self._special_fields(fields, _NO_PSEUDO)

    def _special_fields(self, fields: Fields, allowed: set[bytes]) -> dict[bytes, bytes]:
        """Return pseudo-header fields, which must come first and once each, and content-length if present."""
        if not isinstance(fields, CachedFields):
            return self._find_special_fields(fields, allowed)
        if fields.validated is None or fields.validated[0] is not allowed:
            fields.validated = allowed, self._find_special_fields(fields, allowed)
        return fields.validated[1]

    def _find_special_fields(self, fields: Fields, allowed: set[bytes]) -> dict[bytes, bytes]:
        special: dict[bytes, bytes] = {}
        if not self._valid.issuperset(fields):
            for field in fields:
                if field not in self._valid:
                    self._check(field)
        regular_seen = False
        for field in fields:
            name = field[0]
            if name[0] != 0x3A:
                regular_seen = True
                if name == _CONTENT_LENGTH and special.setdefault(_CONTENT_LENGTH, field[1]) != field[1]:
                    raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "conflicting content-length fields")
            elif regular_seen or name in special or name not in allowed:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, f"unexpected pseudo-header field {name!r}")
            else:
                special[name] = field[1]
        return special

    def _check(self, field: Field) -> None:
        name, value = field
        if not _NAME.fullmatch(name) or name in HOP_BY_HOP:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, f"field name {name[:64]!r} is not allowed")
        if not _RESTRICTED_VALUES.get(name, _VALUE).fullmatch(value):
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, f"invalid value of field {name[:64]!r}")
        if len(name) + len(value) <= _MAX_CACHED_BYTES:
            if len(self._valid) >= _MAX_CACHED:
                self._valid.clear()
            self._valid.add((name, value))
