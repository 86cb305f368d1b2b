"""Checks whether a write-ahead log belongs to the database file beside it.

SQLite applies any complete log that it finds beside a database file; nothing in the log names the file. So a database
file that was replaced by a copy beside the log of its predecessor would become a mixture of both. Therefore each commit
marks page 1, which is in the log and in the file: ``user_version`` is random, ``application_id`` is the mark of the
commit before.

A log starts when the file has everything before it, so the file belongs to the log if it has the mark before the first
one in the log, or one in the log, copied from there by a checkpoint. Version 0.1 wrote no marks, and a file that was
copied during a checkpoint is torn: neither is detected.
"""

import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import sqlalchemy as sa

from governor.errors import GovernorError, Kind

_BYTE_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""Byte order of the words that a log's checksums are computed from, by the log's first word."""
_LOG_HEADER: Final = struct.Struct(">I4xI4x8s2I")
"""Header of a log: magic number, page size, salts (new whenever the log starts again), checksum."""
_FRAME_HEADER: Final = struct.Struct(">2I8s2I")
"""Header of a page in the log: page number, whether it ends a commit, salts of its log, checksum."""
_CHECKED_BYTES: Final = (24, 8)
"""How much of a log's and of a page's header is part of the checksum."""
_MARK: Final = struct.Struct(">60xi4xi")
"""Position of ``user_version`` and ``application_id`` in page 1."""


class _Mark(NamedTuple):
    """The mark of a commit and of the one before; 0 if there is none."""

    mark: int
    before: int


def mark_commit(connection: sa.Connection) -> None:
    """Mark the commit of the current transaction."""
    before = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    connection.exec_driver_sql(f"PRAGMA application_id={int(before)}")
    connection.exec_driver_sql(f"PRAGMA user_version={secrets.randbelow(2**31 - 1) + 1}")


def check(database: Path) -> None:
    """Raise if the log beside a database that is not open belongs to another one. Change nothing."""
    if not is_foreign(database):
        return
    log = _log(database)
    message = (
        f"{log} is not the write-ahead log of {database}: the file was replaced, and the log of the replaced one is "
        f"still there. To use the file as it is, move {log} elsewhere; to use the log, put its own database file back. "
        "`governor db restore` replaces both"
    )
    raise GovernorError(Kind.PRECONDITION, "store-log-foreign", message)


def is_foreign(database: Path) -> bool:
    """Return whether the log beside a database that is not open belongs to another one."""
    try:
        with _log(database).open("rb") as log, database.open("rb") as file:
            commits = list(_commits(log))
            return bool(commits) and not _belongs(_read_mark(file.read(_MARK.size)), commits)
    except FileNotFoundError:
        return False


def _belongs(found: _Mark, commits: list[_Mark | None]) -> bool:
    """Return whether the file belongs to the log; if the log has no marks (version 0.1), the file must have none."""
    marks = [each for each in commits if each is not None]
    return found.mark in {each.mark for each in marks} | ({marks[0].before} if marks else {0})


def _commits(log: BinaryIO) -> Iterator[_Mark | None]:
    """Yield the marks of the commits that SQLite applies: all before the first page with a wrong checksum."""
    mark: _Mark | None = None
    for page_number, ends_commit, page in _pages(log):
        if page_number == 1:
            mark = _read_mark(page)
        if ends_commit:
            yield mark
            mark = None


def _pages(log: BinaryIO) -> Iterator[tuple[int, bool, bytes]]:
    header = log.read(_LOG_HEADER.size)
    if len(header) < _LOG_HEADER.size:
        return
    magic, page_size, salts, *stored = _LOG_HEADER.unpack(header)
    order = _BYTE_ORDERS.get(magic)
    if order is None:
        return
    whole_header, page_header = _CHECKED_BYTES
    checksum = _checksum(order, header[:whole_header], (0, 0))
    while checksum == tuple(stored):
        header, page = log.read(_FRAME_HEADER.size), log.read(page_size)
        if len(page) < page_size:
            return
        number, pages_after_commit, of_salts, *stored = _FRAME_HEADER.unpack(header)
        checksum = _checksum(order, header[:page_header] + page, checksum)
        # Pages with other salts are left from before the log last started.
        if of_salts != salts or checksum != tuple(stored):
            return
        yield number, pages_after_commit > 0, page


def _checksum(order: str, content: bytes, before: tuple[int, int]) -> tuple[int, int]:
    """Return the checksum of the log's format, which continues the one of what comes before."""
    first, second = before
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _read_mark(page: bytes) -> _Mark:
    """Return the mark in page 1; none if the file is empty."""
    return _Mark(*_MARK.unpack(page[: _MARK.size])) if len(page) >= _MARK.size else _Mark(0, 0)


def _log(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")
