"""Kubernetes objects: kinds as discovery describes them, object references, list pages.

An object itself is a plain decoded tree (``Object``), or a caller's struct with just the fields that it reads.
"""

import re
from typing import Annotated, Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from governor.errors import invalid

Object: TypeAlias = dict[str, Any]
T = TypeVar("T")

# Any other document must not be read as an empty list: objects that are on no page count as deleted.
_ListKind: TypeAlias = Annotated[str, msgspec.Meta(pattern="List$")]

_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.:_-]*")
_NOT_IN_NAMES: Final = re.compile(r"[/%\ud800-\udfff]")


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
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of the collection if no name is given; no namespace means all."""
        if name:
            self.require_namespace(namespace)
        path = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            path = f"{path}/namespaces/{_segment(namespace)}"
        path = f"{path}/{self.plural}"
        if name:
            path = f"{path}/{_segment(name)}"
        return f"{path}/{subresource}" if subresource else path

    def require_namespace(self, namespace: str) -> None:
        """Raise INVALID if an object of this kind needs a namespace and none is given."""
        if self.namespaced and not namespace:
            raise invalid("kube-namespace", f"{self.kind} is a namespaced kind: name the namespace of the object")


class ObjectRef(msgspec.Struct, frozen=True, order=True):
    """Reference to an object, independent of the API version."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        kind = f"{self.kind}.{self.group}" if self.group else self.kind
        return f"{kind} {self.namespace}/{self.name}" if self.namespace else f"{kind} {self.name}"


class ListMeta(
    msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "continue_token": "continue"}
):
    """Metadata of a list page or a bookmark."""

    resource_version: str = ""
    """Empty for APIs without history, such as metrics."""
    continue_token: str = ""
    """Requests the next page; empty on the last page."""


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    kind: _ListKind
    metadata: ListMeta
    items: list[T] | None = None


def group_of(api_version: str) -> str:
    """Return the group of an ``apiVersion``, or ``""`` for the core group."""
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def ref_of(manifest: Object) -> ObjectRef:
    """Return the reference to the object that a manifest describes."""
    metadata = manifest["metadata"]
    return ObjectRef(
        group_of(manifest["apiVersion"]), manifest["kind"], metadata.get("namespace", ""), metadata["name"]
    )


def _segment(name: str) -> str:
    """Return a name escaped as one path segment; INVALID if it would change the path."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    if name in (".", "..") or _NOT_IN_NAMES.search(name):
        message = f"{name!r} is not an object name: slashes, percent signs and lone surrogates are not allowed"
        raise invalid("kube-name", message)
    return quote(name, safe="")
