"""The files that sidecars load, read and changed under the journal. Blocking. ``plan`` decides what to change.

The journal is stored before the first write and names what will be written and removed. An interrupted change is
resumed by planning again, because the journal still names the agent's files.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from governor.agent.platforms.local.files import CONFIG, RESOURCES, YAML, content_digest
from governor.agent.platforms.local.plan import ObservedFile, Plan
from governor.agent.storage import Journal, Storage
from governor.errors import GovernorError, Kind
from governor.process import files
from governor.process.child import child
from governor.process.telemetry import logging
from governor.values.trees import Manifest
from governor.yamltext import load

_DIRECTORY_MODE: Final = 0o700

_log = logging.get_logger(__name__)


class ResourceDirectory:
    """The resources directory and the directory of the ``--config`` file."""

    def __init__(self, resources: Path, storage: Storage) -> None:
        self.resources = resources
        self._storage = storage
        self._roots = {RESOURCES: resources, CONFIG: storage.config_directory}

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

    def journal(self) -> Journal:
        """Return the journal."""
        return self._storage.journal()

    def read_files(self) -> dict[str, ObservedFile]:
        """Return every YAML file that a sidecar may load, whether the agent wrote it or not."""
        self.prepare()
        try:
            paths = {f"{role}/{path.name}": path for role, root in self._roots.items() for path in root.iterdir()}
            files = [key for key, path in sorted(paths.items()) if path.name.endswith(YAML) and path.is_file()]
            return {key: _observed(paths[key]) for key in files}
        except OSError as error:
            message = (
                f"cannot read {error.filename}: {error.strerror}; check its permissions: sidecars must read it too"
            )
            raise GovernorError(Kind.PRECONDITION, "directory-unreadable", message) from error

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
        """Commit the staged files, then remove files, under the journal. Without changes do nothing."""
        if not plan.writes and not plan.removals and journal.intent is None:
            return
        begun = journal.begin(plan.intent)
        self._storage.save_journal(begun)
        for each in staged:
            each.commit()
        for key in plan.removals:
            files.remove_durable(self.path(key))
        self._storage.save_journal(begun.complete(child.start_time_now()))


def _observed(path: Path) -> ObservedFile:
    content = path.read_bytes()
    return ObservedFile(content_digest(content), _manifests(path, content))


def _manifests(path: Path, content: bytes) -> tuple[Manifest, ...]:
    try:
        values = [document.value for document in load(content, str(path))]
    except GovernorError as error:
        _log.warning("cannot parse a file in the resources directory", file=str(path), error=str(error))
        return ()
    return tuple(value for value in values if _is_manifest(value))  # type: ignore[misc]


def _is_manifest(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return False
    metadata = value.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)
