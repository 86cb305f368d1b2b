"""Validation of manifests before anything is written: pure, reporting all problems at once.

The caller discovers which kinds the server serves, for the kinds returned by ``kinds_to_discover``.
"""

import base64
import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from governor.errors import Detail, invalid
from governor.kube.applyset.diff import is_secret
from governor.kube.applyset.settings import Owner, Recreate, Settings, is_name, is_namespace
from governor.kube.objects import ApiResource, Object, ObjectRef, group_of, ref_of
from governor.values.digest import canonical, digest
from governor.values.paths import render

GroupVersionKind: TypeAlias = tuple[str, str, str]

_LINE_ENDS: Final = dict.fromkeys(map(ord, "\r\n"))
_SET_BY_SERVER: Final = ("managedFields", "resourceVersion", "uid")


class Desired(msgspec.Struct, frozen=True):
    """One object in its desired state."""

    ref: ObjectRef
    resource: ApiResource
    manifest: Object
    digest: str = ""
    """Digest of the manifest; that of a Secret is keyed, or empty while its key is unknown."""
    defined_in_set: bool = False
    """Whether a CustomResourceDefinition of this set defines its kind."""


class Located(msgspec.Struct, frozen=True):
    """One manifest and its position in the input."""

    position: str
    manifest: Any


def expand(manifests: Iterable[Any]) -> tuple[Located, ...]:
    """Return all manifests with lists replaced by their items."""
    return tuple(
        each for number, manifest in enumerate(manifests, 1) for each in _expand(f"manifest {number}", manifest)
    )


def kinds_to_discover(manifests: Iterable[Located]) -> frozenset[GroupVersionKind]:
    """Return the kinds that no CustomResourceDefinition among the manifests defines."""
    manifests = tuple(manifests)
    kinds = {_kind_of(each.manifest) for each in manifests if not any(_structure_problems(each.manifest))}
    return frozenset(kinds - defined_kinds(each.manifest for each in manifests).keys())


def defined_kinds(manifests: Iterable[Any]) -> dict[GroupVersionKind, ApiResource]:
    """Return the kinds that CustomResourceDefinitions among the manifests define."""
    return {key_of(kind): kind for manifest in manifests for kind in kinds_of_crd(manifest)}


def key_of(kind: ApiResource) -> GroupVersionKind:
    """Return group, version and name of a kind."""
    return kind.group, kind.version, kind.kind


def kinds_of_crd(manifest: Any) -> Iterator[ApiResource]:
    """Yield the served versions of a CustomResourceDefinition, the storage version first; nothing for other kinds."""
    try:
        crd = msgspec.convert(manifest, _Crd)
    except msgspec.ValidationError:
        return
    if crd.kind == "CustomResourceDefinition" and group_of(crd.api_version) == "apiextensions.k8s.io":
        spec = crd.spec
        for version in sorted(spec.versions, key=lambda version: not version.storage):
            if version.served:
                yield ApiResource(
                    spec.group,
                    version.name,
                    spec.names.kind,
                    spec.names.plural,
                    namespaced=spec.scope == "Namespaced",
                    subresources=frozenset(version.subresources or ()),
                )


def validate(
    manifests: Iterable[Located],
    served: Mapping[GroupVersionKind, ApiResource],
    owner: Owner,
    settings: Settings,
) -> tuple[Desired, ...]:
    """Return the desired objects; INVALID with a detail for each problem."""
    manifests = tuple(manifests)
    defined = defined_kinds(each.manifest for each in manifests)
    valid: list[Desired] = []
    details: list[Detail] = []
    for each in manifests:
        problems = list(_structure_problems(each.manifest))
        resource = None if problems else defined.get(_kind_of(each.manifest)) or served.get(_kind_of(each.manifest))
        if not problems and resource is None:
            manifest = each.manifest
            problems.append(Detail(f"the cluster does not serve {manifest['kind']} in {manifest['apiVersion']}"))
        if resource is not None:
            desired = _desired(each.manifest, resource, settings, defined_in_set=_kind_of(each.manifest) in defined)
            problems += _scope_problems(desired, settings)
            problems += _reserved_names(desired, owner, settings)
            problems += _recreate_problems(desired, settings)
            valid.append(desired)
        details += [msgspec.structs.replace(problem, document=_document(each)) for problem in problems]
    details += _duplicates(valid)
    if details:
        raise invalid("manifests-invalid", "the manifests are invalid; nothing was written", details)
    return tuple(valid)


def with_digest_key(secret: Desired, key: str, settings: Settings) -> Desired:
    """Return a Secret with a keyed digest, and the key in an annotation.

    Readers of the inventory could test guesses against a plain digest. The key is readable for users who can read the
    Secret itself.
    """
    keyed = hmac.new(key.encode(), canonical(secret.manifest), "sha256").hexdigest()
    metadata = secret.manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), settings.digest_key_annotation: key}
    manifest = {**secret.manifest, "metadata": {**metadata, "annotations": annotations}}
    return msgspec.structs.replace(secret, manifest=manifest, digest=f"sha256:{keyed}")


class _CrdNames(msgspec.Struct, frozen=True):
    kind: str
    plural: str


class _CrdVersion(msgspec.Struct, frozen=True):
    name: str
    served: bool
    storage: bool
    subresources: Mapping[str, Any] | None = None


class _CrdSpec(msgspec.Struct, frozen=True):
    group: str
    names: _CrdNames
    scope: str
    versions: tuple[_CrdVersion, ...]


class _Crd(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    spec: _CrdSpec


def _expand(position: str, manifest: Any) -> Iterator[Located]:
    if not _is_list(manifest):
        yield Located(position, manifest)
        return
    defaults = {} if manifest["kind"] == "List" else _item_kind(manifest)
    for number, item in enumerate(manifest["items"], 1):
        whole = defaults | item if isinstance(item, dict) else item
        yield from _expand(f"{position}, item {number}", whole)


def _is_list(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("items"), list):
        return False
    metadata = manifest.get("metadata")
    named = isinstance(metadata, dict) and "name" in metadata
    return isinstance(manifest.get("kind"), str) and manifest["kind"].endswith("List") and not named


def _item_kind(manifest: Object) -> Object:
    return {"apiVersion": manifest.get("apiVersion"), "kind": manifest["kind"].removesuffix("List")}


def _kind_of(manifest: Object) -> GroupVersionKind:
    return group_of(manifest["apiVersion"]), manifest["apiVersion"].rpartition("/")[2], manifest["kind"]


def _structure_problems(manifest: Any) -> Iterator[Detail]:
    if not isinstance(manifest, dict):
        yield Detail("is not a map")
        return
    for key in ("apiVersion", "kind"):
        if not (isinstance(manifest.get(key), str) and manifest[key]):
            yield Detail("is missing or not a string", path=key)
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict):
        yield from _metadata_problems(metadata)
    else:
        yield Detail("is missing or not a map", path="metadata")
    if is_secret(manifest):
        yield from _secret_problems(manifest)


def _metadata_problems(metadata: Object) -> Iterator[Detail]:
    name = metadata.get("name")
    if metadata.get("generateName"):
        yield Detail(
            "is not supported: each apply would create another object; set metadata.name", path="metadata.generateName"
        )
    elif not (isinstance(name, str) and name):
        yield Detail("is missing or not a string", path="metadata.name")
    elif not is_name(name):
        yield Detail(f"{name!r} is not a valid object name", path="metadata.name")
    namespace = metadata.get("namespace")
    if namespace and not (isinstance(namespace, str) and is_namespace(namespace)):
        yield Detail(f"{namespace!r} is not a valid namespace name", path="metadata.namespace")
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key) or {}, dict):
            yield Detail("is not a map", path=f"metadata.{key}")
    for key in _SET_BY_SERVER:
        if metadata.get(key):
            yield Detail("is set by the server; remove it", path=f"metadata.{key}")


def _secret_problems(manifest: Object) -> Iterator[Detail]:
    """Check what the server would reject with a message that contains the value."""
    for key in ("data", "stringData"):
        values = manifest.get(key) or {}
        if not isinstance(values, dict):
            yield Detail("is not a map", path=key)
            continue
        for name, value in values.items():
            if not isinstance(value, str):
                yield Detail("is not a string", path=render((key, name)))
            elif key == "data" and not _is_base64(value):
                yield Detail("is not base64; put plain text into stringData", path=render((key, name)))


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text.translate(_LINE_ENDS), validate=True)
    except ValueError:
        return False
    return True


def _desired(manifest: Object, resource: ApiResource, settings: Settings, *, defined_in_set: bool) -> Desired:
    metadata = {key: value for key, value in manifest["metadata"].items() if value is not None}
    if resource.namespaced and not metadata.get("namespace") and settings.default_namespace:
        metadata["namespace"] = settings.default_namespace
    whole = _encoded({**manifest, "metadata": metadata})
    return Desired(ref_of(whole), resource, whole, "" if is_secret(whole) else digest(whole), defined_in_set)


def _encoded(manifest: Object) -> Object:
    """Return a Secret with its plain text in ``data``: the server does, but lets no manager own the entries."""
    texts = manifest.get("stringData") if is_secret(manifest) else None
    if not texts:
        return manifest
    encoded = {key: base64.b64encode((text or "").encode()).decode() for key, text in texts.items()}
    kept = {key: value for key, value in manifest.items() if key != "stringData"}
    return {**kept, "data": {**(manifest.get("data") or {}), **encoded}}


def _scope_problems(desired: Desired, settings: Settings) -> Iterator[Detail]:
    kind, namespace, allowed = desired.ref.kind, desired.ref.namespace, settings.allowed_namespaces
    if desired.resource.verbs and "patch" not in desired.resource.verbs:
        yield Detail(f"{kind} cannot be applied: the server supports only {sorted(desired.resource.verbs)}")
    if not desired.resource.namespaced and namespace:
        yield Detail(f"must not be set: {kind} is cluster-scoped", path="metadata.namespace")
    elif not desired.resource.namespaced and allowed is not None:
        yield Detail(f"{kind} is cluster-scoped; this set may only write in the namespaces {sorted(allowed)}")
    elif desired.resource.namespaced and not namespace:
        yield Detail("is missing, and Settings.default_namespace is not set", path="metadata.namespace")
    elif namespace and allowed is not None and namespace not in allowed:
        yield Detail(
            f"{namespace!r} is not allowed: this set may only write in the namespaces {sorted(allowed)}",
            path="metadata.namespace",
        )


def _reserved_names(desired: Desired, owner: Owner, settings: Settings) -> Iterator[Detail]:
    if desired.ref == ObjectRef("", "ConfigMap", owner.namespace, owner.name):
        yield Detail("has the name of the set's own inventory; choose another")
    if desired.ref == ObjectRef("", "Namespace", "", owner.namespace):
        yield Detail("contains the set's own inventory, which would be deleted with it; remove it from the set")
    metadata = desired.manifest["metadata"]
    for field, key in (("labels", settings.owner_label), ("annotations", settings.digest_key_annotation)):
        if key in (metadata.get(field) or {}):
            yield Detail("is set by the apply set; remove it", path=f'metadata.{field}["{key}"]')


def _recreate_problems(desired: Desired, settings: Settings) -> Iterator[Detail]:
    value = (desired.manifest["metadata"].get("annotations") or {}).get(settings.recreate_annotation, Recreate.NEVER)
    if value not in set(Recreate):
        path = f'metadata.annotations["{settings.recreate_annotation}"]'
        yield Detail(f"{value!r} must be one of {', '.join(Recreate)}", path=path)


def _duplicates(desired: Iterable[Desired]) -> Iterator[Detail]:
    for ref, count in Counter(each.ref for each in desired).items():
        if count > 1:
            yield Detail(f"is defined {count} times", document=str(ref))


def _document(each: Located) -> str:
    try:
        return f"{each.position} ({ref_of(each.manifest)})"
    except (KeyError, TypeError, AttributeError):
        return each.position
