"""What charts generate: recordings, and values that are kept where calls cannot be replayed.

The linked renderer records calls of functions. Helm's command cannot: there, leaves of Secrets and ConfigMaps that
differ between two renderings keep the values of the first one. Whatever is derived from them elsewhere, such as a
checksum, still changes: it cannot be told apart from a change of the chart or its values. Pure.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.reconciler.render.request import Document, Rendered
from governor.values.secret import Secret

VERSION: Final = 1
_FIELDS: Final = {("v1", "Secret"): ("data", "stringData"), ("v1", "ConfigMap"): ("data", "binaryData")}
D = TypeVar("D", bound=Document)


class Recording(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rendering has generated. It is given to the next one, as JSON."""

    version: int
    now: str = ""
    """The time of the first rendering; of the linked renderer."""
    calls: Mapping[str, msgspec.Raw] = {}
    """Results of functions by call; of the linked renderer."""
    leaves: Mapping[str, Any] = {}
    """Generated entries of Secrets and ConfigMaps by object and path; of Helm's command."""


def read_recording(recording: Secret | None) -> Recording:
    """Return a recording; an empty one if there is none."""
    if recording is None:
        return Recording(VERSION)
    try:
        found = msgspec.json.decode(recording.reveal(), type=Recording)
    except msgspec.DecodeError as error:
        message = "the recording of an earlier rendering cannot be read: delete it to generate new values"
        raise invalid("recording", message) from error
    if found.version > VERSION:
        message = f"the recording of an earlier rendering has format {found.version}: use the version that wrote it"
        raise GovernorError(Kind.UNIMPLEMENTED, "recording", message)
    return found


def require_leaves(recording: Recording) -> None:
    """Raise if only the linked renderer can generate the same again."""
    if recording.calls or recording.now:
        message = "what the chart has generated was recorded by governor-renderer, and would change: install it"
        raise GovernorError(Kind.UNIMPLEMENTED, "recording", message)


def keep(first: Rendered, second: Rendered, recorded: Recording) -> Rendered:
    """Return the first of two renderings, with recorded values where the two differ, and its recording."""
    others = dict(_leaves((*second.objects, *second.hooks)))
    leaves = {
        path: recorded.leaves.get(path, value)
        for path, value in _leaves((*first.objects, *first.hooks))
        if path in others and others[path] != value
    }
    if not leaves:
        return first
    recording = msgspec.structs.replace(read_recording(first.recording), leaves=leaves)
    return msgspec.structs.replace(
        first,
        objects=tuple(_with(each, leaves) for each in first.objects),
        hooks=tuple(_with(each, leaves) for each in first.hooks),
        recording=Secret(msgspec.json.encode(recording).decode()),
    )


def _leaves(documents: tuple[Document, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each entry of Secrets and ConfigMaps."""
    for document in documents:
        for field in _fields(document):
            for key, value in document.object[field].items():
                yield _path(document, field, key), value


def _fields(document: Document) -> list[str]:
    value = document.object
    known = _FIELDS.get((value["apiVersion"], value["kind"]), ())
    return [field for field in known if isinstance(value.get(field), dict)]


def _path(document: Document, field: str, key: str) -> str:
    value = document.object
    metadata = value["metadata"]
    return "/".join((value["kind"], metadata.get("namespace") or "", metadata["name"], field, key))


def _with(document: D, leaves: Mapping[str, Any]) -> D:
    changed = {
        field: {key: leaves.get(_path(document, field, key), old) for key, old in document.object[field].items()}
        for field in _fields(document)
    }
    return msgspec.structs.replace(document, object={**document.object, **changed}) if changed else document
