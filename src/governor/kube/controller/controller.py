"""The declaration of a controller: which kind it reconciles, by which function, and what else it watches.

A declaration holds no state, so the same one serves every term of leadership.
"""

import enum
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

import msgspec

from governor.kube.applyset import Settings
from governor.kube.controller.context import Context
from governor.kube.controller.mapping import Mapper, NamespacedName, Predicate
from governor.kube.controller.views import ResourceMetadata
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import View
from governor.kube.reflector.store import Index
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Outcome

V = TypeVar("V", bound=View)
W = TypeVar("W", bound=View)

GroupVersionKind: TypeAlias = tuple[str, str, str]
KindOf: TypeAlias = ApiResource | GroupVersionKind
"""A kind as discovery describes it, or its group, version and kind, which discovery then resolves."""

BACKOFF: Final = Backoff(initial_s=1.0, max_s=300.0)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Source: TypeAlias = Callable[[Callable[[NamespacedName], None]], Awaitable[None]]
"""Runs until it is cancelled, and calls its argument with each object of the controller's own kind to reconcile."""


class OwnedBy(enum.Enum):
    """How an owned object names its owner."""

    LABEL = "label"
    """By the owner label of the apply set."""
    REFERENCE = "reference"
    """By a controller owner reference; the object is in the namespace of its owner."""


class Owns(msgspec.Struct, frozen=True):
    """A kind of owned objects."""

    kind: KindOf
    by: OwnedBy


class Watch(msgspec.Struct, Generic[W], frozen=True):
    """Another kind, and the mapper from its objects to keys."""

    kind: KindOf
    view: type[W]
    mapper: Mapper[W, Any]
    predicate: Predicate[W] | None
    indexes: Mapping[str, Index[W]]
    labels: str
    fields: str


async def delete_objects(context: Context[Any]) -> Outcome:
    """Delete all objects of the key's apply set: the default ``finalize``."""
    return await context.delete_objects()


class Controller(Generic[V]):
    """Reconciles the objects of one kind.

    ``reconcile`` is called for each object that exists and fits the view. ``finalize`` is called instead once the
    object is gone or, with a ``finalizer``, as soon as its deletion is requested; ``context.object`` is None if it is
    gone. Neither is called for an object that does not fit the view.
    """

    def __init__(
        self,
        name: str,
        kind: KindOf,
        view: type[V],
        reconcile: Callable[[Context[V]], Awaitable[Outcome]],
        *,
        settings: Settings,
        finalize: Callable[[Context[V | None]], Awaitable[Outcome]] = delete_objects,
        finalizer: str = "",
        finalizer_timeout_s: float = 300.0,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        indexes: Mapping[str, Index[V]] | None = None,
        predicate: Predicate[V] | None = None,
        group_of: Callable[[ObjectRef], Hashable] | None = None,
        workers: int = 4,
        timeout_s: float = 300.0,
        recheck_s: float = 30.0,
        backoff: Backoff = BACKOFF,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a controller must be a DNS label, not {name!r}: it is part of object names")
        if finalizer and not issubclass(_metadata_type(view), ResourceMetadata):
            raise ValueError(f"the controller {name} has a finalizer: derive its view {view.__name__} from Resource")
        self.name = name
        self.kind = kind
        self.view = view
        self.reconcile = reconcile
        self.settings = settings
        """Settings of the apply sets; the field manager, with a suffix, also owns the status and the finalizer."""
        self.finalize = finalize
        self.finalizer = finalizer
        self.finalizer_timeout_s = finalizer_timeout_s
        """After this time a finalizer that still holds its object is reported by a Warning event and a condition."""
        self.namespace = namespace
        """Namespace of the watched objects; if empty, the operator's ``watch_namespace``."""
        self.labels = labels
        self.fields = fields
        self.indexes = indexes or {}
        """Indexes of the cached objects, for ``Store.find`` in a mapper."""
        self.predicate = predicate
        self.group_of = group_of
        self.workers = workers
        self.timeout_s = timeout_s
        """A run that takes longer is cancelled and fails."""
        self.recheck_s = recheck_s
        """Interval at which a key that waits for other objects is reconciled even if no event arrives."""
        self.backoff = backoff
        self.owned: list[Owns] = []
        self.watched: list[Watch[Any]] = []
        self.sources: list[Source] = []

    def owns(self, kind: KindOf, *, by: OwnedBy = OwnedBy.LABEL) -> Self:
        """Watch a kind of owned objects: their owner is reconciled if their spec or readiness changes.

        Of a kind without ``metadata.generation`` each change counts.
        """
        self.owned.append(Owns(kind, by))
        return self

    def watches(
        self,
        kind: KindOf,
        view: type[W],
        mapper: Mapper[W, V],
        *,
        predicate: Predicate[W] | None = None,
        indexes: Mapping[str, Index[W]] | None = None,
        labels: str = "",
        fields: str = "",
    ) -> Self:
        """Watch another kind: if the view of an object changes, the keys that ``mapper`` returns are reconciled.

        A change for which ``predicate`` is false is not. ``Context.store`` returns the watched objects, with these
        ``indexes``; watches of several controllers with the same indexes share one cache.
        """
        if any(each.view is view for each in self.watched):
            raise ValueError(f"the controller {self.name} watches {view.__name__} twice: derive a view for the second")
        self.watched.append(Watch(kind, view, mapper, predicate, indexes or {}, labels, fields))
        return self

    def follows(self, source: Source) -> Self:
        """Reconcile the objects that a source names, such as one that watches other clusters.

        It is called in each term of leadership once the caches are complete, and cancelled at the end of the term.
        Names of unknown objects are ignored. An error that it raises ends the term, as a bug does.
        """
        self.sources.append(source)
        return self


def _metadata_type(view: type[View]) -> type[Any]:
    (metadata,) = (field.type for field in msgspec.structs.fields(view) if field.name == "metadata")
    return metadata if isinstance(metadata, type) else object
