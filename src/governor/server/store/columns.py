"""How our values stand in a column: moments as microseconds, structs and trees as JSON that names its format."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec
import sqlalchemy as sa

from governor.values.trees import restore_sealed

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Moment(sa.TypeDecorator[datetime]):
    """A point in time, exact and comparable on every database."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        """Microseconds since 1970."""
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        """An aware moment in UTC."""
        return None if value is None else _EPOCH + value * _MICROSECOND


class _Stored(msgspec.Struct, Generic[T], frozen=True):
    """The envelope of all stored JSON; another format gets another number."""

    value: T
    format: Literal[1] = 1


class Json(sa.TypeDecorator[Any]):
    """A value of a known type."""

    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of
        self._decoder = msgspec.json.Decoder(_Stored[of])

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> bytes | None:
        """The value in its envelope."""
        return None if value is None else msgspec.json.encode(_Stored(value))

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        """The value without its envelope."""
        return None if value is None else self._decoder.decode(value).value


class SealedTree(Json):
    """A tree whose sensitive leaves are sealed."""

    cache_ok = True

    def __init__(self) -> None:
        super().__init__(Any)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        """The tree with its sealed leaves."""
        return restore_sealed(super().process_result_value(value, dialect))
