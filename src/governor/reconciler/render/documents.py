"""Rendered documents as objects: lists are flattened, empty documents dropped, and all others checked. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from governor.errors import invalid
from governor.reconciler.render.request import Document, Rendered


def checked(rendered: Rendered) -> Rendered:
    """Return the result with objects only; raise an INVALID error for a document that is none."""
    hooks = tuple(each for each in rendered.hooks if _is_object(each.source, each.object))
    return msgspec.structs.replace(
        rendered, crds=tuple(_objects(rendered.crds)), objects=tuple(_objects(rendered.objects)), hooks=hooks
    )


def _objects(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        for each in _flattened(document.object):
            if _is_object(document.source, each):
                yield Document(document.source, each)


def _flattened(value: Any) -> list[Any]:
    """Return the items of a list object, or the value itself. Like Helm, take any object with items for a list."""
    items = value.get("items") if isinstance(value, dict) else None
    return items if isinstance(items, list) else [value]


def _is_object(source: str, value: Any) -> bool:
    """Return whether a document is an object, False if it is empty; raise if it is anything else."""
    if value is None or value == {}:
        return False
    if not isinstance(value, dict):
        raise invalid("not-an-object", f"{source}: a document is not an object: correct the template")
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    found = {"apiVersion": value.get("apiVersion"), "kind": value.get("kind"), "metadata.name": name}
    missing = [field for field, text in found.items() if not isinstance(text, str) or not text]
    if missing:
        raise invalid("not-an-object", f"{source}: an object has no {' and no '.join(missing)}: correct the template")
    return True
