"""Rendered documents as objects: lists are flattened, empty documents dropped, and all others checked. Pure.

Charts that share a definition in ``crds`` each bring a copy of it. The first one counts, as with Helm. Entries that a
chart repeats in a pod are left out where that changes nothing: the API server accepts them from Helm, but not in a
server-side apply.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from governor.errors import invalid
from governor.kube.objects import Object, group_of
from governor.reconciler.render.request import Document, Rendered

_TEMPLATE: Final = ("spec", "template", "spec")
_POD_SPECS: Final = {
    ("", "Pod"): ("spec",),
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", *_TEMPLATE),
    ("batch", "Job"): _TEMPLATE,
}
"""Where the kinds of workloads have the spec of their pods."""


def checked(rendered: Rendered) -> Rendered:
    """Return the result with objects only; raise an INVALID error for a document that is none."""
    found = (each for each in rendered.hooks if _is_object(each.source, each.object))
    hooks = tuple(msgspec.structs.replace(each, object=_without_repetitions(each.object)) for each in found)
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
                yield Document(document.source, _without_repetitions(each))


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


def _without_repetitions(value: Object) -> Object:
    """Return an object without the entries that its pods repeat."""
    path = _POD_SPECS.get((group_of(value["apiVersion"]), value["kind"]), ())
    return _changed_at(value, path) if path else value


def _changed_at(value: Any, path: tuple[str, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    if not path:
        return _pod_spec(value)
    key, *rest = path
    return {**value, key: _changed_at(value[key], tuple(rest))} if key in value else value


def _pod_spec(pod: Object) -> Object:
    changed = {key: _each_once(value) if key == "imagePullSecrets" else value for key, value in pod.items()}
    for key in ("containers", "initContainers"):
        if isinstance(pod.get(key), list):
            changed[key] = [_container(each) if isinstance(each, dict) else each for each in pod[key]]
    return changed


def _container(container: Object) -> Object:
    changes = {"env": _effective, "ports": _each_once}
    return {key: changes[key](value) if key in changes else value for key, value in container.items()}


def _each_once(items: Any) -> Any:
    """Return a list without equal entries."""
    if not isinstance(items, list):
        return items
    return [each for number, each in enumerate(items) if each not in items[:number]]


def _effective(variables: Any) -> Any:
    """Return variables without those that a later one of the same name hides, unless one in between refers to them."""
    if not isinstance(variables, list) or not all(isinstance(each, dict) for each in variables):
        return variables
    last = {str(each.get("name")): number for number, each in enumerate(variables)}

    def is_hidden(number: int, name: str) -> bool:
        between = variables[number + 1 : last[name] + 1]
        return bool(between) and not any(f"$({name})" in str(each.get("value")) for each in between)

    return [each for number, each in enumerate(variables) if not is_hidden(number, str(each.get("name")))]
