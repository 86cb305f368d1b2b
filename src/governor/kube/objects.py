"""What the API server holds, and where: kinds as discovery describes them, references to objects, their metadata.

An object itself is a plain decoded tree (``Object``), or a struct of the caller's with just the fields it reads.
"""

import re
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from governor.errors import invalid

Object: TypeAlias = dict[str, Any]

_PLAIN: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.:_-]*")
_UNNAMED: Final = re.compile(r"[/%\ud800-\udfff]")


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
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            path = f"{path}/namespaces/{_segment(namespace)}"
        path = f"{path}/{self.plural}"
        if name:
            path = f"{path}/{_segment(name)}"
        return f"{path}/{subresource}" if subresource else path


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


def _segment(name: str) -> str:
    """A name as one part of a path; one that would make it another path is nobody's name."""
    if _PLAIN.fullmatch(name):
        return name
    if name in (".", "..") or _UNNAMED.search(name):
        raise invalid("kube-name", f"{name!r} cannot be the name of an object: no slash, percent sign or half a letter")
    return quote(name, safe="")
