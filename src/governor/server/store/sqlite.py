"""SQLite as an executor of transaction functions: one writer thread with group commit, a few reader threads.

A function gets a connection and may run any statements; it runs in a thread, so it must not touch the event loop.
Writes that wait together share one commit. Each stands in its own savepoint, so a failing one takes nothing with it,
and none is answered before its commit is on disk. A function may run again when the commit it shared has failed.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from governor.errors import GovernorError, Kind, invalid

T = TypeVar("T")

_READERS: Final = 4
_MOST_IN_A_COMMIT: Final = 256
_BUSY_MS: Final = 5000
_FULL: Final = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE"})


def writer_engine(path: Path) -> sa.Engine:
    """An engine for the one connection that writes."""
    return _engine(path, begin="BEGIN IMMEDIATE", pragmas=("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"))


def _reader_engine(path: Path) -> sa.Engine:
    return _engine(path, begin="BEGIN", pragmas=("query_only=ON",))


def _engine(path: Path, *, begin: str, pragmas: tuple[str, ...]) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{path}", pool_size=_READERS, max_overflow=0)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own idea of transactions breaks savepoints; the listener below begins them instead.
        connection.isolation_level = None
        for pragma in (f"busy_timeout={_BUSY_MS}", *pragmas):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begin_transaction(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


class Store:
    """The open database. Close it when no more functions will come."""

    def __init__(self, path: Path, observe_commit: Callable[[int], None] = lambda _: None) -> None:
        self._readers = _reader_engine(path)
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="store-reader")
        self._writer = _Writer(writer_engine(path), observe_commit)

    async def read(self, function: Callable[[sa.Connection], T]) -> T:
        """Run a function on one consistent view of the database; it cannot write."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, function)

    async def write(self, function: Callable[[sa.Connection], T]) -> T:
        """Run a function in a transaction; its result comes after the commit, its error after the rollback."""
        return await asyncio.wrap_future(self._writer.submit(function))

    def not_alive(self) -> str:
        """Why nothing can be written any more, or nothing; fits ``Checks.alive``."""
        return "" if self._writer.is_alive else "the writer thread has ended"

    def close(self) -> None:
        """Finish what was submitted, then close all connections."""
        self._writer.close()
        self._pool.shutdown()
        self._readers.dispose()

    def _read(self, function: Callable[[sa.Connection], T]) -> T:
        with _translated(), self._readers.connect() as connection:
            return function(connection)


class _Job:
    """One submitted function and the answer that somebody waits for."""

    def __init__(self, function: Callable[[sa.Connection], Any]) -> None:
        self.function = function
        self.answer: Future[Any] = Future()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, connection: sa.Connection) -> None:
        self.result, self.error = None, None
        savepoint = connection.begin_nested()
        try:
            with _translated():
                self.result = self.function(connection)
        except Exception as error:  # noqa: BLE001 - whoever waits for the answer gets it
            self.error = error
            savepoint.rollback()
        else:
            savepoint.commit()

    def settle(self, failed: BaseException | None) -> None:
        error = self.error or failed
        if error is None:
            self.answer.set_result(self.result)
        else:
            self.answer.set_exception(error)


class _Writer:
    """The one thread that writes."""

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
        return job.answer

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._engine.dispose()

    def _run(self) -> None:
        closing = False
        while not closing:
            jobs, closing = self._wait_for_jobs()
            self._commit([job for job in jobs if job.answer.set_running_or_notify_cancel()])

    def _wait_for_jobs(self) -> tuple[list[_Job], bool]:
        """Everything that is waiting now, at least one; whether the end was among it."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _MOST_IN_A_COMMIT:
                break
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
        return jobs, job is None

    def _commit(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        failed = self._attempt(jobs)
        if failed is not None and len(jobs) > 1:
            # A full disk ends the transaction of all, not only the job that met it. Alone, each gets its own answer.
            for job in jobs:
                self._commit([job])
            return
        self._observe(len(jobs))
        for job in jobs:
            job.settle(failed)

    def _attempt(self, jobs: list[_Job]) -> BaseException | None:
        """Run jobs in one transaction; why none of it was kept, or nothing."""
        try:
            with _translated(), self._engine.begin() as connection:
                for job in jobs:
                    job.run(connection)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, and the thread must go on
            return error
        return None


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
    if name in _FULL:
        return GovernorError(Kind.EXHAUSTED, "store-full", "the disk of the data directory is full; free space there")
    # Not the statement and its values: they may hold what nobody should read.
    return GovernorError(Kind.INTERNAL, "store-failed", f"the database answered {name}; see the server's disk and log")
