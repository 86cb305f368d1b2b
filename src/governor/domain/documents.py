"""Documents that users write. A document is stored as a tree; the structs here are its validated form.

The kinds of resources inside a Profile (Dapr's and our own) are excluded.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from governor.domain.windows import Hold, Window
from governor.errors import Detail, GovernorError, invalid
from governor.values import paths, selectors, structs
from governor.values.suggestions import suggestion
from governor.values.trees import Manifest, Tree, leaf_at, position_path
from governor.yamltext import Parsed

T = TypeVar("T")

API_VERSION: Final = "runtime-governor.dev/v1alpha1"

# The patterns end in (?!\n) because $ alone also matches before a final line break.
Name: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?=.{1,63}$)[a-z0-9]+((-+|\.)[a-z0-9]+)*$(?!\n)",
        description="at most 63 characters: lower-case letters and digits, separated by hyphens or single dots",
    ),
]
ResourceName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?=.{1,253}$)[a-zA-Z0-9]+([-_.]+[a-zA-Z0-9]+)*$(?!\n)",
        description="at most 253 characters: letters and digits, separated by hyphens, underscores or dots",
    ),
]
Namespace: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(?=.{1,63}$)[a-z0-9]+(-+[a-z0-9]+)*$(?!\n)",
        description="at most 63 characters: lower-case letters and digits, separated by hyphens",
    ),
]

LabelName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^([a-z0-9][-a-z0-9.]{0,252}/)?[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$(?!\n)",
        description="the name of a label in Kubernetes, with an optional prefix and slash",
    ),
]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """Base of every part of a document: immutable, without unknown fields, in camelCase."""


class DocumentRef(msgspec.Struct, frozen=True, order=True):
    """A reference to a document."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class ResourceRef(msgspec.Struct, frozen=True, order=True):
    """A reference to a resource inside a runtime."""

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
    """The platform that a runtime's applications run on."""

    LOCAL = "local"
    KUBERNETES = "kubernetes"
    CLOUDFOUNDRY = "cloudfoundry"


class RuntimeSpec(_Part, frozen=True):
    """The platform of a runtime, the namespaces that its agent may manage, and when it may change them."""

    platform: Platform
    namespaces: Annotated[tuple[Namespace, ...], msgspec.Meta(min_length=1)] = ("default",)
    windows: Annotated[tuple[Window, ...], msgspec.Meta(max_length=50)] = ()
    hold: Hold | None = None


class Selector(_Part, frozen=True):
    """A selector of runtimes: all of them, one by name, or those with matching labels."""

    runtime: Name | None = None
    match_labels: dict[str, str] = {}
    match_expressions: tuple[selectors.Expression, ...] = ()

    def __post_init__(self) -> None:
        if self.runtime is not None and (self.match_labels or self.match_expressions):
            raise ValueError("must not combine runtime with matchLabels or matchExpressions")

    @property
    def specificity(self) -> int:
        """Return the rank of the layer: 0 for all runtimes, 1 for a group, 2 for one runtime."""
        if self.runtime is not None:
            return 2
        return 1 if self.match_labels or self.match_expressions else 0

    def matches(self, runtime: str, labels: Mapping[str, str]) -> bool:
        """Whether the runtime of this name and these labels is selected."""
        if self.runtime is not None:
            return self.runtime == runtime
        return selectors.matches(labels, self.match_labels, self.match_expressions)


class Preflight(enum.StrEnum):
    """Whether a throw-away sidecar loads a change before the applications' sidecars do."""

    SIDECAR = "sidecar"
    OFF = "off"


class Strategy(enum.StrEnum):
    """How workloads adopt a change."""

    RELOAD = "reload"
    ROLLING = "rolling"


class Unproven(enum.StrEnum):
    """What to do with a change that only a restart can prove."""

    RESTART = "restart"
    REPORT = "report"


class Retry(enum.StrEnum):
    """Whether a change whose preflight failed only because a dependency was not reachable is tried again."""

    FIRST = "first"
    """Only where the runtime has no verified bundle to stay at."""
    ALWAYS = "always"
    NEVER = "never"


class Drift(enum.StrEnum):
    """What an agent does when another program changes what it has applied."""

    OFF = "off"
    """Do not compare."""
    WARN = "warn"
    """Report the difference and change nothing."""
    ENFORCE = "enforce"
    """Report the difference and repair it."""


class WindowScope(enum.StrEnum):
    """What waits for a maintenance window of the runtime."""

    RESTARTS = "restarts"
    """Changes that restart a sidecar."""
    ALL = "all"
    """Every change, also one that sidecars reload."""


class ApplyPolicy(_Part, frozen=True, omit_defaults=False):
    """How an agent applies a bundle. In a profile every field is optional and folds like the fields of a resource."""

    preflight: Preflight = Preflight.SIDECAR
    strategy: Strategy = Strategy.RELOAD
    unproven: Unproven = Unproven.RESTART
    verify_window_seconds: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 60
    retry: Retry = Retry.FIRST
    drift: Drift = Drift.ENFORCE
    windows: WindowScope = WindowScope.RESTARTS
    preflight_labels: Annotated[tuple[LabelName, ...], msgspec.Meta(max_length=16)] = ()
    """Labels of a workload's pods that a throw-away pod gets too, for example because a NetworkPolicy selects them."""


class Removal(_Part, frozen=True):
    """A resource of lower layers that a profile removes."""

    kind: str
    name: ResourceName
    namespace: Namespace | None = None


class ProfileSpec(_Part, frozen=True):
    """The contents of a profile. ``resources`` are Kubernetes-style manifests, possibly partial."""

    selector: Selector
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    apply: ApplyPolicy = ApplyPolicy()
    resources: tuple[dict[str, Any], ...] = ()
    removals: tuple[Removal, ...] = ()


class _ManifestMetadata(msgspec.Struct, frozen=True):
    name: ResourceName
    namespace: Namespace | None = None


class _Manifest(msgspec.Struct, frozen=True):
    """The fields that layering needs in a manifest of any kind."""

    kind: Annotated[str, msgspec.Meta(min_length=1)]
    metadata: _ManifestMetadata


class Runtime(_Part, frozen=True, tag_field="kind"):
    """One governed runtime: a cluster, a Cloud Foundry space or a machine."""

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
    """Validate a tree as a document; the error names the path and what is expected there."""
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
        raise _invalid(reason, (*place, *path), tree) from error


def _without_unset_policy(tree: Manifest) -> Manifest:
    """Drop null fields of the apply policy: null unsets what lower layers set, so this profile does not set it."""
    apply = leaf_at(tree, ("spec", "apply"))
    if not isinstance(apply, dict):
        return tree
    set_fields = {key: value for key, value in apply.items() if value is not None}
    return {**tree, "spec": {**tree["spec"], "apply": set_fields}}


def _check_manifests(profile: Profile, tree: Manifest) -> None:
    known: dict[tuple[str, str], list[str | None]] = {}
    for index, manifest in enumerate(profile.spec.resources):
        place = ("spec", "resources", index)
        read = _read(manifest, _Manifest, tree, place)
        namespaces = known.setdefault((read.kind, read.metadata.name), [])
        # A missing namespace defaults to that of each runtime, so it may equal one that is set.
        if namespaces and (read.metadata.namespace is None or {None, read.metadata.namespace} & set(namespaces)):
            reason = f"{read.kind} {read.metadata.name!r} is defined twice; remove one, or set different namespaces"
            raise _invalid(reason, place, tree)
        namespaces.append(read.metadata.namespace)


def ref_of(document: Document) -> DocumentRef:
    """Return the reference of a document."""
    return DocumentRef(type(document).__name__, document.metadata.name)


def resource_ref(manifest: Manifest, default_namespace: str) -> ResourceRef:
    """Return the reference of a manifest that has a kind and a name."""
    metadata = manifest["metadata"]
    return ResourceRef(manifest["kind"], metadata.get("namespace") or default_namespace, metadata["name"])


def locate(details: Iterable[Detail], parsed: Sequence[Parsed]) -> tuple[Detail, ...]:
    """Add file and line to the details on documents that were parsed from these texts."""
    by_name = {name_of(item.value): item for item in parsed}
    return tuple(_located(detail, by_name.get(detail.document)) for detail in details)


def _located(detail: Detail, parsed: Parsed | None) -> Detail:
    if parsed is None or detail.file:
        return detail
    line = parsed.line_of(position_path(parsed.value, paths.parse(detail.path)))
    return msgspec.structs.replace(detail, file=parsed.source, line=line)


def _check_envelope(tree: Tree) -> None:
    if not isinstance(tree, dict):
        raise _invalid("a document must be a map with apiVersion, kind, metadata and spec", (), tree)
    version, kind = tree.get("apiVersion"), tree.get("kind")
    if version != API_VERSION:
        is_resource = isinstance(version, str) and version.startswith("dapr.io/")
        hint = "; a Dapr resource belongs in spec.resources of a Profile" if is_resource else ""
        raise _invalid(f"must be {API_VERSION}{hint}", ("apiVersion",), tree)
    if not isinstance(kind, str) or kind not in DOCUMENT_TYPES:
        word = kind if isinstance(kind, str) else ""
        problem = f"unknown kind {word!r}" if word else "is missing or not a string"
        raise _invalid(f"{problem}; {suggestion(word, sorted(DOCUMENT_TYPES), 'known kinds')}", ("kind",), tree)


def name_of(tree: Tree) -> str:
    """Return KIND/NAME of a document as far as it can be read, or ``""``."""
    if not isinstance(tree, dict):
        return ""
    metadata = tree.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return "/".join(part for part in (tree.get("kind"), name) if isinstance(part, str))


def _invalid(reason: str, path: paths.Path, tree: Tree) -> GovernorError:
    name = name_of(tree)
    detail = Detail(reason=reason, document=name, path=paths.render(path))
    return invalid("document-invalid", f"{name or 'a document'} is not valid", [detail])
