"""Views that the controllers use: of their own kind, and of the objects that they own."""

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
    """The status that a controller writes; subclass it with further fields. Fields with default values are absent."""

    observed_generation: int = 0
    """Set when the status is written."""
    conditions: tuple[Condition, ...] = ()


class Resource(View, frozen=True, kw_only=True):
    """Base of views of a kind whose status or finalizers a controller writes.

    A change of nothing but the status does not reconcile the object, because the controller's own writes cause it.
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
    """The fields by which the readiness of an object changes. Any, because custom kinds use other types for some."""

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
    """Replaced by a struct with the owner label as its only field, which is smaller than a mapping."""

    owner: str = ""


class OwnedMetadata(Metadata, frozen=True):
    """Metadata of an owned object; the generation changes with its spec."""

    generation: int = 0
    deletion_timestamp: str = ""
    owner_references: tuple[OwnerReference, ...] = ()
    labels: _NoLabels = _NoLabels()


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
    """Return the view of an entry; of an unreadable object its last readable one, if any."""
    return entry.last if isinstance(entry, Unreadable) else entry
