"""A catalogue of documents, for resolving without a hub, or as if a hub had them."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from governor import yamltext
from governor.domain.documents import API_VERSION
from governor.errors import GovernorError, invalid
from governor.kube.objects import ObjectRef
from governor.kube.reflector import View
from governor.kube.reflector.store import Index, WritableStore
from governor.reconciler.kinds.channel import CHANNEL, Channel
from governor.reconciler.kinds.cluster import CLUSTER, LOCAL, Cluster
from governor.reconciler.kinds.definition import GROUP, Definition
from governor.reconciler.kinds.installation import INSTALLATION, Installation
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.render import go_yaml
from governor.reconciler.resolution.catalogue import INSTALLATION_INDEXES, INSTANCE_INDEXES, Catalogue
from governor.reconciler.setup.definitions import shipped_definition
from governor.values import structs
from governor.values.paths import Path, render
from governor.values.printing import listed
from governor.values.suggestions import suggestion
from governor.values.trees import position_path

_NAMESPACE: Final = "documents"
_HEAD: Final = frozenset({"apiVersion", "kind", "metadata"})
_KINDS: Final[Mapping[str, Definition]] = {each.kind: each for each in (MODULE, CHANNEL, INSTALLATION, CLUSTER)}
_LOCAL: Final = {"metadata": {"name": LOCAL}, "spec": {"access": {"inCluster": {}}}}
V = TypeVar("V", bound=View)


class Documents(NamedTuple):
    """What documents define."""

    catalogue: Catalogue
    clusters: Mapping[str, Cluster]
    """The Clusters by name; there is always one called ``local``."""


def read_documents(texts: Mapping[str, str], present: Iterable[View] = ()) -> Documents:
    """Return what the documents in some texts define; a text is named after its file.

    They replace those of the ``present`` objects that have the same kind and name.
    """
    parsed = chain.from_iterable(_parsed(text, name) for name, text in texts.items())
    objects = [*present, *map(_object, parsed)]
    catalogue = Catalogue(
        _NAMESPACE,
        _store(objects, Installation, INSTALLATION_INDEXES),
        _store(objects, Channel, {}),
        _store(objects, Module, {}),
        _store(objects, ModuleInstance, INSTANCE_INDEXES),
    )
    clusters = [msgspec.convert(_LOCAL, Cluster), *(each for each in objects if isinstance(each, Cluster))]
    return Documents(catalogue, {each.metadata.name: each for each in clusters})


def _parsed(text: str, name: str) -> Iterator[yamltext.Parsed]:
    """Yield the documents of a text with the values that they have in a hub: kubectl reads YAML as Helm does."""
    documents = [each for each in yamltext.load(text, name) if each.value is not None]
    values = [each for each in go_yaml.load_all(text, name) if each is not None]
    for document, value in zip(documents, values, strict=True):
        yield msgspec.structs.replace(document, value=value)


def _object(document: yamltext.Parsed) -> View:
    value: Any = document.value
    kind = str(value.get("kind")) if isinstance(value, dict) else ""
    if kind not in _KINDS or value.get("apiVersion") != API_VERSION:
        raise _rejected(document, (), f"only {', '.join(_KINDS)} of {API_VERSION} are expected here")
    content = {key: each for key, each in value.items() if key not in _HEAD}
    if unknown := list(unknown_fields(content, _schema(_KINDS[kind]))):
        fields = listed([f"{render(path)} ({hint})" for path, hint in unknown])
        raise _rejected(document, unknown[0][0], f"the {kind} has unknown fields: {fields}; correct or remove them")
    try:
        view = msgspec.convert(value, _KINDS[kind].view)
    except msgspec.ValidationError as error:
        path, reason = structs.explain(error, _KINDS[kind].view, value)
        raise _rejected(document, path, f"the {kind} is invalid: {render(path)}: {reason}") from error
    if isinstance(view, Module):
        _check_name(document, view)
    return view


def _check_name(document: yamltext.Parsed, module: Module) -> None:
    expected = module_object_name(module.spec.module, module.spec.version)
    if module.metadata.name != expected:
        reason = f"metadata.name: must be {expected}, after the module and its version"
        raise _rejected(document, ("metadata", "name"), f"the Module is invalid: {reason}")


def _rejected(document: yamltext.Parsed, path: Path, reason: str) -> GovernorError:
    return invalid("document", f"{document.source}:{document.line_of(position_path(document.value, path))}: {reason}")


@functools.cache
def _schema(kind: Definition) -> Any:
    """Return the schema that the API server validates objects of a kind with."""
    return shipped_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def unknown_fields(value: Any, schema: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the fields of a value that its schema does not have, as kubectl refuses them, with known names."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from unknown_fields(item, schema.get("items", {}), (*path, number))
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    properties, others = schema.get("properties"), schema.get("additionalProperties", {})
    for key, each in value.items():
        if properties is not None and key not in properties:
            yield (*path, key), suggestion(key, properties, "known fields")
        else:
            yield from unknown_fields(each, properties[key] if properties is not None else others, (*path, key))


def _store(objects: Iterable[View], view: type[V], indexes: Mapping[str, Index[V]]) -> WritableStore[V]:
    filled = WritableStore[V](indexes)
    for each in objects:
        if isinstance(each, view):
            filled.put(ObjectRef(GROUP, view.__name__, _NAMESPACE, each.metadata.name), each)
    return filled
