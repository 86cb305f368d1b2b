"""Checking manifests before anything is written: pure, and all problems at once.

Which kinds the server has is found out by the caller, for the kinds that ``kinds_in`` names.
"""

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import Detail, GovernorError, invalid
from governor.kube.applyset.diff import is_secret
from governor.kube.applyset.settings import Owner, Settings, is_name, is_namespace
from governor.kube.objects import ApiResource, Object, ObjectRef, group_of, ref_of
from governor.values.digest import digest
from governor.values.paths import render

KindKey: TypeAlias = tuple[str, str, str]
"""Group, version and kind."""

_LINE_ENDS: Final = dict.fromkeys(map(ord, "\r\n"))
_FROM_A_SERVER: Final = ("managedFields", "resourceVersion", "uid")


class Wanted(msgspec.Struct, frozen=True):
    """One object as it shall be."""

    ref: ObjectRef
    resource: ApiResource
    manifest: Object
    digest: str = ""
    """Of the manifest. Empty for a Secret: its digest, which more people can read, would let them try out guesses."""
    defined_here: bool = False
    """Whether a definition of this set brings its kind."""


class Numbered(msgspec.Struct, frozen=True):
    """One manifest as it was given, and where."""

    place: str
    manifest: Any


def expand(manifests: Iterable[Any]) -> tuple[Numbered, ...]:
    """All manifests one by one; those in lists too."""
    return tuple(
        each for number, manifest in enumerate(manifests, 1) for each in _expanded(f"manifest {number}", manifest)
    )


def kinds_in(manifests: Iterable[Numbered]) -> frozenset[KindKey]:
    """The kinds that the server has to be asked for: those that no definition among the manifests brings."""
    manifests = tuple(manifests)
    keys = {_key(each.manifest) for each in manifests if not any(_shape(each.manifest))}
    return frozenset(keys - defined_kinds(each.manifest for each in manifests).keys())


def defined_kinds(manifests: Iterable[Any]) -> dict[KindKey, ApiResource]:
    """The kinds that CustomResourceDefinitions bring."""
    return {
        (kind.group, kind.version, kind.kind): kind for manifest in manifests for kind in kinds_of_definition(manifest)
    }


def kinds_of_definition(manifest: Any) -> Iterator[ApiResource]:
    """The served versions of what a CustomResourceDefinition defines, the stored one first; nothing if it is none."""
    try:
        found = msgspec.convert(manifest, _Definition)
    except msgspec.ValidationError:
        return
    if found.kind == "CustomResourceDefinition" and group_of(found.api_version) == "apiextensions.k8s.io":
        spec = found.spec
        for version in sorted(spec.versions, key=lambda version: not version.storage):
            if version.served:
                yield ApiResource(
                    spec.group, version.name, spec.names.kind, spec.names.plural, namespaced=spec.scope == "Namespaced"
                )


def check(
    manifests: Iterable[Numbered],
    served: Mapping[KindKey, ApiResource],
    owner: Owner,
    settings: Settings,
    is_inventory: Callable[[ObjectRef], bool],
) -> tuple[Wanted, ...]:
    """The objects to write; INVALID with a detail for each problem."""
    manifests = tuple(manifests)
    defined = defined_kinds(each.manifest for each in manifests)
    wanted: list[Wanted] = []
    details: list[Detail] = []
    for each in manifests:
        problems = list(_shape(each.manifest))
        resource = None if problems else defined.get(_key(each.manifest)) or served.get(_key(each.manifest))
        if not problems and resource is None:
            manifest = each.manifest
            problems.append(Detail(f"the cluster does not serve {manifest['kind']} in {manifest['apiVersion']}"))
        if resource is not None:
            one = _wanted(each.manifest, resource, settings, defined_here=_key(each.manifest) in defined)
            problems += _placement(one, settings)
            problems += _reserved(one, owner, settings, is_inventory)
            wanted.append(one)
        details += [msgspec.structs.replace(problem, document=_called(each)) for problem in problems]
    details += _duplicates(wanted)
    if details:
        raise _refused(details)
    return tuple(wanted)


class _Names(msgspec.Struct, frozen=True):
    kind: str
    plural: str


class _Version(msgspec.Struct, frozen=True):
    name: str
    served: bool
    storage: bool


class _Spec(msgspec.Struct, frozen=True):
    group: str
    names: _Names
    scope: str
    versions: tuple[_Version, ...]


class _Definition(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    spec: _Spec


def _expanded(place: str, manifest: Any) -> Iterator[Numbered]:
    if not _is_list(manifest):
        yield Numbered(place, manifest)
        return
    implied = {} if manifest["kind"] == "List" else _item_kind(manifest)
    for number, item in enumerate(manifest["items"], 1):
        whole = implied | item if isinstance(item, dict) else item
        yield from _expanded(f"{place}, item {number}", whole)


def _is_list(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("items"), list):
        return False
    metadata = manifest.get("metadata")
    named = isinstance(metadata, dict) and "name" in metadata
    return isinstance(manifest.get("kind"), str) and manifest["kind"].endswith("List") and not named


def _item_kind(manifest: Object) -> Object:
    return {"apiVersion": manifest.get("apiVersion"), "kind": manifest["kind"].removesuffix("List")}


def _key(manifest: Object) -> KindKey:
    return group_of(manifest["apiVersion"]), manifest["apiVersion"].rpartition("/")[2], manifest["kind"]


def _shape(manifest: Any) -> Iterator[Detail]:
    """What is wrong with it as a tree."""
    if not isinstance(manifest, dict):
        yield Detail("is no map")
        return
    for key in ("apiVersion", "kind"):
        if not (isinstance(manifest.get(key), str) and manifest[key]):
            yield Detail("is missing or no text", path=key)
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        yield from _metadata_shape(metadata)
    else:
        yield Detail("is missing or no map", path="metadata")
    if is_secret(manifest):
        yield from _secret_shape(manifest)


def _metadata_shape(metadata: Object) -> Iterator[Detail]:
    name = metadata.get("name")
    if metadata.get("generateName"):
        yield Detail("is refused: an object under a new name each time cannot be kept", path="metadata.generateName")
    elif not (isinstance(name, str) and name):
        yield Detail("is missing or no text", path="metadata.name")
    elif not is_name(name):
        yield Detail(f"{name!r} cannot be the name of an object", path="metadata.name")
    namespace = metadata.get("namespace")
    if namespace and not (isinstance(namespace, str) and is_namespace(namespace)):
        yield Detail(f"{namespace!r} cannot be the name of a namespace", path="metadata.namespace")
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key) or {}, dict):
            yield Detail("is no map", path=f"metadata.{key}")
    for key in _FROM_A_SERVER:
        if metadata.get(key):
            yield Detail("is set by the server; leave it out", path=f"metadata.{key}")


def _secret_shape(manifest: Object) -> Iterator[Detail]:
    """What the server would refuse with a message that holds the value."""
    for key in ("data", "stringData"):
        values = manifest.get(key) or {}
        if not isinstance(values, dict):
            yield Detail("is no map", path=key)
            continue
        for name, value in values.items():
            if not isinstance(value, str):
                yield Detail("is no text", path=render((key, name)))
            elif key == "data" and not _is_base64(value):
                yield Detail("is not base64; plain text belongs into stringData", path=render((key, name)))


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.translate(_LINE_ENDS), validate=True)
    except ValueError:
        return False
    return True


def _wanted(manifest: Object, resource: ApiResource, settings: Settings, *, defined_here: bool) -> Wanted:
    metadata = {key: value for key, value in manifest["metadata"].items() if value is not None}
    if resource.namespaced and not metadata.get("namespace") and settings.default_namespace:
        metadata["namespace"] = settings.default_namespace
    whole = {**manifest, "metadata": metadata}
    return Wanted(ref_of(whole), resource, whole, "" if is_secret(whole) else digest(whole), defined_here)


def _placement(wanted: Wanted, settings: Settings) -> Iterator[Detail]:
    namespace, allowed = wanted.ref.namespace, settings.allowed_namespaces
    if wanted.resource.verbs and "patch" not in wanted.resource.verbs:
        yield Detail(f"{wanted.ref.kind} cannot be applied: the server only accepts {sorted(wanted.resource.verbs)}")
    if not wanted.resource.namespaced and namespace:
        yield Detail(f"must be left out: a {wanted.ref.kind} belongs to no namespace", path="metadata.namespace")
    elif not wanted.resource.namespaced and allowed is not None:
        yield Detail(f"a {wanted.ref.kind} belongs to no namespace; this set may only write in {sorted(allowed)}")
    elif wanted.resource.namespaced and not namespace:
        yield Detail("is missing, and there is no default", path="metadata.namespace")
    elif namespace and allowed is not None and namespace not in allowed:
        yield Detail(f"{namespace!r} is none of {sorted(allowed)}, where this set may write", path="metadata.namespace")


def _reserved(
    wanted: Wanted, owner: Owner, settings: Settings, is_inventory: Callable[[ObjectRef], bool]
) -> Iterator[Detail]:
    if is_inventory(wanted.ref):
        yield Detail("has the name of the set's own inventory; choose another")
    if wanted.ref == ObjectRef("", "Namespace", "", owner.namespace):
        yield Detail("holds the set's own inventory, which would go with it; leave it out")
    if settings.owner_label in (wanted.manifest["metadata"].get("labels") or {}):
        yield Detail("is written by the set itself; leave it out", path=f'metadata.labels["{settings.owner_label}"]')


def _duplicates(wanted: Iterable[Wanted]) -> Iterator[Detail]:
    for ref, count in Counter(each.ref for each in wanted).items():
        if count > 1:
            yield Detail(f"is there {count} times", document=str(ref))


def _called(each: Numbered) -> str:
    try:
        return f"{each.place} ({ref_of(each.manifest)})"
    except (KeyError, TypeError, AttributeError):
        return each.place


def _refused(details: list[Detail]) -> GovernorError:
    return invalid("manifests-invalid", f"{len(details)} problems in the manifests; nothing was written", details)
