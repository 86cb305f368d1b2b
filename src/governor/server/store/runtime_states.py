"""Statements on the states of runtimes: one row each, with the newest delivery and what its reports have shown."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa

from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.windows import Hold, Window
from governor.server.store.columns import SharedEncoder
from governor.server.store.schema import runtime_states
from governor.server.store.sqlite import batches

_MAX_ATTEMPTS: Final = 50


class Target(NamedTuple):
    """What an agent must know of a delivery, issued or not: a difference in one of them is delivered."""

    digest: str
    apply: ApplyPolicy
    windows: tuple[Window, ...]
    hold: Hold | None


class RuntimeState(msgspec.Struct, frozen=True):
    """The newest delivery of a runtime, and what the next one depends on.

    ``present`` are the resources that may exist in the runtime: those of the last verified delivery and of every later
    one. ``attempts`` are the highest ones of the digests that were retried or that the agent has rejected. ``verified``
    is the newest sequence that was ever acknowledged, 0 if none.
    """

    runtime: str
    sequence: int
    id: str
    attempt: int
    revision: int
    digest: str
    apply: ApplyPolicy
    windows: tuple[Window, ...]
    hold: Hold | None
    time: datetime
    present: tuple[ResourceRef, ...] = ()
    attempts: dict[str, int] = {}
    verified: int = 0

    def attempt_at(self, digest: str) -> int:
        """Return the highest known attempt at a digest; 0 if there was none."""
        return max(self.attempts.get(digest, 0), self.attempt if digest == self.digest else 0)

    def with_attempt(self, digest: str, attempt: int) -> "RuntimeState":
        """Return the state with an attempt at a digest that was retried or rejected; the oldest ones are forgotten."""
        if self.attempts.get(digest, 0) >= attempt:
            return self
        others = {known: number for known, number in self.attempts.items() if known != digest}
        kept = dict(list(others.items())[-_MAX_ATTEMPTS:])
        return msgspec.structs.replace(self, attempts={**kept, digest: attempt})


_COLUMNS: Final = tuple(runtime_states.c[name] for name in RuntimeState.__struct_fields__)
_SCAN: Final = 1000
"""For more runtimes than this the whole table is read."""
_SHARED: Final = ("apply", "windows", "hold", "present", "attempts")


def find_states(connection: sa.Connection, runtimes: Iterable[str]) -> dict[str, RuntimeState]:
    """Return the states of the given runtimes that have one."""
    found: dict[str, RuntimeState] = {}
    for names in batches(runtimes):
        statement = sa.select(*_COLUMNS).where(runtime_states.c.runtime.in_(names))
        found |= {row.runtime: _state(row) for row in connection.execute(statement)}
    return found


def find_targets(connection: sa.Connection, runtimes: Collection[str]) -> dict[str, Target]:
    """Return what the newest delivery of each given runtime tells its agent."""
    columns = runtime_states.c
    statement = sa.select(columns.runtime, columns.digest, columns.apply, columns.windows, columns.hold)
    parts = [statement]
    if len(runtimes) <= _SCAN:
        parts = [statement.where(columns.runtime.in_(names)) for names in batches(runtimes)]
    return {
        runtime: Target(digest, apply, windows or (), hold)
        for part in parts
        for runtime, digest, apply, windows, hold in connection.execute(part)
    }


def find_state(connection: sa.Connection, runtime: str) -> RuntimeState | None:
    """Return the state of a runtime, or None if it has no delivery."""
    return find_states(connection, [runtime]).get(runtime)


def put_states(connection: sa.Connection, states: Sequence[RuntimeState]) -> None:
    """Store states in place of the previous ones."""
    if not states:
        return
    for names in batches(each.runtime for each in states):
        connection.execute(runtime_states.delete().where(runtime_states.c.runtime.in_(names)))
    shared = SharedEncoder()
    rows = [msgspec.structs.asdict(each) for each in states]
    for row in rows:
        for name in _SHARED:
            row[name] = shared.encode(row[name])
    connection.execute(runtime_states.insert(), rows)


def _state(row: sa.Row[tuple[object, ...]]) -> RuntimeState:
    values = row._mapping  # noqa: SLF001 - public in SQLAlchemy
    return RuntimeState(**values) if values["windows"] is not None else RuntimeState(**{**values, "windows": ()})
