"""All plugins registered by the files in ``hookserver.d``. Pure.

The last valid version of an invalid file stays in force; a deleted file takes effect at once. ``directory`` reads the
files, ``registration`` defines their format.
"""

from collections.abc import Iterator, Mapping

import msgspec

from governor.errors import Detail
from governor.runtimeproxy.plugins.registration import SUFFIX, Registration, RegistrationReader
from governor.wire.hooks.points import Hook


class Problem(msgspec.Struct, frozen=True):
    """A problem in a plugin file: a file with an error is not used, one with warnings is."""

    detail: Detail
    is_error: bool

    def __str__(self) -> str:
        return f"{'error' if self.is_error else 'warning'}: {self.detail}"


class Registrations(msgspec.Struct, frozen=True):
    """The registered plugins by file name, and the problems in the current files."""

    by_file: Mapping[str, Registration] = {}
    problems: tuple[Problem, ...] = ()

    @property
    def remember_environment(self) -> bool:
        """Return whether a plugin asks to remember the variables of containers."""
        return any(each.remembers_environment for each in self.by_file.values())


def reload(previous: Registrations, contents: Mapping[str, bytes | OSError]) -> Registrations:
    """Return the registrations after reading the directory: the content of each file, or the error of reading it."""
    by_file: dict[str, Registration] = {}
    problems: list[Problem] = []
    for name, content in sorted(contents.items()):
        if not _is_registration(name):
            continue
        reader = RegistrationReader(name)
        registration = reader.read(content) or previous.by_file.get(name)
        if registration is not None:
            by_file[name] = registration
        problems += _problems(reader, still_used=registration is not None)
    return Registrations(by_file, (*problems, *_shared_sockets(by_file)))


def _problems(reader: RegistrationReader, *, still_used: bool) -> Iterator[Problem]:
    outcome = "its last valid version stays in force" if still_used else "the plugin is not used"
    for detail in reader.errors:
        yield Problem(msgspec.structs.replace(detail, reason=f"{detail.reason}; {outcome}"), is_error=True)
    for detail in reader.warnings:
        yield Problem(detail, is_error=False)


def _is_registration(name: str) -> bool:
    """Return whether a file registers a plugin; hidden files are temporary ones of editors and atomic writers."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def _shared_sockets(by_file: Mapping[str, Registration]) -> Iterator[Problem]:
    first: dict[tuple[str, Hook], str] = {}
    for name, registration in by_file.items():
        others = {first.setdefault((registration.endpoint, hook), name) for hook in registration.policies} - {name}
        for other in sorted(others):
            reason = f"the same socket is registered by {other}; the plugin is called twice"
            yield Problem(Detail(reason, file=name, path="remote-endpoint"), is_error=False)
