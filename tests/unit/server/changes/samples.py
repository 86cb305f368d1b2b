"""Documents as trees, and the catalogue of them."""

from typing import Any

from governor.domain.documents import DocumentRef, name_of
from governor.server.changes.catalogue import Catalogue
from governor.server.changes.compiler import LoadLayers, read_layer
from governor.server.store.documents import DocumentVersion
from governor.values.digest import digest

API_VERSION = "runtime-governor.dev/v1alpha1"
EU = {"matchLabels": {"region": "eu"}}


def runtime(name: str, **labels: str) -> dict[str, Any]:
    """Return a Runtime document."""
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": metadata, "spec": {"platform": "local"}}


def profile(name: str, selector: dict[str, Any], *resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a Profile document."""
    whole = {"selector": selector, "resources": list(resources), **spec}
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": whole}


def component(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a component with this spec."""
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": name}, "spec": spec}


def redis(name: str, **values: str) -> dict[str, Any]:
    """Return a complete component."""
    return component(name, {"type": "state.redis", "version": "v1", "metadata": fields(**values)})


def fields(**values: str) -> list[dict[str, str]]:
    """Return the metadata of a component."""
    return [{"name": name, "value": value} for name, value in values.items()]


def version(tree: dict[str, Any], number: int = 1, revision: int = 1) -> DocumentVersion:
    """Return a stored version of a document."""
    kind, _, name = name_of(tree).partition("/")
    return DocumentVersion(kind, name, number, revision, digest(tree), tree)


def deletion(ref: DocumentRef, number: int = 2, revision: int = 2) -> DocumentVersion:
    """Return the version that deletes a document."""
    return DocumentVersion(ref.kind, ref.name, number, revision, "", None)


def catalogue(*trees: dict[str, Any]) -> Catalogue:
    """Return the catalogue of some documents, all of one revision."""
    return Catalogue().updated(1, map(version, trees))


def loader(*trees: dict[str, Any]) -> LoadLayers:
    """Return a function that reads the profiles among some documents."""
    profiles = {tree["metadata"]["name"]: tree for tree in trees if tree["kind"] == "Profile"}
    return lambda names: {name: read_layer(profiles[name]) for name in names}
