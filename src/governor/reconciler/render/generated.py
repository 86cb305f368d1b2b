"""Generated values for renderers that cannot replay calls: leaves of Secrets and ConfigMaps that differ per rendering.

They keep the values of the first rendering. Whatever is derived from them elsewhere, such as a checksum, still changes:
it cannot be told apart from a change of the chart or its values. Pure.
"""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from governor.errors import invalid
from governor.reconciler.render.request import Document, Rendered
from governor.values.secret import Secret

_FIELDS: Final = {("v1", "Secret"): ("data", "stringData"), ("v1", "ConfigMap"): ("data", "binaryData")}
D = TypeVar("D", bound=Document)


class _Leaves(msgspec.Struct, frozen=True):
    """A recording: the values of generated leaves by object and path."""

    version: int = 1
    leaves: dict[str, Any] = {}


def keep(first: Rendered, second: Rendered, recording: Secret | None) -> Rendered:
    """Return the first of two renderings, with recorded values where the two differ, and its recording."""
    recorded = _read(recording).leaves
    others = dict(_leaves((*second.objects, *second.hooks)))
    leaves = {
        path: recorded.get(path, value)
        for path, value in _leaves((*first.objects, *first.hooks))
        if path in others and others[path] != value
    }
    text = msgspec.json.encode(_Leaves(leaves=leaves)).decode()
    return msgspec.structs.replace(
        first,
        objects=tuple(_with(each, leaves) for each in first.objects),
        hooks=tuple(_with(each, leaves) for each in first.hooks),
        recording=Secret(text) if leaves else None,
    )


def _read(recording: Secret | None) -> _Leaves:
    if recording is None:
        return _Leaves()
    try:
        return msgspec.json.decode(recording.reveal(), type=_Leaves)
    except msgspec.DecodeError as error:
        message = "the recording of an earlier rendering cannot be read: delete it to generate new values"
        raise invalid("recording", message) from error


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


def _with(document: D, leaves: dict[str, Any]) -> D:
    changed = {
        field: {key: leaves.get(_path(document, field, key), old) for key, old in document.object[field].items()}
        for field in _fields(document)
    }
    return msgspec.structs.replace(document, object={**document.object, **changed}) if changed else document
