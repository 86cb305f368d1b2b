"""Rendered documents as objects: lists are flattened, empty documents dropped, and all others checked. Pure.

Charts that share a definition in ``crds`` each bring a copy of it. The first one counts, as with Helm.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from governor.errors import invalid
from governor.reconciler.render.request import Document, Rendered


def checked(rendered: Rendered) -> Rendered:
    """Return the result with objects only; raise an INVALID error for a document that is none."""
    hooks = tuple(each for each in rendered.hooks if _is_object(each.source, each.object))
    return msgspec.structs.replace(
        rendered,
        crds=tuple(_without_copies(_objects(rendered.crds))),
        objects=tuple(_objects(rendered.objects)),
        hooks=hooks,
    )


def _without_copies(documents: Iterable[Document]) -> Iterator[Document]:
    seen: set[tuple[str, str]] = set()
    for each in documents:
        key = each.object["kind"], each.object["metadata"]["name"]
        if key not in seen:
            seen.add(key)
            yield each


def _objects(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        for each in _flattened(document.object):
            if _is_object(document.source, each):
                yield Document(document.source, each)


def _flattened(value: Any) -> list[Any]:
    """Return the items of a list object, or the value itself. Like Helm, take any object with items for a list.

    The items of a list of one kind, such as a RoleBindingList, may leave out what its own kind says.
    """
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(items, list):
        return [value]
    kind = str(value.get("kind", "")).removesuffix("List")
    defaults = {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}
    return [defaults | each if isinstance(each, dict) and "kind" not in each else each for each in items]


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
    if isinstance(metadata, dict) and metadata.get("generateName") and "metadata.name" in missing:
        message = f"{source}: generateName is not supported, since each apply would create another object: set a name"
        raise invalid("not-an-object", message)
    if missing:
        raise invalid("not-an-object", f"{source}: an object has no {' and no '.join(missing)}: correct the template")
    return True
