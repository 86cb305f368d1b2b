"""Views of a controller's own kind and of the objects that it owns."""

import functools
from typing import Any, TypeVar, cast

import msgspec

from governor.kube.controller.conditions import Condition
from governor.kube.reflector import Entry, Metadata, Unreadable, View

V = TypeVar("V", bound=View)


class ResourceMetadata(Metadata, frozen=True):
    """Metadata that finalizers and the status need."""

    generation: int = 0
    deletion_timestamp: str = ""
    finalizers: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The status that a controller writes; subclass it to add fields. Fields with default values are not written."""

    observed_generation: int = 0
    """Generation of the object that the status describes; set when the status is written."""
    conditions: tuple[Condition, ...] = ()
    """Aspects of the object's state, one entry for each type."""


class Resource(View, frozen=True, kw_only=True):
    """Base of views of a kind whose status or finalizers a controller writes.

    A change of the status alone does not reconcile the object, because the controller's own writes cause such changes.
    """

    metadata: ResourceMetadata
    status: Status = Status()


class OwnerReference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Reference of an owned object to one of its owners."""

    kind: str
    name: str
    api_version: str = ""
    controller: bool = False


class OwnedCondition(msgspec.Struct, frozen=True, gc=False):
    """A condition without its times and message, which change without effect on readiness."""

    type: Any = None
    status: Any = None
    reason: Any = None


class OwnedStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields that determine readiness. Their type is Any, because custom kinds use other types for some of them."""

    observed_generation: Any = None
    conditions: tuple[OwnedCondition, ...] | None = None
    phase: Any = None
    replicas: Any = None
    updated_replicas: Any = None
    ready_replicas: Any = None
    available_replicas: Any = None
    succeeded: Any = None
    failed: Any = None
    number_ready: Any = None
    number_available: Any = None
    updated_number_scheduled: Any = None


class _NoLabels(msgspec.Struct, frozen=True, gc=False):
    """Placeholder for a struct with only the owner label, which is smaller than a mapping (``owned_view``)."""

    owner: str = ""


class OwnedMetadata(Metadata, frozen=True):
    """Metadata of an owned object; the generation changes with its spec.

    Of a kind without generation, such as a ConfigMap, only the resourceVersion shows that the content changed.
    """

    generation: int = 0
    deletion_timestamp: str = ""
    owner_references: tuple[OwnerReference, ...] = ()
    labels: _NoLabels = _NoLabels()

    def __eq__(self, other: object) -> bool:
        equal = super().__eq__(other)
        if equal is not True or self.generation or not isinstance(other, OwnedMetadata):
            return equal
        return self.resource_version == other.resource_version

    __hash__ = Metadata.__hash__


class Owned(View, frozen=True):
    """View of an owned object: equal until its spec, its readiness or its owner changes."""

    metadata: OwnedMetadata
    status: OwnedStatus | None = None


@functools.cache
def owned_view(owner_label: str) -> type[Owned]:
    """Return the view of objects whose owner is named by a label; one type for each label."""
    owner = ("owner", str, msgspec.field(name=owner_label, default=""))
    labels = msgspec.defstruct("OwnedLabels", [owner], frozen=True, gc=False)
    metadata = msgspec.defstruct(
        "LabelledMetadata", [("labels", labels, labels())], bases=(OwnedMetadata,), frozen=True, gc=False
    )
    view = msgspec.defstruct("LabelledOwned", [("metadata", metadata)], bases=(Owned,), frozen=True, gc=False)
    return cast("type[Owned]", view)


def readable(entry: Entry[V] | None) -> V | None:
    """Return the view of an entry; for an unreadable object, its last readable view, if any."""
    return entry.last if isinstance(entry, Unreadable) else entry
