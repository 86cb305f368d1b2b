"""SQLite as an executor of transaction functions: one writer thread with group commit, a few reader threads.

A function receives a connection and runs in a thread, so it must not touch the event loop. Queued writes share one
commit, each in its own savepoint, so that a failing one does not affect the others. A write returns after its commit is
on disk. A function may run twice if a shared commit fails.
"""

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from governor.errors import GovernorError, Kind, invalid
from governor.server.store.write_ahead_log import mark_commit

T = TypeVar("T")

_READERS: Final = 4
_MAX_COMMIT_SIZE: Final = 256
_BUSY_MS: Final = 5000
_MAX_NAMES: Final = 500
_MAX_PREPARED: Final = 64
_DISK_FULL: Final = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE"})


def writer_engine(path: Path) -> sa.Engine:
    """Return the engine of the single writing connection."""
    return _engine(path, begin="BEGIN IMMEDIATE", pragmas=("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"))


def _reader_engine(path: Path) -> sa.Engine:
    return _engine(path, begin="BEGIN", pragmas=("query_only=ON",))


def _engine(path: Path, *, begin: str, pragmas: tuple[str, ...]) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{path}", pool_size=_READERS, max_overflow=0)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's implicit transactions break savepoints; the listener below begins them instead.
        connection.isolation_level = None
        for pragma in (f"busy_timeout={_BUSY_MS}", *pragmas):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin_transaction(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, whose values are as the driver takes them.

    SQLAlchemy would spend more time on compiling the statement and converting the values than the database on storing
    them.
    """
    if rows:
        _execute_rows(connection, _insertion(table, tuple(rows[0]), connection.dialect), rows)


def update_rows(connection: sa.Connection, table: sa.Table, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Update the rows that have the same value of the column ``key``; values are as the driver takes them."""
    if rows:
        _execute_rows(connection, _update(table, key, tuple(rows[0]), connection.dialect), rows)


class _Prepared(NamedTuple):
    """The text of a statement, and the columns whose values it takes, in their order."""

    text: str
    columns: tuple[str, ...]


@lru_cache(_MAX_PREPARED)
def _insertion(table: sa.Table, columns: tuple[str, ...], dialect: sa.Dialect) -> _Prepared:
    compiled = table.insert().compile(dialect=dialect, column_keys=list(columns))
    return _Prepared(str(compiled), tuple(compiled.positiontup or ()))


@lru_cache(_MAX_PREPARED)
def _update(table: sa.Table, key: str, columns: tuple[str, ...], dialect: sa.Dialect) -> _Prepared:
    # A parameter must not have the name of a column that is set.
    parameters = {f"new_{name}": name for name in columns}
    values: dict[str, Any] = {name: sa.bindparam(each) for each, name in parameters.items() if name != key}
    compiled = table.update().where(table.c[key] == sa.bindparam(f"new_{key}")).values(values).compile(dialect=dialect)
    return _Prepared(str(compiled), tuple(parameters[each] for each in compiled.positiontup or ()))


def _execute_rows(connection: sa.Connection, statement: _Prepared, rows: Sequence[Mapping[str, Any]]) -> None:
    connection.exec_driver_sql(statement.text, list(map(itemgetter(*statement.columns), rows)))


def batches(names: Iterable[T]) -> Iterator[list[T]]:
    """Yield the names in parts that fit into one statement; databases limit the number of parameters."""
    remaining = iter(names)
    while batch := list(itertools.islice(remaining, _MAX_NAMES)):
        yield batch


class Store:
    """The open database."""

    def __init__(self, path: Path, observe_commit: Callable[[int], None] = lambda _: None) -> None:
        self._readers = _reader_engine(path)
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._writer = _Writer(writer_engine(path), observe_commit)

    async def read(self, function: Callable[[sa.Connection], T]) -> T:
        """Run a function in a read-only transaction on one snapshot."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, function)

    async def write(self, function: Callable[[sa.Connection], T], announce: Callable[[T], None] | None = None) -> T:
        """Run a function in a transaction; return its result once committed, or raise its error once rolled back.

        ``announce`` is called with the result on the event loop, even if the caller is cancelled during the commit.
        """
        written = self._writer.submit(function)
        if announce is not None:
            # Registered first, so that it is called before the caller continues.
            written.add_done_callback(partial(_announce, announce, asyncio.get_running_loop()))
        return await asyncio.wrap_future(written)

    def not_alive(self) -> str:
        """Return why the store can no longer write, or ``""``; a check for ``Checks.alive``."""
        return "" if self._writer.is_alive else "the writer thread has stopped"

    def close(self) -> None:
        """Finish submitted functions, then close all connections; none may be submitted afterwards."""
        self._writer.close()
        self._pool.shutdown()
        self._readers.dispose()

    def _read(self, function: Callable[[sa.Connection], T]) -> T:
        with _translated(), self._readers.connect() as connection:
            return function(connection)


def _announce(announce: Callable[[T], None], loop: asyncio.AbstractEventLoop, written: "Future[T]") -> None:
    """Schedule the announcement of a committed result; runs in the writer thread."""
    if not written.cancelled() and written.exception() is None:
        loop.call_soon_threadsafe(announce, written.result())


class _Job:
    """A submitted function and the future of its result."""

    def __init__(self, function: Callable[[sa.Connection], Any]) -> None:
        self.function = function
        self.future: Future[Any] = Future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, connection: sa.Connection) -> None:
        self.result, self.error = None, None
        savepoint = connection.begin_nested()
        try:
            with _translated():
                self.result = self.function(connection)
        except Exception as error:  # noqa: BLE001 - passed to the caller
            self.error = error
            savepoint.rollback()
        else:
            savepoint.commit()

    def settle(self, commit_error: BaseException | None) -> None:
        error = self.error or commit_error
        if error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(error)


class _Writer:
    """The single writer thread."""

    def __init__(self, engine: sa.Engine, observe_commit: Callable[[int], None]) -> None:
        self._engine = engine
        self._observe = observe_commit
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, function: Callable[[sa.Connection], T]) -> "Future[T]":
        job = _Job(function)
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        closing = False
        while not closing:
            jobs, closing = self._wait_for_jobs()
            self._commit([job for job in jobs if job.future.set_running_or_notify_cancel()])

    def _wait_for_jobs(self) -> tuple[list[_Job], bool]:
        """Wait for a job and return it with all others queued; and whether the writer must close."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _MAX_COMMIT_SIZE:
                break
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
        return jobs, job is None

    def _commit(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        error = self._attempt(jobs)
        if error is not None and len(jobs) > 1:
            # A full disk fails the shared transaction. Commit each job alone, so that each gets its own result.
            for job in jobs:
                self._commit([job])
            return
        self._observe(len(jobs))
        for job in jobs:
            job.settle(error)

    def _attempt(self, jobs: list[_Job]) -> BaseException | None:
        """Run jobs in one transaction; return the error that rolled all of them back, if any."""
        try:
            with _translated(), self._engine.begin() as connection:
                before = _changes(connection)
                for job in jobs:
                    job.run(connection)
                if _changes(connection) != before:
                    mark_commit(connection)
        except Exception as error:  # noqa: BLE001 - passed to the callers; the thread must continue
            return error
        return None


def _changes(connection: sa.Connection) -> int:
    """Return how many rows the connection has changed so far."""
    driver: sqlite3.Connection = connection.connection.dbapi_connection  # type: ignore[assignment]
    return driver.total_changes


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _store_error(error) from error
    except OverflowError as error:
        raise invalid("number-large", "a number does not fit into 64 bits") from error


def _store_error(error: sa.exc.DBAPIError) -> GovernorError:
    name = getattr(error.orig, "sqlite_errorname", type(error.orig).__name__)
    if name in _DISK_FULL:
        return GovernorError(Kind.EXHAUSTED, "store-full", "the disk of the data directory is full; free space there")
    # Without the statement and its values, which may contain secrets.
    return GovernorError(
        Kind.INTERNAL, "store-failed", f"the database failed with {name}; check the server's disk and log"
    )
