"""The objects that a delivery becomes in a cluster: Dapr resources, and Secrets for their sensitive values. Pure.

A sensitive value moves into an immutable Secret beside its resource, one Secret per resource, and the resource refers
to it with ``secretKeyRef``; Dapr's operator resolves that. New content gets a new Secret, so a resource that is applied
again finds the values that it had.

The name of a Secret contains a digest of the values, and more users can read the name in a Component than the Secret
itself: they could test guesses of a weak password against a plain digest. So the digest is keyed. Its key is derived
from the private key of the agent's identity, the only secret that each agent has from its start, that its replicas
share and that survives a restart: nothing more must be stored or can be lost. An agent that enrols with a new identity
renames the Secrets of its runtime once.

Where Dapr reads no Secret, such as ``spec.nameResolution.configuration`` of a Configuration, a sensitive value stays in
the resource and is named in ``Manifests.inline``. Such a resource is not rejected: its author had no other choice, and
``sensitive_paths`` counts doubtful values as sensitive.
"""

import base64
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from governor.agent.verification.resources import with_marker
from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import Schema, is_secret_store, kind_of, schema_of
from governor.domain.dapr.sensitive import Path, sensitive_paths
from governor.domain.documents import ResourceRef, resource_ref
from governor.values.digest import canonical
from governor.values.paths import render
from governor.values.trees import Manifest, Tree, leaf_at, named_path

KUBERNETES_STORE: Final = "kubernetes"
"""The secret store that Dapr has in each cluster, and uses for a resource that names none."""

_KEY_CONTEXT: Final = b"runtime-governor names of Secrets 1"
_DIGEST_CHARS: Final = 20
_MAX_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NOT_IN_KEYS: Final = re.compile(r"[^-._a-zA-Z0-9]")
_MAX_KEY: Final = 200
_QUOTES: Final = frozenset("\"'`")
_STORE_PATHS: Final = (
    ("auth", "secretStore"),
    ("spec", "endpoint", "streamableHTTP", "auth", "secretStore"),
    ("spec", "endpoint", "sse", "auth", "secretStore"),
)


class Manifests(msgspec.Struct, frozen=True):
    """The objects of one delivery. If any resource is rejected, none is to be applied."""

    resources: Mapping[ResourceRef, Manifest]
    """The resources as sidecars load them, with references in place of sensitive values."""
    secrets: Mapping[ResourceRef, Manifest] = {}
    """The Secrets with the values, by resource."""
    removals: tuple[ResourceRef, ...] = ()
    rejections: Mapping[ResourceRef, str] = {}
    """Why a resource cannot be applied in this runtime, whatever the state of the cluster."""
    unmarked: frozenset[ResourceRef] = frozenset()
    """Resources that were adopted as they are: a Configuration among them gets no marker, which would change it."""
    inline: Mapping[ResourceRef, tuple[str, ...]] = {}
    """Paths of the sensitive values that stay in their resources, because Dapr reads no Secret there."""

    def __repr__(self) -> str:
        return f"Manifests({len(self.resources)} resources, {len(self.secrets)} Secrets)"

    @property
    def refs(self) -> tuple[ResourceRef, ...]:
        """Return all resources that the delivery sets or removes."""
        return tuple(dict.fromkeys([*self.resources, *self.rejections, *self.removals]))

    @property
    def plain_text_notes(self) -> Mapping[ResourceRef, str]:
        """Return, for a report, which sensitive values everybody sees who may read the resource."""
        return {
            ref: f"in plain text in the cluster, because Dapr reads no Secret there: {', '.join(paths)}"
            for ref, paths in self.inline.items()
        }

    @property
    def objects(self) -> Mapping[ResourceRef, Manifest]:
        """Return the resources as they are applied: a Configuration with the marker that proves what was loaded."""
        return {
            ref: manifest if ref in self.unmarked else _marked(manifest) for ref, manifest in self.resources.items()
        }

    @property
    def secret_stores(self) -> frozenset[ResourceRef]:
        """Return the secret stores, which other components read when they are loaded."""
        typed = {ref: each for ref, each in self.resources.items() if leaf_at(each, ("spec", "type")) is not None}
        return frozenset(ref for ref, manifest in typed.items() if is_secret_store(manifest))


def naming_key(identity: bytes) -> bytes:
    """Return the key of the digests in the names of Secrets, from the private key of the agent's identity."""
    return hmac.digest(identity, _KEY_CONTEXT, "sha256")


def manifests_of(
    delivery: Delivery, namespaces: Sequence[str], key: bytes, adopted: frozenset[ResourceRef] = frozenset()
) -> Manifests:
    """Return the objects of a delivery for a runtime with these namespaces; resources without one go to the first.

    ``adopted`` are the resources that were adopted as they are.
    """
    resources: dict[ResourceRef, Manifest] = {}
    secrets: dict[ResourceRef, Manifest] = {}
    rejections: dict[ResourceRef, str] = {}
    inline: dict[ResourceRef, tuple[str, ...]] = {}
    for manifest in delivery.resources:
        ref = resource_ref(manifest, namespaces[0])
        if reason := _rejection(ref, manifest, namespaces):
            rejections[ref] = reason
            continue
        places, rest = _places(manifest)
        data = _secret_data(manifest, places)
        resources[ref] = _placed(manifest, ref)
        if data:
            secrets[ref] = _secret(ref, data, key)
            resources[ref] = _with_references(resources[ref], secrets[ref], places, data)
        if rest:
            inline[ref] = tuple(render(named_path(manifest, path)) for path in rest)
    return Manifests(resources, secrets, delivery.removals, rejections, adopted, inline)


def referenced_secrets(manifest: Manifest) -> frozenset[str]:
    """Return the names of the Secrets that a resource reads from Kubernetes; of another store, none."""
    is_other = any(_store(manifest, path) != KUBERNETES_STORE for path in _STORE_PATHS)
    return frozenset() if is_other else frozenset(_references(manifest))


def _marked(manifest: Manifest) -> Manifest:
    return with_marker(manifest) if manifest["kind"] == "Configuration" else manifest


def _placed(manifest: Manifest, ref: ResourceRef) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if value is not None}
    return {**manifest, "metadata": {**metadata, "namespace": ref.namespace}}


def _rejection(ref: ResourceRef, manifest: Manifest, namespaces: Sequence[str]) -> str:
    if kind_of(manifest) is None:
        return f"{ref.kind} ({manifest.get('apiVersion')}) is not a Dapr kind"
    if ref.namespace not in namespaces:
        return (
            f"namespace {ref.namespace!r} is not one of the runtime's namespaces {', '.join(namespaces)}: "
            "change metadata.namespace, or add it to the Runtime"
        )
    if len(ref.name) > _MAX_NAME or not _NAME.fullmatch(ref.name):
        return f"{ref.name!r} is not a valid Kubernetes name: use lower-case letters, digits, '-' and '.'"
    return _reference_conflict(manifest, _places(manifest)[0])


def _reference_conflict(manifest: Manifest, places: Sequence[Path]) -> str:
    """Return why the sensitive values of a resource cannot become references, or ``""``."""
    for place in places:
        if leaf_at(manifest, (*place, "secretKeyRef", "name")):
            path = render(named_path(manifest, place))
            return f"{path} has a sensitive value and a secretKeyRef: remove one of them"
    others = {store for path in _STORE_PATHS if (store := _store(manifest, path)) != KUBERNETES_STORE}
    if places and others and any(_references(manifest)):
        path = render(named_path(manifest, places[0]))
        return (
            f"it reads its secrets from the store {min(others)!r}, and a resource has one store only: put the "
            f"sensitive value of {path} into that store too and refer to it, or remove auth.secretStore"
        )
    return ""


def _store(manifest: Manifest, path: Path) -> str:
    return leaf_at(manifest, path) or KUBERNETES_STORE


def _references(tree: Tree) -> Iterator[str]:
    """Yield the secret names of all references below a place."""
    if isinstance(tree, dict):
        name = (tree.get("secretKeyRef") or {}).get("name")
        if name:
            yield str(name)
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return
    for child in tree:
        yield from _references(child)


def _places(manifest: Manifest) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the items whose sensitive values can become references, and the paths of the other sensitive values."""
    schema = schema_of(manifest["kind"], manifest["apiVersion"])
    found = {path: _place(schema, path) for path in sensitive_paths(manifest)}
    places = dict.fromkeys(place for place in found.values() if place is not None)
    return tuple(places), tuple(path for path, place in found.items() if place is None)


def _place(schema: Schema, path: Path) -> Path | None:
    """Return the path of the item with ``value`` and ``secretKeyRef`` that a path leads through, or None."""
    for position, step in enumerate(path):
        properties = schema.get("properties", {})
        if step == "value" and "secretKeyRef" in properties:
            return path[:position]
        rest = schema.get("items") if isinstance(step, int) else schema.get("additionalProperties")
        inner = properties.get(step, rest)
        if not isinstance(inner, dict):
            return None
        schema = inner
    return None


def _secret_data(manifest: Manifest, places: Iterable[Path]) -> dict[str, str]:
    """Return the texts of the sensitive values by their keys in the Secret, in the order of the places."""
    data: dict[str, str] = {}
    for place in places:
        item = leaf_at(manifest, place)
        data[_key(str(item.get("name") or place[-1]), data)] = _text(item["value"], manifest["kind"])
    return data


def _key(name: str, taken: Mapping[str, str]) -> str:
    plain = _NOT_IN_KEYS.sub("_", name)[:_MAX_KEY].lstrip(".") or "value"
    candidates = (plain, *(f"{plain}.{number}" for number in range(2, len(taken) + 2)))
    return next(each for each in candidates if each not in taken)


def _text(value: Any, kind: str) -> str:
    """Return the text that a sidecar reads as the same value as the inline one.

    daprd removes quotes around a text from a Secret, except in a Configuration; so such a text is quoted once more.
    """
    if not isinstance(value, str):
        return canonical(value).decode()
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES
    return msgspec.json.encode(value).decode() if is_quoted and kind != "Configuration" else value


def _secret(ref: ResourceRef, data: Mapping[str, str], key: bytes) -> Manifest:
    identified = canonical([ref.kind, ref.namespace, ref.name, dict(data)])
    digest = hmac.new(key, identified, "sha256").hexdigest()[:_DIGEST_CHARS]
    prefix = f"{ref.kind.lower()}-{ref.name}"[: _MAX_NAME - _DIGEST_CHARS - 1].rstrip("-.")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{prefix}-{digest}", "namespace": ref.namespace},
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in data.items()},
    }


def _with_references(manifest: Manifest, secret: Manifest, places: Iterable[Path], keys: Iterable[str]) -> Manifest:
    name = secret["metadata"]["name"]
    for place, key in zip(places, keys, strict=True):
        item = leaf_at(manifest, place)
        rest = {field: value for field, value in item.items() if field != "value"}
        manifest = _replaced(manifest, place, {**rest, "secretKeyRef": {"name": name, "key": key}})
    for path in _STORE_PATHS:
        # Without another reference the named store was not used.
        if _store(manifest, path) != KUBERNETES_STORE:
            manifest = _replaced(manifest, path, KUBERNETES_STORE)
    return manifest


def _replaced(tree: Tree, path: Path, value: Tree) -> Tree:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(tree, dict):
        return {**tree, step: _replaced(tree[step], rest, value)}
    return [_replaced(item, rest, value) if position == step else item for position, item in enumerate(tree)]
