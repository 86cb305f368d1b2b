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
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        """Return an aware datetime in UTC."""
        return None if value is None else _EPOCH + value * _MICROSECOND


class _Envelope(msgspec.Struct, Generic[T], frozen=True):
    """The envelope of all stored JSON; a new format gets a new number."""

    value: T
    format: Literal[1] = 1


class Encoded(msgspec.Struct, frozen=True):
    """A value that is encoded already, because many rows share it."""

    data: bytes


class SharedEncoder:
    """Encodes each object once, however many rows of one statement have it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Encoded]] = {}

    def encode(self, value: Any) -> Encoded | None:
        """Return a value as ``Json`` stores it."""
        if value is None:
            return None
        known = self._known.get(id(value))
        if known is None:
            # The object is kept, so that no other gets its id.
            known = self._known[id(value)] = value, Encoded(msgspec.json.encode(_Envelope(value)))
        return known[1]


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
        if type(value) is Encoded:
            return value.data
        return None if value is None else msgspec.json.encode(_Envelope(value))

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        """Decode the value from its envelope."""
        if value is None:
            return None
        return self._decode_shared(value) if self.shared else self._decoder.decode(value).value

    def _decode_shared(self, value: bytes) -> Any:
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
