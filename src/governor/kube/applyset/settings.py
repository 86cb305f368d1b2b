"""Who owns an apply set and how its objects are applied, pruned and repaired."""

import enum
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from governor.errors import invalid
from governor.kube.applyset.diff import ANY, DIGEST_KEY, IgnoredFields, text_matches
from governor.kube.objects import ObjectRef

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NOT_IN_PATH_SEGMENT: Final = re.compile(r"[/%\x00-\x1f\x7f\ud800-\udfff]")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_name(text: str) -> bool:
    """Return whether the text is safe as one segment of a request path; the API server checks the rest."""
    return bool(text) and text not in {".", ".."} and len(text) <= 253 and not _NOT_IN_PATH_SEGMENT.search(text)


def is_namespace(text: str) -> bool:
    """Return whether the text is a DNS label."""
    return _DNS_LABEL.fullmatch(text) is not None


class Owner(msgspec.Struct, frozen=True):
    """The owner of an apply set and the ConfigMap that holds its inventory."""

    id: str
    """Value of the owner label on every object of the set; unique in the cluster."""
    namespace: str
    """Namespace of the inventory ConfigMap."""
    name: str
    """Name of the inventory ConfigMap."""

    def __post_init__(self) -> None:
        if not _LABEL_VALUE.fullmatch(self.id):
            raise invalid(
                "owner-id", f"{self.id!r} is not a label value: use at most 63 letters, digits, '-', '_', '.'"
            )
        if not (is_namespace(self.namespace) and is_name(self.name)):
            raise invalid("owner-place", f"{self.namespace}/{self.name} is not a valid ConfigMap name")


class Claim(msgspec.Struct, frozen=True):
    """The right of one of several owners that share a cluster to write a set; stored in the inventory.

    A claim is newer by epoch, then by generation. A holder cannot write once a newer claim is stored.
    """

    holder: str
    """Name of the writer, for messages; unique among the writers of one epoch."""
    epoch: int
    """Rises each time the set is assigned to another holder."""
    generation: int
    """Generation of the desired state."""
    cluster_uid: str
    """Uid of the namespace kube-system of the cluster that the holder means to write to."""

    def __str__(self) -> str:
        return f"{self.holder!r} (epoch {self.epoch}, generation {self.generation})"

    def is_superseded_by(self, other: "Claim") -> bool:
        """Return whether the holder of this claim may no longer write because the other is stored."""
        mine, theirs = (self.epoch, self.generation), (other.epoch, other.generation)
        return mine < theirs or (mine == theirs and self.holder != other.holder)


class Recreate(enum.StrEnum):
    """Whether an object is deleted and created again to change a field that the server does not change."""

    NEVER = "never"
    ON_IMMUTABLE = "on-immutable"


class ToleratedContent(msgspec.Struct, frozen=True):
    """Objects that may be deleted together with their namespace; ``*`` in group, kind or name matches any text."""

    kind: str
    name: str = ANY
    group: str = ""
    marker: str = ""
    """Key of a label or annotation that the object must have; if empty, none."""

    def matches(self, ref: ObjectRef, markers: Collection[str]) -> bool:
        """Return whether the rule applies to an object with these labels and annotations."""
        pairs = ((self.group, ref.group), (self.kind, ref.kind), (self.name, ref.name))
        return (not self.marker or self.marker in markers) and all(text_matches(*pair) for pair in pairs)


_ACCOUNT: Final = "kubernetes.io/service-account.name"
_RBAC: Final = "rbac.authorization.k8s.io"

TOLERATED_CONTENTS: Final = (
    # Kubernetes itself
    ToleratedContent("ServiceAccount", "default"),
    ToleratedContent("Secret", "default-*", marker=_ACCOUNT),
    ToleratedContent("ConfigMap", "kube-root-ca.crt"),
    ToleratedContent("Event"),
    ToleratedContent("Event", group="events.k8s.io"),
    # A Lease stores who leads; operators create one beside themselves.
    ToleratedContent("Lease", group="coordination.k8s.io"),
    # Istio and Cilium
    ToleratedContent("ConfigMap", "istio-ca-root-cert"),
    ToleratedContent("ConfigMap", "istio-ca-crl"),
    ToleratedContent("CiliumEndpoint", group="cilium.io"),
    # trust-manager and Kyverno
    ToleratedContent("ConfigMap", marker="trust.cert-manager.io/bundle"),
    ToleratedContent("Secret", marker="trust.cert-manager.io/bundle"),
    ToleratedContent(ANY, group=ANY, marker="generate.kyverno.io/policy-name"),
    # OpenShift with its pipelines
    ToleratedContent("ConfigMap", "openshift-service-ca.crt"),
    ToleratedContent("ConfigMap", "config-service-cabundle"),
    ToleratedContent("ConfigMap", "config-trusted-cabundle"),
    *(ToleratedContent("ServiceAccount", name) for name in ("builder", "deployer", "pipeline")),
    *(ToleratedContent("Secret", f"{name}-*", marker=_ACCOUNT) for name in ("builder", "deployer", "pipeline")),
    ToleratedContent("RoleBinding", "system:deployers", _RBAC),
    ToleratedContent("RoleBinding", "system:image-builders", _RBAC),
    ToleratedContent("RoleBinding", "system:image-pullers", _RBAC),
    ToleratedContent("RoleBinding", "openshift-pipelines-edit", _RBAC),
    ToleratedContent("RoleBinding", "pipelines-scc-rolebinding", _RBAC),
    # Google Kubernetes Engine
    ToleratedContent("ResourceQuota", "gke-resource-quotas"),
)
"""Objects that Kubernetes, meshes, certificate operators and distributions put into each namespace."""


class Settings(msgspec.Struct, frozen=True):
    """How the objects of a set are applied, pruned and repaired."""

    manager: str
    """Field manager. Sets that may share an object need different ones: releasing it gives up all of its fields."""
    label_prefix: str
    """DNS name before the slash in the labels of the set."""
    default_namespace: str = ""
    """Namespace of manifests that have none; if empty, such manifests are rejected."""
    allowed_namespaces: frozenset[str] | None = None
    """If given, only objects in these namespaces are written or pruned, and no cluster-scoped ones."""
    force_conflicts: bool = False
    """Whether fields are taken from other managers on conflict."""
    adopted_managers: frozenset[str] = frozenset()
    """Managers whose fields, and with them the objects, the set adopts."""
    adopted_marks: tuple[Mapping[str, str], ...] = ()
    """If given, an object is adopted only if it has all labels or annotations of one of these, whose values may contain
    ``*``: several owners may write as the same manager. Definitions need none, because Helm does not mark them."""
    remove_adoptable: bool = False
    """Whether an object that would be adopted counts as the set's when it is to be removed."""
    inherited_owners: frozenset[str] = frozenset()
    """Ids of sets that are gone. An object with the owner label of one of them, and the fields of the manager that set
    the label, become this set's when it applies the object."""
    refuse_foreign: bool = False
    """Whether an object that existed before and is not adopted is refused instead of shared. An object that lost its
    owner label and has fields of ``manager`` is then still the set's."""
    exclusive_claim: bool = False
    """Whether the claim of another holder is never replaced, even by a newer one: its inventory must be deleted."""
    ignored_fields: tuple[IgnoredFields, ...] = ()
    """Fields that keep their live values and never count as drift."""
    keep_annotations: Mapping[str, str] = {}
    """An object with any of these annotations is kept when it is no longer desired."""
    recreate: Recreate = Recreate.NEVER
    """For objects without the annotation ``<label_prefix>/recreate``; never for volumes, namespaces and definitions."""
    tolerated_contents: tuple[ToleratedContent, ...] = TOLERATED_CONTENTS
    """Objects outside the set that are deleted with its namespace; all others hold the namespace."""
    concurrency: int = 8
    """Number of objects that are processed at a time."""
    single_reads: int = 0
    """Up to this number of objects of a kind are read one by one instead of by a list. That is faster: the API server
    answers a get from etcd, but a list from its cache, and may delay it by up to 100 ms until the cache is current."""
    settle_s: float = 0.0
    """Pause between a stage in which objects were created and the next one, whose objects may refer to them: a
    controller reads both from caches, which are filled independently of each other."""
    claim_fresh_s: float = 0.0
    """The claim is not read again before a stage if it was read or stored within this time, at most ``CLAIM_TTL_S``:
    a new holder waits that long before it writes."""
    quiet_s: float = 0.0
    """Pause after custom resources were changed, before any other request: their controllers react to them now."""
    served_timeout_s: float = 60.0
    """How long to wait until the kind of a new CustomResourceDefinition is served."""
    repair_limit: int = 3
    """After this many repairs within the window a field is no longer repaired."""
    repair_window_s: float = 3600.0
    """Repairs older than this no longer count."""

    @property
    def owner_label(self) -> str:
        """Return the label that names the owner; only the owner's set prunes the object."""
        return f"{self.label_prefix}/owner"

    @property
    def digest_key_annotation(self) -> str:
        """Return the annotation of a Secret with the key of its digest in the inventory."""
        return f"{self.label_prefix}/{DIGEST_KEY}"

    @property
    def recreate_annotation(self) -> str:
        """Return the annotation of an object that overrides ``recreate``."""
        return f"{self.label_prefix}/recreate"

    @property
    def inventory_label(self) -> str:
        """Return the label of the inventory's ConfigMaps."""
        return f"{self.label_prefix}/inventory"
