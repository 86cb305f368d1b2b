"""The proof of concept's file as a source of documents: read at the start and again whenever it changes.

A file that cannot be taken leaves everything as it is, and the log says why. An entry that vanishes takes its profile
with it; its Runtime stays, because its agent would be a stranger without it.
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
    """Tells one state of the file from another without reading it."""

    changed_ns: int
    size: int
    inode: int


class PocFile:
    """Follows one file for as long as the server runs."""

    def __init__(self, path: Path, changes: Changes, store: Store, ownership: Ownership, clock: Clock) -> None:
        self._path = path
        self._changes = changes
        self._store = store
        self._ownership = ownership
        self._clock = clock
        self._taken: _Stamp | None = None
        self._complaint = ""

    async def run(self) -> None:
        """Look at the file now and then until cancelled."""
        while True:
            await self._look()
            await self._clock.sleep(POLL_S)

    async def _look(self) -> None:
        try:
            stamp = await asyncio.to_thread(self._stamp)
            if stamp != self._taken:
                await self._take()
                self._taken, self._complaint = stamp, ""
        except GovernorError as error:
            self._complain(error)

    async def _take(self) -> None:
        imported = await asyncio.to_thread(self._read)
        known, before = await self._store.read(_known)
        profiles = {DocumentRef("Profile", name) for name in imported.profiles}
        request = ChangeRequest(
            documents=imported.documents(known),
            deletions=tuple(sorted(before - profiles)),
            message=f"read from {self._path.name}",
        )
        change = await self._changes.submit(request, AUTHOR)
        self._ownership.claim(AUTHOR, profiles)
        for warning in imported.warnings:
            _log.warning("taken with a change", source=AUTHOR, warning=warning)
        _log.info("source taken", source=AUTHOR, file=str(self._path), revision=change.revision)

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

    def _complain(self, error: GovernorError) -> None:
        """Once for each reason: the file is looked at again and again until it can be taken."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.warning(
                "source not taken, the last good one stays", source=AUTHOR, file=str(self._path), error=str(error)
            )


def _known(connection: sa.Connection) -> tuple[frozenset[str], frozenset[DocumentRef]]:
    """The runtimes that are there, and the profiles that this source wrote last."""
    runtimes = newest_versions(connection, "Runtime").values()
    profiles = (ref for ref in authored_by(connection, AUTHOR) if ref.kind == "Profile")
    return frozenset(each.name for each in runtimes if each.tree is not None), frozenset(profiles)


def _unreadable(path: Path, error: OSError) -> GovernorError:
    return GovernorError(Kind.UNAVAILABLE, "source-unreadable", f"cannot read {path}: {error.strerror or error}")
