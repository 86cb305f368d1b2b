"""What the API server holds, and where: kinds as discovery describes them, references to objects, their metadata.

An object itself is a plain decoded tree (``Object``), or a struct of the caller's with just the fields it reads.
"""

from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

Object: TypeAlias = dict[str, Any]


class ApiResource(msgspec.Struct, frozen=True):
    """One kind as one API server serves it."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: frozenset[str] = frozenset()
    subresources: frozenset[str] = frozenset()

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` that its objects carry."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of one object, or without a name of all of them; without a namespace across all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(quote(part, safe="") for part in parts)


class ObjectRef(msgspec.Struct, frozen=True, order=True):
    """Which object, whatever version it is written in."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        kind = f"{self.kind}.{self.group}" if self.group else self.kind
        return f"{kind} {self.namespace}/{self.name}" if self.namespace else f"{kind} {self.name}"


def group_of(api_version: str) -> str:
    """The group part of an ``apiVersion``; empty for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def ref_of(manifest: Object) -> ObjectRef:
    """Which object a manifest is about."""
    metadata = manifest["metadata"]
    return ObjectRef(
        group_of(manifest["apiVersion"]), manifest["kind"], metadata.get("namespace", ""), metadata["name"]
    )
