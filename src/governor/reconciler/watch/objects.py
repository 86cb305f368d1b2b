"""Views of applied objects: whether their content changed since they were applied, and whether they are ready.

The parts of an object that this depends on are replaced by the result as soon as they are decoded, so that a cached
object takes a few hundred bytes whatever its size.
"""

import functools
import sys
from collections.abc import Iterable
from typing import Any, ClassVar, cast

import msgspec

from governor.kube.applyset.entries import seen_in
from governor.kube.applyset.results import Seen
from governor.kube.objects import ApiResource, Object
from governor.kube.readiness import Readiness, State, compute_readiness
from governor.kube.readiness.conditions import ConditionRule
from governor.kube.readiness.kinds import ALWAYS_READY, RULES_BY_KIND
from governor.kube.reflector import Metadata, View
from governor.values.paths import Path

_SHARED_VALUES = 1024


class ObjectMetadata(Metadata, frozen=True):
    """Metadata of an applied object; ``owner`` and ``digest`` replace its labels and annotations.

    Where only the resourceVersion shows whether the content changed, equality includes it.
    """

    resource: ClassVar[ApiResource]
    owner_label: ClassVar[str]

    generation: int = 0
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()
    owner: Any = msgspec.field(name="labels", default=None)
    """Value of the owner label, or ``""``."""
    digest: Any = msgspec.field(name="annotations", default=None)
    """Digest of the metadata; empty if the kind does not count the changes of its content."""
    owner_references: Any = None

    def __post_init__(self) -> None:
        labels, annotations, references = self.owner, self.digest, self.owner_references
        metadata = {
            "resourceVersion": self.resource_version,
            "generation": self.generation,
            "finalizers": self.finalizers,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": references,
        }
        reduced = {
            "namespace": sys.intern(self.namespace),
            "owner": sys.intern((labels or {}).get(self.owner_label, "")),
            "digest": seen_in({"metadata": metadata}, self.resource).metadata,
            "owner_references": None,
        }
        for name, value in reduced.items():
            msgspec.structs.force_setattr(self, name, value)

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True or self.digest or not isinstance(other, ObjectMetadata):
            return equal
        return self.resource_version == other.resource_version

    __hash__ = Metadata.__hash__


class ObjectState(View, frozen=True):
    """State of one applied object. This one is of a kind that is ready as soon as it is stored."""

    metadata: ObjectMetadata

    @property
    def uid(self) -> str:
        """The uid."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """The resourceVersion."""
        return self.metadata.resource_version

    @property
    def generation(self) -> int:
        """The generation, or 0 if the kind has none."""
        return self.metadata.generation

    @property
    def is_terminating(self) -> bool:
        """Whether deletion was requested."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def owner(self) -> str:
        """Id of the apply set that owns the object."""
        return cast("str", self.metadata.owner)

    @property
    def readiness(self) -> Readiness:
        """The readiness by the rule of its kind."""
        return compute_readiness(self._manifest())

    def seen(self, ignored: Iterable[Path] = ()) -> Seen:
        """Return what ``seen_in`` returns for the whole object."""
        metadata = self.metadata
        seen = seen_in({"metadata": {"resourceVersion": metadata.resource_version}}, metadata.resource, ignored)
        if not metadata.digest:
            return seen
        return msgspec.structs.replace(seen, generation=metadata.generation, metadata=metadata.digest)

    def _manifest(self, **parts: Any) -> Object:
        """Return the parts of the object that readiness depends on."""
        metadata = self.metadata
        resource = metadata.resource
        identity = {
            "generation": metadata.generation,
            "deletionTimestamp": metadata.deletion_timestamp,
            "finalizers": metadata.finalizers,
        }
        return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": identity, **parts}


class ReportedState(ObjectState, frozen=True):
    """State of an object that is ready by its status, which ``computed`` replaces.

    Two states are equal if only the message of a ready object differs.
    """

    computed: Any = msgspec.field(name="status", default=None)

    def __post_init__(self) -> None:
        self._reduce(self._manifest(status=self.computed))

    @property
    def readiness(self) -> Readiness:
        """The readiness by the rule of its kind."""
        return cast("Readiness", self.computed)

    def _reduce(self, manifest: Object) -> None:
        msgspec.structs.force_setattr(self, "computed", _shared(compute_readiness(manifest)))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.metadata, _compared(self.readiness)) == (other.metadata, _compared(other.readiness))

    def __hash__(self) -> int:
        return hash(self.metadata)


class SpecifiedState(ReportedState, frozen=True):
    """State of an object that is ready by its spec and status; its spec is dropped."""

    spec: Any = None

    def __post_init__(self) -> None:
        self._reduce(self._manifest(status=self.computed, spec=self.spec))
        msgspec.structs.force_setattr(self, "spec", None)


@functools.cache
def object_view(resource: ApiResource, owner_label: str) -> type[ObjectState]:
    """Return the view of the objects of a kind, whose owner is named by a label; one type for each kind and label."""
    namespace = {"resource": resource, "owner_label": owner_label}
    metadata = msgspec.defstruct(
        f"{resource.kind}Metadata", [], bases=(ObjectMetadata,), namespace=namespace, frozen=True, gc=False
    )
    view = msgspec.defstruct(
        f"{resource.kind}State", [("metadata", metadata)], bases=(_base(resource),), frozen=True, gc=False
    )
    return cast("type[ObjectState]", view)


def is_metadata_enough(resource: ApiResource) -> bool:
    """Return whether the metadata of an object shows all of its state."""
    return _base(resource) is ObjectState


def _base(resource: ApiResource) -> type[ObjectState]:
    kind = (resource.group, resource.kind)
    if kind in ALWAYS_READY:
        return ObjectState
    rule = RULES_BY_KIND.get(kind)
    return ReportedState if rule is None or isinstance(rule, ConditionRule) else SpecifiedState


@functools.lru_cache(maxsize=_SHARED_VALUES)
def _shared(readiness: Readiness) -> Readiness:
    """Return one instance for equal values: most objects are ready for the same reason."""
    return readiness


def _compared(readiness: Readiness) -> Readiness:
    is_ready = readiness.state is State.READY
    return Readiness(readiness.state, readiness.reason) if is_ready else readiness
