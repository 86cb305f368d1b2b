"""Documents: what people write. A document is stored as a tree; the structs here are its checked reading.

Kinds of governed resources inside a Profile (Dapr's and our own) are not defined here.
"""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from governor.errors import Detail, GovernorError, invalid
from governor.values import paths, selectors
from governor.values.trees import Manifest, Tree
from governor.yamltext import Parsed

API_VERSION: Final = "runtime-governor.dev/v1alpha1"

Name: TypeAlias = Annotated[
    str,
    msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$", description="lower case DNS name, at most 63 long"),
]
ResourceName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9]([-_a-zA-Z0-9.]{0,251}[a-zA-Z0-9])?$")]
Namespace: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """What every part of a document has in common: immutable, closed, written in camelCase."""


class DocumentRef(msgspec.Struct, frozen=True, order=True):
    """The name of a document."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class ResourceRef(msgspec.Struct, frozen=True, order=True):
    """The name of a resource inside a runtime."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class Metadata(_Part, frozen=True):
    """Name and labels of a document."""

    name: Name
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Platform(enum.StrEnum):
    """Where a runtime's applications run."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    CLOUDFOUNDRY = "cloudfoundry"


class RuntimeSpec(_Part, frozen=True):
    """What a runtime is and where its agent may act."""

    platform: Platform
    namespaces: Annotated[tuple[Namespace, ...], msgspec.Meta(min_length=1)] = ("default",)


class Selector(_Part, frozen=True):
    """Which runtimes a profile is for: all of them, one by name, or those with fitting labels."""

    runtime: Name | None = None
    match_labels: dict[str, str] = {}
    match_expressions: tuple[selectors.Expression, ...] = ()

    def __post_init__(self) -> None:
        if self.runtime is not None and (self.match_labels or self.match_expressions):
            raise ValueError("names a runtime and labels; use one of them")

    @property
    def specificity(self) -> int:
        """Everything is 0, a group 1, one runtime 2: the order in which layers are laid."""
        if self.runtime is not None:
            return 2
        return 1 if self.match_labels or self.match_expressions else 0

    def matches(self, runtime: str, labels: Mapping[str, str]) -> bool:
        """Whether the runtime of this name and these labels is meant."""
        if self.runtime is not None:
            return self.runtime == runtime
        return selectors.matches(labels, self.match_labels, self.match_expressions)


class Preflight(enum.StrEnum):
    """Whether a change is loaded by a throw-away sidecar first."""

    SIDECAR = "sidecar"
    OFF = "off"


class Strategy(enum.StrEnum):
    """How workloads take a change."""

    RELOAD = "reload"
    ROLLING = "rolling"


class Unproven(enum.StrEnum):
    """What to do with a change that cannot be proven without a fresh process."""

    RESTART = "restart"
    REPORT = "report"


class ApplyPolicy(_Part, frozen=True, omit_defaults=False):
    """How an agent applies a bundle. In a profile each field is optional and folds like a resource's."""

    preflight: Preflight = Preflight.SIDECAR
    strategy: Strategy = Strategy.RELOAD
    unproven: Unproven = Unproven.RESTART
    verify_window_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60


class Removal(_Part, frozen=True):
    """A resource of a lower layer that a profile drops."""

    kind: str
    name: ResourceName
    namespace: Namespace | None = None


class ProfileSpec(_Part, frozen=True):
    """One layer of configuration. ``resources`` are Kubernetes-style manifests, possibly partial."""

    selector: Selector
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    apply: ApplyPolicy = ApplyPolicy()
    resources: tuple[dict[str, Any], ...] = ()
    removals: tuple[Removal, ...] = ()


class Runtime(_Part, frozen=True, tag_field="kind"):
    """One governed runtime: a cluster, a space, a machine."""

    api_version: Literal["runtime-governor.dev/v1alpha1"]
    metadata: Metadata
    spec: RuntimeSpec


class Profile(_Part, frozen=True, tag_field="kind"):
    """One layer of configuration for the runtimes it selects."""

    api_version: Literal["runtime-governor.dev/v1alpha1"]
    metadata: Metadata
    spec: ProfileSpec


Document: TypeAlias = Runtime | Profile
DOCUMENT_TYPES: Final[Mapping[str, type[Runtime] | type[Profile]]] = {"Runtime": Runtime, "Profile": Profile}


def read_document(tree: Tree) -> Document:
    """Check a tree against the documents' structs; the error names the path and what was expected there."""
    _check_envelope(tree)
    try:
        return msgspec.convert(tree, DOCUMENT_TYPES[tree["kind"]])
    except msgspec.ValidationError as error:
        path, reason = _explain(str(error))
        raise _refuse(reason, path, _name_of(tree)) from error
    except GovernorError as error:
        raise _refuse(error.message, "spec.selector", _name_of(tree)) from error


def ref_of(document: Document) -> DocumentRef:
    """The reference of a checked document."""
    return DocumentRef(type(document).__name__, document.metadata.name)


def resource_ref(manifest: Manifest, default_namespace: str) -> ResourceRef:
    """The reference of a manifest that has a kind and a name."""
    metadata = manifest["metadata"]
    return ResourceRef(manifest["kind"], metadata.get("namespace") or default_namespace, metadata["name"])


def locate(details: Iterable[Detail], parsed: Sequence[Parsed]) -> tuple[Detail, ...]:
    """Add file and line to details that name a document read from these texts."""
    by_name = {_name_of(item.value): item for item in parsed}
    return tuple(_located(detail, by_name.get(detail.document)) for detail in details)


def _located(detail: Detail, parsed: Parsed | None) -> Detail:
    if parsed is None or detail.file:
        return detail
    line = parsed.line_of(_positions(parsed.value, paths.parse(detail.path)))
    return msgspec.structs.replace(detail, file=parsed.source, line=line)


def _positions(tree: Tree, path: paths.Path) -> tuple[str | int, ...]:
    """Replace item names by list positions, as far as the tree has them."""
    found: list[str | int] = []
    for step in path:
        position = _position(tree, step.name) if isinstance(step, paths.Item) else step
        if position is None:
            break
        found.append(position)
        tree = _step_into(tree, position)
    return tuple(found)


def _position(tree: Tree, name: str) -> int | None:
    items = tree if isinstance(tree, list) else []
    return next((i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == name), None)


def _step_into(tree: Tree, step: str | int) -> Tree:
    try:
        return tree[step]
    except (KeyError, IndexError, TypeError):
        return None


def _check_envelope(tree: Tree) -> None:
    if not isinstance(tree, dict):
        raise _refuse("a document is a map with apiVersion, kind, metadata and spec", "", "")
    if tree.get("apiVersion") != API_VERSION:
        reason = f"apiVersion is {tree.get('apiVersion')!r}, expected {API_VERSION!r}"
        raise _refuse(reason, "apiVersion", _name_of(tree))
    if tree.get("kind") not in DOCUMENT_TYPES:
        known = ", ".join(sorted(DOCUMENT_TYPES))
        raise _refuse(f"unknown kind {tree.get('kind')!r}; known kinds: {known}", "kind", _name_of(tree))


def _name_of(tree: Tree) -> str:
    """The document's name as far as it can be read, for messages and for finding its file again."""
    if not isinstance(tree, dict):
        return ""
    metadata = tree.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{tree.get('kind')}/{name}"


def _explain(message: str) -> tuple[str, str]:
    """Split msgspec's ``reason - at `$.path``` into our path text and the reason."""
    match = re.fullmatch(r"(?P<reason>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", message, re.DOTALL)
    path = (match["path"] or "") if match else ""
    return path.replace("[...]", "").lstrip("."), match["reason"] if match else message


def _refuse(reason: str, path: str, document: str) -> GovernorError:
    where = document or "document"
    return invalid("document-invalid", f"{where} is not valid", [Detail(reason=reason, document=document, path=path)])
