"""Policies in YAML files: reading, checking, and what of them is in force.

The last valid version of an invalid file stays in force, as with files of plugins; a deleted file takes effect at once.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from governor import yamltext
from governor.errors import Detail, GovernorError
from governor.runtimeproxy.plugins.registry import Problem
from governor.runtimeproxy.policies.policy import (
    CLEARABLE,
    CLEARABLE_ENTRIES,
    PREFIX,
    ContainerChanges,
    Document,
    PodChanges,
    Policy,
)
from governor.runtimeproxy.watched_directory import FILE_LIMIT_BYTES
from governor.values.paths import Item, render
from governor.values.structs import explain

_POD_ONLY: Final = {"labels"}
_CONTAINER_ONLY: Final = {"environment", "mounts", "devices"}


class Policies(msgspec.Struct, frozen=True):
    """The policies in force by file name, and the problems in the current files."""

    by_file: Mapping[str, tuple[Policy, ...]] = {}
    problems: tuple[Problem, ...] = ()

    @property
    def all(self) -> tuple[Policy, ...]:
        """Return the policies of all files."""
        return tuple(each for own in self.by_file.values() for each in own)


def reload(previous: Policies, contents: Mapping[str, bytes | OSError], *, has_unified: bool) -> Policies:
    """Return the policies after reading the directory; without ``has_unified`` none may set files of cgroup v2."""
    by_file: dict[str, tuple[Policy, ...]] = {}
    problems: list[Problem] = []
    taken: dict[str, str] = {}
    for file, content in sorted(contents.items()):
        if file.startswith("."):
            continue
        reader = _Reader(file, taken, has_unified=has_unified)
        found = reader.read(content)
        kept = previous.by_file.get(file) if found is None else found
        if kept is not None:
            by_file[file] = kept
            taken.update({each.name: file for each in kept})
        outcome = "its policies are not used" if kept is None else "its last valid version stays in force"
        problems += [
            Problem(msgspec.structs.replace(each, reason=f"{each.reason}; {outcome}"), is_error=True)
            for each in reader.errors
        ]
    return Policies(by_file, tuple(problems))


class _Reader:
    """Reads one file and collects its errors; with an error it yields no policies."""

    def __init__(self, file: str, taken: Mapping[str, str], *, has_unified: bool) -> None:
        self._file = file
        self._taken = dict(taken)
        self._has_unified = has_unified
        self.errors: list[Detail] = []

    def read(self, content: bytes | OSError) -> tuple[Policy, ...] | None:
        if isinstance(content, OSError):
            self._error("", f"cannot be read: {content.strerror or content}")
        elif len(content) > FILE_LIMIT_BYTES:
            self._error("", f"is {len(content)} bytes long; {FILE_LIMIT_BYTES} are allowed")
        else:
            policies = tuple(self._policies(content))
            return None if self.errors else policies
        return None

    def _policies(self, content: bytes) -> Iterator[Policy]:
        try:
            documents = [each for each in yamltext.load(content, self._file) if each.value is not None]
        except GovernorError as error:
            self.errors += error.details or [Detail(error.message, file=self._file)]
            return
        for document in documents:
            policy = self._policy(document)
            if policy is not None:
                yield policy

    def _policy(self, document: yamltext.Parsed) -> Policy | None:
        try:
            written = msgspec.convert(document.value, Document)
        except msgspec.ValidationError as error:
            path, reason = explain(error, Document, document.value)
            # Items of lists are addressed by number here.
            self._error(
                render(path), reason, document.line_of(tuple(each for each in path if not isinstance(each, Item)))
            )
            return None
        line, spec = document.line_of(("metadata", "name")), written.spec
        name = f"{PREFIX}{written.metadata.name}"
        if name in self._taken:
            self._error("metadata.name", f"{written.metadata.name!r} is also in {self._taken[name]}", line)
        self._taken[name] = self._file
        if spec.pod is None and spec.container is None:
            self._error("spec", "has neither pod nor container, so the policy changes nothing", line)
        self._check("spec.pod", spec.pod, _CONTAINER_ONLY, line)
        self._check("spec.container", spec.container, _POD_ONLY, line)
        return Policy(name, spec)

    def _check(self, path: str, changes: PodChanges | ContainerChanges | None, unknown: set[str], line: int) -> None:
        if changes is None:
            return
        if changes.set.unified and not self._has_unified:
            self._error(f"{path}.set.unified", "needs cgroup v2, and this node has cgroup v1", line)
        for each in changes.clear:
            kind, slash, key = each.partition("/")
            is_entry = bool(slash and key) and kind in CLEARABLE_ENTRIES and kind not in unknown
            if not is_entry and each not in CLEARABLE:
                known = ", ".join([*CLEARABLE, *(f"{name}/KEY" for name in CLEARABLE_ENTRIES if name not in unknown)])
                self._error(f"{path}.clear", f"{each!r} cannot be cleared; choose one of: {known}", line)

    def _error(self, path: str, reason: str, line: int = 0) -> None:
        self.errors.append(Detail(reason, file=self._file, line=line, path=path))
