"""Durable state of the local platform: its journal and records of sidecars, in files of the agent's state directory.

Files are written atomically, mode 0600. All calls block; use ``asyncio.to_thread`` on the event loop.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from governor.agent.verification.verdicts import Proof
from governor.domain.documents import ResourceRef
from governor.errors import GovernorError, Kind
from governor.process import files
from governor.process.files import exclusive_lock

T = TypeVar("T")

_PRIVATE: Final = 0o700
_FileNames: TypeAlias = tuple[str, ...] | dict[str, str]
"""Older agents stored a digest with each name, which was never compared."""


class Intent(msgspec.Struct, frozen=True):
    """A change of files in progress: what will be written and what removed; ``digest`` is that of the bundle.

    ``removed`` has the digests of the files that are absent afterwards, as far as the agent removed them.
    """

    sequence: int
    writes: tuple[str, ...]
    removals: tuple[str, ...]
    digest: str = ""
    removed: Mapping[str, str] = {}


class Journal(msgspec.Struct, frozen=True):
    """The files that the agent owns, and the change in progress.

    ``written`` is when the files last changed, in the form of a process's start time. ``digest`` is that of the bundle
    in the files, empty if an older agent wrote them. ``drifted`` are the files that another program has changed
    since, so that a process may have loaded other content. ``drift_ended`` is when such files were last as delivered
    again, in the same form. ``removed`` are the files that the agent removed for this bundle, with the digests that
    they had. ``stamps`` are those of the files as the agent wrote them.
    """

    owned: frozenset[str] = frozenset()
    intent: Intent | None = None
    written: str = ""
    digest: str = ""
    drifted: frozenset[str] = frozenset()
    removed: Mapping[str, str] = {}
    drift_ended: str = ""
    stamps: Mapping[str, str] = {}

    @property
    def files(self) -> frozenset[str]:
        """Every file that the agent wrote or may have written."""
        return self.owned.union(self.intent.writes if self.intent else ())

    def begin(self, intent: Intent) -> "Journal":
        """Return the journal to store before the first write; the files of an interrupted change stay owned."""
        return msgspec.structs.replace(self, owned=self.files, intent=intent, digest="", stamps={})

    def complete(self, now: str, stamps: Mapping[str, str]) -> "Journal":
        """Return the journal to store after the last write; ``stamps`` are those of files now."""
        if self.intent is None:
            return self
        owned = self.owned.difference(self.intent.removals).union(self.intent.writes)
        return Journal(
            owned,
            written=now,
            digest=self.intent.digest,
            removed=self.intent.removed,
            drift_ended=now if self.drifted else self.drift_ended,
            stamps={key: stamp for key, stamp in stamps.items() if key in owned},
        )

    @property
    def removed_digests(self) -> Mapping[str, str]:
        """The digests of files that the agent removed or may have removed."""
        return {**self.removed, **(self.intent.removed if self.intent else {})}

    def holds(self, digest: str) -> bool:
        """Return whether the agent has completely written this bundle, and nothing since."""
        return self.intent is None and self.digest == digest

    def with_drift(self, stamps: Mapping[str, str], now: str) -> "Journal":
        """Return the journal with changed files and their stamps; processes running now may have loaded others."""
        known = {**self.stamps, **stamps}
        return msgspec.structs.replace(self, drifted=self.drifted.union(stamps), written=now, stamps=known)


class _StoredIntent(msgspec.Struct, frozen=True):
    sequence: int
    writes: _FileNames
    removals: tuple[str, ...]
    digest: str = ""
    removed: Mapping[str, str] = {}


class _StoredJournal(msgspec.Struct, frozen=True):
    """The journal as any version of the agent may have stored it."""

    owned: _FileNames = ()
    intent: _StoredIntent | None = None
    written: str = ""
    digest: str = ""
    drifted: frozenset[str] = frozenset()
    removed: Mapping[str, str] = {}
    drift_ended: str = ""
    stamps: Mapping[str, str] = {}

    def journal(self) -> Journal:
        """Return the journal in its current form."""
        stored = self.intent
        intent = (
            Intent(stored.sequence, tuple(stored.writes), stored.removals, stored.digest, stored.removed)
            if stored
            else None
        )
        return Journal(
            frozenset(self.owned),
            intent,
            self.written,
            self.digest,
            self.drifted,
            self.removed,
            self.drift_ended,
            self.stamps,
        )


class Ports(msgspec.Struct, frozen=True):
    """The ports of one sidecar."""

    http: int
    grpc: int
    internal_grpc: int
    public: int
    metrics: int


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process that the agent started, identified by pid and start time.

    ``launch`` is the digest of its command line and namespace, ``listener`` the inode of its first listening socket,
    ``log_begin`` its offset in the log file.
    """

    pid: int
    start_time: str
    launch: str = ""
    log_begin: int = 0
    listener: int = 0


class SidecarRecord(msgspec.Struct, frozen=True):
    """The stored state of one sidecar: its ports, its last process and that process's proofs."""

    ports: Ports
    process: ProcessRecord | None = None
    proofs: tuple[tuple[ResourceRef, Proof], ...] = ()


class Storage:
    """The state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config_directory = directory / "config"
        self.log_directory = directory / "logs"
        self._sidecars = directory / "sidecars"

    def prepare(self) -> None:
        """Create the directories with mode 0700."""
        for each in (self.directory, self.config_directory, self.log_directory, self._sidecars):
            _create_private(each)

    def sweep(self) -> None:
        """Remove the temporary files of a killed agent; call only while ``locked``."""
        for each in (self.directory, self.config_directory, self._sidecars):
            files.remove_temporary_files(each)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the state directory: a second agent would stop the first one's sidecars as orphans."""
        message = f"another agent uses the state directory {self.directory}: stop it, or use another directory"
        with exclusive_lock(self.directory / "agent.lock", GovernorError(Kind.CONFLICT, "state-dir-in-use", message)):
            yield

    def journal(self) -> Journal:
        """Return the journal."""
        stored = self._read("journal.json", _StoredJournal)
        return stored.journal() if stored else Journal()

    def save_journal(self, journal: Journal) -> None:
        """Store the journal."""
        self._write("journal.json", journal)

    def sidecar(self, app_id: str) -> SidecarRecord | None:
        """Return the record of a sidecar, or None."""
        return self._read(f"sidecars/{app_id}.json", SidecarRecord)

    def save_sidecar(self, app_id: str, record: SidecarRecord) -> None:
        """Store the record of a sidecar."""
        self._write(f"sidecars/{app_id}.json", record)

    def _write(self, name: str, value: object) -> None:
        files.write_atomic(self.directory / name, msgspec.json.encode(value))

    def _read(self, name: str, kind: type[T]) -> T | None:
        path = self.directory / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}; check its permissions"
            raise GovernorError(Kind.PRECONDITION, "state-unreadable", message) from error
        except msgspec.MsgspecError as error:
            message = f"{path} is not a valid state file of this agent version; restore it, or remove it to start over"
            raise GovernorError(Kind.PRECONDITION, "state-unreadable", message) from error


def _create_private(directory: Path) -> None:
    """Create a directory with mode 0700, or raise if other users can access an existing one."""
    try:
        directory.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
    except OSError as error:
        message = f"cannot create the directory {directory}: {error.strerror}; create it, or configure another"
        raise GovernorError(Kind.PRECONDITION, "directory", message) from error
    if mode & 0o077:
        message = f"{directory} is accessible to other users: run `chmod 700 {directory}`"
        raise GovernorError(Kind.PRECONDITION, "directory-open", message)
