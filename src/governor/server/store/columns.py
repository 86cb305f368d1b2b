"""Column types: timestamps as microseconds, structs and trees as JSON with a format number."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
import sqlalchemy as sa

from governor.values.trees import restore_sealed

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_SHARED: Final = 1024
"""Number of decoded values that a column with shared values keeps."""


class Timestamp(sa.TypeDecorator[datetime]):
    """A UTC timestamp, exact and comparable on every database."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        """Return microseconds since 1970."""
        return encode_time(value)

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        """Return an aware datetime in UTC."""
        return None if value is None else decode_time(value)


class _Envelope(msgspec.Struct, Generic[T], frozen=True):
    """The envelope of all stored JSON; a new format gets a new number."""

    value: T
    format: Literal[1] = 1


class SharedEncoder:
    """Encodes each object once, however many rows of one statement have it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}

    def encode(self, value: Any) -> bytes | None:
        """Return a value as ``Json`` stores it."""
        if value is None:
            return None
        known = self._known.get(id(value))
        if known is None:
            # The object is kept, so that no other gets its id.
            known = self._known[id(value)] = value, encode_json(value)
        return known[1]


def encode_json(value: Any) -> bytes:
    """Return a value as ``Json`` stores it."""
    return msgspec.json.encode(_Envelope(value))


def encode_time(value: datetime | None) -> int | None:
    """Return microseconds since 1970, as ``Timestamp`` stores them."""
    return None if value is None else (value - _EPOCH) // _MICROSECOND


def decode_time(value: int) -> datetime:
    """Return an aware datetime in UTC."""
    return _EPOCH + value * _MICROSECOND


class Json(sa.TypeDecorator[Any]):
    """A value of a known type as JSON. ``shared``: many rows have the same immutable value, which is decoded once."""

    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, of: Any, *, shared: bool = False) -> None:
        super().__init__()
        self.of = of
        self.shared = shared
        self._decoder = msgspec.json.Decoder(_Envelope[of])
        self._known: dict[bytes, Any] = {}

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> bytes | None:
        """Encode the value in its envelope."""
        return None if value is None else encode_json(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        """Decode the value from its envelope."""
        return self.decode(value)

    def decode(self, value: bytes | None) -> Any:
        """Decode a value from its envelope; one that is shared only if it is not known."""
        if value is None:
            return None
        if not self.shared:
            return self._decoder.decode(value).value
        found = self._known.get(value)
        if found is None:
            if len(self._known) >= _MAX_SHARED:
                self._known.clear()
            found = self._known[value] = self._decoder.decode(value).value
        return found


class SealedTree(Json):
    """A tree whose sensitive leaves are sealed."""

    cache_ok = True

    def __init__(self) -> None:
        super().__init__(Any)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        """Decode the tree; sensitive leaves stay sealed."""
        return restore_sealed(super().process_result_value(value, dialect))
