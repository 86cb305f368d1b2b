"""Why the server did not apply: fields of other managers, or an object that is no longer the one that was seen."""

import re
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.errors import ApiError

_UNFIT: Final = ("failed to create typed patch object", "unable to convert unstructured object")
_MANAGER: Final = re.compile(r'conflict with "((?:[^"\\]|\\.)*)"')


class FieldConflict(msgspec.Struct, frozen=True):
    """A field that another manager has set to something else."""

    path: str
    manager: str


def conflicts_of(error: GovernorError) -> tuple[FieldConflict, ...]:
    """The fields that other managers have; none if that was not the reason."""
    causes = error.causes if isinstance(error, ApiError) else ()
    return tuple(
        FieldConflict(cause.field.removeprefix("."), _manager(cause.message))
        for cause in causes
        if cause.reason == "FieldManagerConflict"
    )


def outdated(error: GovernorError) -> bool:
    """Whether the object is another one than was seen, or there is one where none was seen: look again."""
    if not isinstance(error, ApiError) or conflicts_of(error):
        return False
    return error.kind is Kind.CONFLICT or any(cause.field == "metadata.uid" for cause in error.causes)


def unfit(error: GovernorError) -> bool:
    """Whether the manifest does not fit the schema of its kind, which the server calls an error of its own."""
    if not isinstance(error, ApiError) or error.kind is not Kind.INTERNAL:
        return False
    return any(words in error.message for words in _UNFIT)


def _manager(message: str) -> str:
    named = _MANAGER.search(message)
    return re.sub(r"\\(.)", r"\1", named[1]) if named else ""
