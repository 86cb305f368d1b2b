"""Dapr's kinds with their schemas, and its component types. Validating a manifest against its schema is excluded.

The data is package data in ``data/``, written by ``make generate``. Loading it is part of loading the program's code
and not I/O with its environment; it is decoded on first use.
"""

import functools
import pkgutil
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from governor.domain.dapr.reload import RELOAD, Reload
from governor.values.trees import Manifest, Tree

T = TypeVar("T")

GROUP: Final = "dapr.io"

Schema: TypeAlias = dict[str, Any]


class DaprKind(msgspec.Struct, frozen=True):
    """One kind of Dapr resource. ``scoped`` kinds may list the app ids that load them."""

    kind: str
    api_versions: tuple[str, ...]
    scoped: bool
    reload: Reload


class _Kinds(msgspec.Struct, frozen=True):
    """Contents of ``data/kinds.json``: JSON Schemas by kind and apiVersion; ``origin`` is the Go module."""

    origin: str
    schemas: dict[str, dict[str, Schema]]


class _Components(msgspec.Struct, frozen=True):
    """Contents of ``data/components.json``: sensitive field names by component type, and the types of daprd."""

    origin: tuple[str, ...]
    sensitive: dict[str, frozenset[str]]
    types: frozenset[str]


def load_data(name: str, expected: type[T]) -> T:
    """Decode ``data/NAME.json``."""
    data: Any = pkgutil.get_data("governor.domain.dapr", f"data/{name}.json")
    return msgspec.json.decode(data, type=expected)


@functools.cache
def _kinds() -> _Kinds:
    return load_data("kinds", _Kinds)


@functools.cache
def _components() -> _Components:
    return load_data("components", _Components)


@functools.cache
def kinds() -> Mapping[str, DaprKind]:
    """Return all kinds of Dapr resources by name."""
    return {kind: _kind(kind, schemas) for kind, schemas in _kinds().schemas.items()}


def _kind(kind: str, schemas: Mapping[str, Schema]) -> DaprKind:
    scoped = any("scopes" in schema["properties"] for schema in schemas.values())
    return DaprKind(kind, tuple(schemas), scoped, RELOAD[kind])


def kind_of(manifest: Tree) -> DaprKind | None:
    """Return the kind of a manifest, or None if it is not a Dapr resource of a served version."""
    if not isinstance(manifest, dict):
        return None
    name = manifest.get("kind")
    kind = kinds().get(name) if isinstance(name, str) else None
    return kind if kind is not None and manifest.get("apiVersion") in kind.api_versions else None


def schema_of(kind: str, api_version: str) -> Schema:
    """Return the JSON Schema of a whole manifest of this kind and version."""
    return _kinds().schemas[kind][api_version]


def built_in_types() -> frozenset[str]:
    """Return the component types that are built into daprd."""
    return _components().types


@functools.cache
def sensitive_names() -> Mapping[str, frozenset[str]]:
    """Return the field names that Dapr marks as sensitive, in lower case, by component type."""
    return {component: frozenset(map(str.lower, names)) for component, names in _components().sensitive.items()}


def is_secret_store(manifest: Manifest) -> bool:
    """Return whether a manifest is a Component that daprd loads as a secret store.

    daprd matches the category, the part of the type before the first dot, case-sensitively and ignores case only in
    the rest: ``secretstores.Local.File`` is a secret store, ``SecretStores.local.file`` is rejected as incorrect type.
    """
    return manifest["kind"] == "Component" and str(manifest["spec"]["type"]).startswith("secretstores.")


def in_scope(manifest: Manifest, app_id: str) -> bool:
    """Return whether a sidecar loads a resource; without scopes every sidecar does."""
    scopes = manifest.get("scopes") or ()
    return not scopes or app_id in scopes
