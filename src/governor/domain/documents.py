"""Documents: what people write. A document is stored as a tree; the structs here are its checked reading.

Kinds of governed resources inside a Profile (Dapr's and our own) are not defined here.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from governor.errors import Detail, GovernorError, invalid
from governor.values import paths, selectors, structs
from governor.values.trees import Manifest, Tree, leaf_at, position_path
from governor.yamltext import Parsed

T = TypeVar("T")

API_VERSION: Final = "runtime-governor.dev/v1alpha1"

# The patterns end in (?!\n) because $ alone lets a line break pass.
Name: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?=.{1,63}$)[a-z0-9]+((-+|\.)[a-z0-9]+)*$(?!\n)",
        description="at most 63 lower case letters and digits, which hyphens or single dots may join",
    ),
]
ResourceName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?=.{1,253}$)[a-zA-Z0-9]+([-_.]+[a-zA-Z0-9]+)*$(?!\n)",
        description="at most 253 letters and digits, which hyphens, underscores or dots may join",
    ),
]
Namespace: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?=.{1,63}$)[a-z0-9]+(-+[a-z0-9]+)*$(?!\n)",
        description="at most 63 lower case letters and digits, which hyphens may join",
    ),
]


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


class _ManifestMetadata(msgspec.Struct, frozen=True):
    name: ResourceName
    namespace: Namespace | None = None


class _Manifest(msgspec.Struct, frozen=True):
    """What layering needs of every manifest, whatever its kind."""

    kind: Annotated[str, msgspec.Meta(min_length=1)]
    metadata: _ManifestMetadata


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
    document = _read(_without_unset_policy(tree), DOCUMENT_TYPES[tree["kind"]], tree, ())
    if isinstance(document, Profile):
        _check_manifests(document, tree)
    return document


def _read(part: Tree, expected: type[T], tree: Tree, place: paths.Path) -> T:
    try:
        return msgspec.convert(part, expected)
    except msgspec.ValidationError as error:
        path, reason = structs.explain(error, expected, part)
        raise _refuse(reason, (*place, *path), tree) from error


def _without_unset_policy(tree: Manifest) -> Manifest:
    """Null takes a field of the apply policy back from lower layers; for this profile it then says nothing."""
    apply = leaf_at(tree, ("spec", "apply"))
    if not isinstance(apply, dict):
        return tree
    said = {key: value for key, value in apply.items() if value is not None}
    return {**tree, "spec": {**tree["spec"], "apply": said}}


def _check_manifests(profile: Profile, tree: Manifest) -> None:
    known: dict[tuple[str, str], list[str | None]] = {}
    for index, manifest in enumerate(profile.spec.resources):
        place = ("spec", "resources", index)
        read = _read(manifest, _Manifest, tree, place)
        namespaces = known.setdefault((read.kind, read.metadata.name), [])
        # A namespace that is left out is each runtime's own, so it may be the same as one that is written.
        if namespaces and (read.metadata.namespace is None or {None, read.metadata.namespace} & set(namespaces)):
            reason = f"{read.kind} {read.metadata.name!r} is there twice; remove one, or name both namespaces"
            raise _refuse(reason, place, tree)
        namespaces.append(read.metadata.namespace)


def ref_of(document: Document) -> DocumentRef:
    """The reference of a checked document."""
    return DocumentRef(type(document).__name__, document.metadata.name)


def resource_ref(manifest: Manifest, default_namespace: str) -> ResourceRef:
    """The reference of a manifest that has a kind and a name."""
    metadata = manifest["metadata"]
    return ResourceRef(manifest["kind"], metadata.get("namespace") or default_namespace, metadata["name"])


def locate(details: Iterable[Detail], parsed: Sequence[Parsed]) -> tuple[Detail, ...]:
    """Add file and line to details that name a document read from these texts."""
    by_name = {name_of(item.value): item for item in parsed}
    return tuple(_located(detail, by_name.get(detail.document)) for detail in details)


def _located(detail: Detail, parsed: Parsed | None) -> Detail:
    if parsed is None or detail.file:
        return detail
    line = parsed.line_of(position_path(parsed.value, paths.parse(detail.path)))
    return msgspec.structs.replace(detail, file=parsed.source, line=line)


def _check_envelope(tree: Tree) -> None:
    if not isinstance(tree, dict):
        raise _refuse("a document is a map with apiVersion, kind, metadata and spec", (), tree)
    version, kind = tree.get("apiVersion"), tree.get("kind")
    if version != API_VERSION:
        raise _refuse(f"must be {API_VERSION}", ("apiVersion",), tree)
    if not isinstance(kind, str) or kind not in DOCUMENT_TYPES:
        wrong = f"unknown kind {kind!r}" if isinstance(kind, str) else "must name a kind"
        raise _refuse(f"{wrong}; known kinds: {', '.join(sorted(DOCUMENT_TYPES))}", ("kind",), tree)


def name_of(tree: Tree) -> str:
    """The document's name as far as it can be read, for messages and for finding its file again."""
    if not isinstance(tree, dict):
        return ""
    metadata = tree.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return "/".join(part for part in (tree.get("kind"), name) if isinstance(part, str))


def _refuse(reason: str, path: paths.Path, tree: Tree) -> GovernorError:
    name = name_of(tree)
    detail = Detail(reason=reason, document=name, path=paths.render(path))
    return invalid("document-invalid", f"{name or 'a document'} is not valid", [detail])
