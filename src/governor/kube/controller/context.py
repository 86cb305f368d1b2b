"""What a reconcile function receives: the key, its object, and the operations of a controller on it."""

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import ApplySet, ConvergeReport, DriftMode, PruneReport, Repair
from governor.kube.applyset.order import gather_bounded
from governor.kube.applyset.results import SETTLED
from governor.kube.client import Client
from governor.kube.controller.conditions import Condition, readiness_condition
from governor.kube.controller.events import EventRecorder, EventType
from governor.kube.controller.status import StatusWriter
from governor.kube.controller.views import Resource, Status
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.readiness import Readiness, State, compute_readiness, summarise
from governor.kube.readiness.kinds import ALWAYS_READY
from governor.kube.readiness.state import failed, progressing, ready, unknown
from governor.kube.reflector import Store, View
from governor.process.reconcile.reconciler import Done, Failed, Outcome, Waiting

_CONCURRENCY: Final = 8
"""Number of objects that are read at a time."""

T_co = TypeVar("T_co", covariant=True)
W = TypeVar("W", bound=View)


class Converged(msgspec.Struct, frozen=True):
    """Result of ``Context.converge``: report of the apply set, readiness of its objects, and the outcome to return."""

    report: ConvergeReport
    readiness: Readiness
    outcome: Outcome
    """Done if all objects are ready, Waiting if they are not yet, Failed if some could not be applied or deleted."""

    def condition(self, condition_type: str = "Ready") -> Condition:
        """Return the condition that reports the readiness."""
        return readiness_condition(self.readiness, condition_type)


class Tools(msgspec.Struct, frozen=True):
    """What the contexts of one controller share in one term of leadership."""

    client: Client
    resource: ApiResource
    recorder: EventRecorder
    status: StatusWriter
    stores: Mapping[type[View], Store[Any]]
    """The cached objects of each watched kind, by view."""
    repairs: MutableMapping[ObjectRef, tuple[Repair, ...]]
    """Repairs of drift so far, by key."""
    recheck_s: float


class Context(Generic[T_co]):
    """One run for one key; ``object`` is the cached view at its start, with the status that was written last."""

    def __init__(self, key: ObjectRef, view: T_co, objects: ApplySet, tools: Tools) -> None:
        self.key = key
        self.object = view
        self.objects = objects
        """The apply set of this key."""
        self._tools = tools

    @property
    def client(self) -> Client:
        """The client, for reads; writes of owned objects go through ``converge``."""
        return self._tools.client

    def store(self, view: type[W]) -> Store[W]:
        """Return the cached objects of a kind that the controller ``watches`` with this view."""
        return self._tools.stores[view]

    async def converge(
        self,
        manifests: Iterable[Any],
        *,
        drift: DriftMode = DriftMode.ENFORCE,
        allow_empty: bool = False,
        first: Sequence[Collection[ObjectRef]] = (),
        kept: Collection[ObjectRef] = (),
        read_readiness: bool = True,
    ) -> Converged:
        """Apply these manifests, repair drift, delete owned objects that are no longer desired, and read the readiness.

        Manifests without a namespace get that of the key; for a cluster-scoped key each needs its own. If no manifest
        is given although objects exist, PRECONDITION ``set-emptied`` is raised unless ``allow_empty``. Objects of
        ``first`` are applied before the others, one collection after the other, and those of ``kept`` are not deleted.
        Without ``read_readiness`` applied objects count as ready, which saves a request each.
        """
        repairs = self._tools.repairs
        report = await self.objects.converge(
            manifests, drift=drift, repairs=repairs.get(self.key, ()), allow_empty=allow_empty, first=first, kept=kept
        )
        repairs.pop(self.key, None)
        if report.drift.repairs:
            repairs[self.key] = report.drift.repairs
        if report.ok:
            readiness = await self._readiness(report) if read_readiness else ready("Applied")
            return self._ready_or_waiting(report, readiness)
        text = "; ".join(report.problems())
        if report.pending:
            return Converged(report, progressing("Deleting", text), Waiting(text, self._tools.recheck_s))
        error = GovernorError(Kind.PRECONDITION, "not-converged", f"{self.key}: {text}")
        return Converged(report, failed("NotConverged", text), Failed(error))

    async def delete_objects(self) -> Outcome:
        """Delete all objects of the apply set: Done once they and the inventory are gone."""
        report = await self.objects.delete_all()
        self._tools.repairs.pop(self.key, None)
        return Done() if report.complete else Waiting(_remaining(report), self._tools.recheck_s)

    async def write_status(self, status: Status) -> bool:
        """Write the status unless it is unchanged; return whether it was written.

        Fields and conditions that this controller wrote before and that ``status`` lacks are removed. Generations and
        transition times are filled in.
        """
        if not isinstance(self.object, Resource):
            view = type(self.object).__name__
            raise TypeError(
                f"cannot write the status of {self.key}: derive its view {view} from Resource, not from View"
            )
        return await self._tools.status.write(self.object, status)

    def event(
        self,
        reason: str,
        message: str,
        event_type: EventType = EventType.NORMAL,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Record an Event about the object: ``kubectl describe`` shows it. Never waits and never fails."""
        if isinstance(self.object, View):
            metadata = self.object.metadata
            self._tools.recorder.record(self._tools.resource, metadata, event_type, reason, message, annotations)

    async def _readiness(self, report: ConvergeReport) -> Readiness:
        refs = [result.ref for result in report.apply.results]
        found = await gather_bounded(refs, self._readiness_of, _CONCURRENCY)
        return summarise(dict(zip(refs, found, strict=True)))

    async def _readiness_of(self, ref: ObjectRef) -> Readiness:
        if (ref.group, ref.kind) in ALWAYS_READY:
            return ready("Exists")
        kind = await self.client.discovery.find(ref.group, ref.kind)
        try:
            return compute_readiness(await self.client.get(kind, ref.name, ref.namespace))
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return unknown("NotFound", "it was deleted after it was applied")

    def _ready_or_waiting(self, report: ConvergeReport, readiness: Readiness) -> Converged:
        outcome = Done() if readiness.state is State.READY else Waiting(readiness.message, self._tools.recheck_s)
        return Converged(report, readiness, outcome)


def _remaining(report: PruneReport) -> str:
    texts = [f"{each.ref}: {each.outcome}: {each.reason}" for each in report.results if each.outcome not in SETTLED]
    return f"{len(texts)} objects are not deleted yet: {'; '.join(texts[:10])}"
