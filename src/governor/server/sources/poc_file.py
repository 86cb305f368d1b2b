"""The proof of concept's file as a source of documents: read at start-up and whenever it changes.

A file that cannot be read or is rejected changes nothing and is logged. A removed entry deletes its profile but not its
Runtime, without which its agent could not authenticate.
"""

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa

from governor import yamltext
from governor.domain.documents import DocumentRef
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.server.changes.ownership import Ownership
from governor.server.changes.pipeline import Changes
from governor.server.sources import poc_format
from governor.server.store.documents import authored_by, newest_versions
from governor.server.store.sqlite import Store
from governor.wire.rest import ChangeRequest

AUTHOR: Final = "source:poc-file"
POLL_S: Final = 2.0

_log = logging.get_logger(__name__)


class _Stamp(NamedTuple):
    """Identifies a state of the file without reading it."""

    changed_ns: int
    size: int
    inode: int


class PocFile:
    """Applies one file and follows its changes."""

    def __init__(self, path: Path, changes: Changes, store: Store, ownership: Ownership, clock: Clock) -> None:
        self._path = path
        self._changes = changes
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._applied: _Stamp | None = None
        self._last_error = ""

    async def run(self) -> None:
        """Poll the file until cancelled."""
        while True:
            await self._poll()
            await self._clock.sleep(POLL_S)

    async def _poll(self) -> None:
        try:
            stamp = await asyncio.to_thread(self._stamp)
            if stamp != self._applied:
                await self._apply()
                self._applied, self._last_error = stamp, ""
        except GovernorError as error:
            self._warn(error)

    async def _apply(self) -> None:
        imported = await asyncio.to_thread(self._read)
        known_runtimes, before = await self._store.read(_read_known)
        profiles = {DocumentRef("Profile", name) for name in imported.profiles}
        request = ChangeRequest(
            documents=imported.documents(known_runtimes),
            deletions=tuple(sorted(before - profiles)),
            message=f"read from {self._path.name}",
        )
        change = await self._changes.submit(request, AUTHOR)
        self._ownership.claim(AUTHOR, profiles)
        for warning in imported.warnings:
            _log.warning("source adjusted", source=AUTHOR, warning=warning)
        _log.info("source applied", source=AUTHOR, file=str(self._path), revision=change.revision)

    def _stamp(self) -> _Stamp:
        try:
            found = self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, error) from error
        return _Stamp(found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> poc_format.Imported:
        try:
            text = self._path.read_bytes()
        except OSError as error:
            raise _unreadable(self._path, error) from error
        return poc_format.read(yamltext.load(text, self._path.name))

    def _warn(self, error: GovernorError) -> None:
        """Log an error once, although the file is polled until it is accepted."""
        if str(error) != self._last_error:
            self._last_error = str(error)
            _log.warning(
                "source rejected; its last valid state stays", source=AUTHOR, file=str(self._path), error=str(error)
            )


def _read_known(connection: sa.Connection) -> tuple[frozenset[str], frozenset[DocumentRef]]:
    """Return the existing runtimes, and the profiles whose newest version is by this source."""
    runtimes = newest_versions(connection, "Runtime").values()
    profiles = (ref for ref in authored_by(connection, AUTHOR) if ref.kind == "Profile")
    return frozenset(each.name for each in runtimes if each.tree is not None), frozenset(profiles)


def _unreadable(path: Path, error: OSError) -> GovernorError:
    return GovernorError(Kind.UNAVAILABLE, "source-unreadable", f"cannot read {path}: {error.strerror or error}")
