"""The files that sidecars load, read and changed under the journal. Blocking. ``plan`` decides what to change.

The journal is stored before the first write and names what will be written and removed. An interrupted change is
resumed by planning again, because the journal still names the agent's files.
"""

import contextlib
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from governor.agent.platforms.local.files import CONFIG, RESOURCES, content_digest, is_yaml
from governor.agent.platforms.local.plan import ObservedFile, Plan
from governor.agent.platforms.local.storage import Journal, Storage
from governor.errors import GovernorError, Kind
from governor.process import files
from governor.process.child import child
from governor.process.telemetry import logging
from governor.values.trees import Manifest
from governor.yamltext import Parsed, load

_DIRECTORY_MODE: Final = 0o700
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_SEPARATOR: Final = re.compile(rb"\n---[^\n]*\n")
"""Where daprd splits a file into documents, before it decodes each of them alone."""

_log = logging.get_logger(__name__)


class ResourceDirectory:
    """The resources directory and the directory of the ``--config`` file."""

    def __init__(self, resources: Path, storage: Storage) -> None:
        self.resources = resources
        self._storage = storage
        self._roots = {RESOURCES: resources, CONFIG: storage.config_directory}
        self._lock = threading.Lock()
        self._last_digests: dict[str, str] | None = None
        """The digests of all files, as last read or written here; under the lock."""

    def prepare(self) -> None:
        """Create the resources directory if it does not exist; an existing one keeps its mode."""
        try:
            self.resources.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            reason = f"{error.strerror}; create it, or configure another"
            message = f"cannot create the resources directory {self.resources}: {reason}"
            raise GovernorError(Kind.PRECONDITION, "directory", message) from error

    def sweep(self) -> None:
        """Remove the temporary files of a killed agent."""
        self._storage.sweep()
        files.remove_temporary_files(self.resources)

    def path(self, key: str) -> Path:
        """Return the path of a file."""
        role, _, name = key.partition("/")
        return self._roots[role] / name

    @property
    def roots(self) -> tuple[Path, ...]:
        """The directories."""
        return tuple(self._roots.values())

    def journal(self) -> Journal:
        """Return the journal."""
        return self._storage.journal()

    def read_files(self) -> dict[str, ObservedFile]:
        """Return every YAML file that a sidecar may load, whether the agent wrote it or not."""
        self.prepare()
        try:
            with self._lock:
                contents = self._contents()
                self._last_digests = {key: content_digest(content) for key, content in contents.items()}
        except OSError as error:
            message = (
                f"cannot read {error.filename}: {error.strerror}; check its permissions: sidecars must read it too"
            )
            raise GovernorError(Kind.PRECONDITION, "directory-unreadable", message) from error
        return {
            key: ObservedFile(content_digest(content), _manifests(self.path(key), content), self._stamp(key))
            for key, content in contents.items()
        }

    def has_changed(self) -> bool:
        """Return whether a file differs from what was last read or written here."""
        with self._lock:
            try:
                return {key: content_digest(content) for key, content in self._contents().items()} != self._last_digests
            except OSError:
                # The next reading reports the error.
                return True

    def _contents(self) -> dict[str, bytes]:
        paths = {f"{role}/{path.name}": path for role, root in self._roots.items() for path in root.iterdir()}
        return {key: _read(path) for key, path in sorted(paths.items()) if is_yaml(path.name) and path.is_file()}

    def _stamp(self, key: str) -> str:
        """Return what is another one after each write of a file by any program, or ``""`` if it cannot be read.

        No program can set back the time of the last change of an inode.
        """
        try:
            found = self.path(key).stat()
        except OSError:
            return ""
        return f"{found.st_ino} {found.st_ctime_ns}"

    def _stamps(self, keys: Iterable[str]) -> dict[str, str]:
        return {key: self._stamp(key) for key in keys}

    def record_drift(self, stamps: Mapping[str, str]) -> None:
        """Record in the journal that another program has changed these files, given with their stamps."""
        self._storage.save_journal(self.journal().with_drift(stamps, child.start_time_now()))

    def stage(self, plan: Plan) -> tuple[files.Staged, ...]:
        """Write the plan's files under temporary names, so that a full disk fails before anything changes."""
        staged: list[files.Staged] = []
        try:
            staged.extend(files.stage(self.path(file.key), file.content) for file in plan.writes)
        except BaseException:
            self.discard(staged)
            raise
        return tuple(staged)

    def discard(self, staged: Iterable[files.Staged]) -> None:
        """Remove staged files that were not committed."""
        for each in staged:
            each.discard()

    def apply(self, plan: Plan, staged: Sequence[files.Staged], journal: Journal) -> None:
        """Commit the staged files, then remove files, under the journal. Without changes only note the bundle."""
        if not plan.writes and not plan.removals and journal.intent is None and not journal.drifted:
            if not journal.holds(plan.intent.digest):
                stamps = self._stamps(journal.owned)
                self._storage.save_journal(msgspec.structs.replace(journal, digest=plan.intent.digest, stamps=stamps))
            return
        begun = journal.begin(plan.intent)
        self._storage.save_journal(begun)
        with self._lock:
            self._commit(plan, staged)
        self._storage.save_journal(begun.complete(child.start_time_now(), self._stamps(begun.files)))

    def _commit(self, plan: Plan, staged: Sequence[files.Staged]) -> None:
        seen = {**(self._last_digests or {}), **{each.key: each.digest for each in plan.writes}}
        self._last_digests = {key: digest for key, digest in seen.items() if key not in plan.removals}
        files.commit_all(staged)
        for key in plan.removals:
            files.remove_durable(self.path(key))


class _ShapeMetadata(msgspec.Struct):
    name: str
    namespace: str | None = None


class _Shape(msgspec.Struct):
    """The fields of a manifest whose types matter here."""

    kind: str
    metadata: _ShapeMetadata
    spec: dict[str, Any] | None = None
    scopes: tuple[str, ...] | None = None


def _read(path: Path) -> bytes:
    """Return the content of a file; of one too large for a resource, only a comment that changes with it."""
    found = path.stat()
    if found.st_size <= _MAX_FILE_BYTES:
        return path.read_bytes()
    return f"# {found.st_size} bytes, not read: {found.st_ino} {found.st_mtime_ns}".encode()


def _manifests(path: Path, content: bytes) -> tuple[Manifest, ...]:
    values = [document.value for document in _documents(path, content)]
    return tuple(value for value in values if _is_manifest(value))  # type: ignore[misc]


def _documents(path: Path, content: bytes) -> Sequence[Parsed]:
    """Return the documents of a file; if some cannot be parsed, the others."""
    try:
        return load(content, str(path))
    except GovernorError as error:
        _log.warning("cannot parse a file in the resources directory", file=str(path), error=str(error))
    found: list[Parsed] = []
    for part in _SEPARATOR.split(content):
        with contextlib.suppress(GovernorError):
            found.extend(load(part, str(path)))
    return found


def _is_manifest(value: object) -> bool:
    """Return whether a document has the shape that decisions rely on; daprd rejects others too."""
    try:
        manifest = msgspec.convert(value, _Shape)
    except msgspec.ValidationError:
        return False
    return manifest.kind != "Component" or isinstance((manifest.spec or {}).get("type"), str)
