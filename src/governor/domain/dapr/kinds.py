"""The kinds of Dapr resources and their schemas.

Checking a manifest against its schema is ``validation``.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from governor.domain.dapr import facts
from governor.domain.dapr.reload import RELOAD, Reload
from governor.values.trees import Manifest, Tree

GROUP: Final = "dapr.io"

Schema: TypeAlias = dict[str, Any]


class DaprKind(msgspec.Struct, frozen=True):
    """One kind of Dapr resource. ``scoped``: it may list the app ids that it is for."""

    kind: str
    api_versions: tuple[str, ...]
    scoped: bool
    reload: Reload


class _Facts(msgspec.Struct, frozen=True):
    """``origin`` is the source of ``data/kinds.json``; the schemas are by kind and apiVersion."""

    origin: str
    schemas: dict[str, dict[str, Schema]]


@functools.cache
def _facts() -> _Facts:
    return facts.read("kinds", _Facts)


@functools.cache
def kinds() -> Mapping[str, DaprKind]:
    """All kinds of Dapr resources by name."""
    return {kind: _kind(kind, schemas) for kind, schemas in _facts().schemas.items()}


def _kind(kind: str, schemas: Mapping[str, Schema]) -> DaprKind:
    scoped = any("scopes" in schema["properties"] for schema in schemas.values())
    return DaprKind(kind, tuple(schemas), scoped, RELOAD[kind])


def kind_of(manifest: Tree) -> DaprKind | None:
    """The kind of a manifest, or None if it is not a Dapr resource of a version that Dapr serves."""
    if not isinstance(manifest, dict):
        return None
    name = manifest.get("kind")
    kind = kinds().get(name) if isinstance(name, str) else None
    return kind if kind is not None and manifest.get("apiVersion") in kind.api_versions else None


def schema_of(kind: str, api_version: str) -> Schema:
    """The JSON Schema of a whole manifest of this kind and version."""
    return _facts().schemas[kind][api_version]


def is_secret_store(manifest: Manifest) -> bool:
    """Return whether a manifest is a Component that daprd loads as a secret store.

    daprd matches the category, the part of the type before the first dot, case-sensitively and ignores case only in
    the rest: ``secretstores.Local.File`` is a secret store, ``SecretStores.local.file`` is rejected as incorrect type.
    """
    return manifest["kind"] == "Component" and str(manifest["spec"]["type"]).startswith("secretstores.")
