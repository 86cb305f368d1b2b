"""All plugins that the files in ``hookserver.d`` register, and who of them is asked about which pod.

A file that cannot be used is reported, and its last good version stays in force; a file that is gone is gone at once.
Reading the directory is somebody else's task; what a file may hold is in ``registrationfile``.
"""

import functools
from collections.abc import Iterator, Mapping

import msgspec

from governor.errors import Detail
from governor.runtimeproxy.plugins.registration import SUFFIX, FailurePolicy, Reading, Registration
from governor.wire.hooks.points import Hook


class Problem(msgspec.Struct, frozen=True):
    """What is wrong in a file: with an error it is not used, with a warning it is."""

    detail: Detail
    is_error: bool

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'warning'}: {self.detail}"


class Registrations(msgspec.Struct, frozen=True, dict=True):
    """All plugins in force by the names of their files, and what is wrong in the files as they are now."""

    by_file: Mapping[str, Registration] = {}
    problems: tuple[Problem, ...] = ()

    @property
    def hooks(self) -> frozenset[Hook]:
        """The hooks for which any plugin is registered."""
        return frozenset(hook for each in self.by_file.values() for hook in each.policies)

    def of(self, hook: Hook) -> tuple[Registration, ...]:
        """The plugins of a hook, whatever pods they select, in the order in which they are asked."""
        return self._by_hook.get(hook, ())

    @functools.cached_property
    def _by_hook(self) -> Mapping[Hook, tuple[Registration, ...]]:
        ordered = sorted(self.by_file.values(), key=lambda each: (each.order, each.name))
        return {hook: tuple(each for each in ordered if hook in each.policies) for hook in self.hooks}

    def asked(self, hook: Hook, labels: Mapping[str, str]) -> tuple[Registration, ...]:
        """The plugins that are asked about a pod with these labels, in order."""
        return tuple(each for each in self.of(hook) if each.selects(labels))

    def refusing(self, hook: Hook) -> tuple[Registration, ...]:
        """The plugins without whose word no call passes; so does none that cannot be read, whatever pod it is about."""
        return tuple(each for each in self.of(hook) if each.policies[hook] is FailurePolicy.FAIL)


def reload(previous: Registrations, contents: Mapping[str, bytes | OSError]) -> Registrations:
    """The plugins after the directory was read: every file by name, with what is in it or why it cannot be read."""
    by_file: dict[str, Registration] = {}
    problems: list[Problem] = []
    for name, content in sorted(contents.items()):
        if not _is_registration(name):
            continue
        reading = Reading(name)
        registration = reading.read(content) or previous.by_file.get(name)
        if registration is not None:
            by_file[name] = registration
        problems += _problems(reading, still_used=registration is not None)
    return Registrations(by_file, (*problems, *_shared_sockets(by_file)))


def skips(key: str, value: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Whether a pod asks, by a label or an annotation, to be left alone by all plugins."""
    return bool(key) and value in (labels.get(key), annotations.get(key))


def _problems(reading: Reading, *, still_used: bool) -> Iterator[Problem]:
    outcome = "its last good version stays in force" if still_used else "the plugin is not used"
    for detail in reading.errors:
        yield Problem(msgspec.structs.replace(detail, reason=f"{detail.reason}; {outcome}"), is_error=True)
    for detail in reading.warnings:
        yield Problem(detail, is_error=False)


def _is_registration(name: str) -> bool:
    """Hidden files are those that editors and atomic writers leave for a moment."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def _shared_sockets(by_file: Mapping[str, Registration]) -> Iterator[Problem]:
    first: dict[tuple[str, Hook], str] = {}
    for name, registration in by_file.items():
        others = {first.setdefault((registration.endpoint, hook), name) for hook in registration.policies} - {name}
        for other in sorted(others):
            reason = f"the same socket is registered by {other}; the plugin is asked twice"
            yield Problem(Detail(reason, file=name, path="remote-endpoint"), is_error=False)
