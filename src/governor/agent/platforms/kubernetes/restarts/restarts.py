"""The restarts of one delivery: starts what a plan asks for, one step at a time, and undoes those that fail.

``restart`` and ``roll`` decide, ``restarter`` writes. A step never waits for a roll.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from governor.agent.platforms.kubernetes.plans.affected import live_pods
from governor.agent.platforms.kubernetes.plans.plan import Action, Plan, WorkloadPlan
from governor.agent.platforms.kubernetes.proof.judgement import Failure
from governor.agent.platforms.kubernetes.restarts.control_plane import ControlPlane
from governor.agent.platforms.kubernetes.restarts.decision import AT_ONCE, Candidate, admit
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.restarts.roll import (
    FINAL,
    Roll,
    RollState,
    earlier_try,
    left_behind,
    next_eviction,
    observe,
    stranded,
)
from governor.agent.platforms.kubernetes.restarts.surroundings import Surroundings
from governor.agent.platforms.kubernetes.visibility.announcer import Announcer
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Update, Workload
from governor.agent.redaction import Redactor
from governor.agent.verification.findings import AGENT
from governor.domain.reports import Cause, Evidence, WorkloadRef
from governor.domain.windows import Restraint
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.telemetry import logging

STARTS: Final = frozenset({Action.RESTART, Action.EVICT})
"""Actions that replace the pods of a workload."""
_LEFT_TO_OTHERS: Final = frozenset({Action.RESTART_NEEDED, Action.NEXT_RUN, Action.WATCHDOG})

T = TypeVar("T")

_log = logging.get_logger(__name__)


class Restarts:
    """The restarts of one delivery."""

    def __init__(
        self,
        restarter: Restarter,
        announcer: Announcer,
        redactor: Redactor,
        clock: Clock,
        window_s: float,
        at_once: int = AT_ONCE,
        restraint: Callable[[], Restraint | None] = lambda: None,
    ) -> None:
        """``restraint`` returns what keeps workloads from being restarted now; a restart that has begun goes on."""
        self._restarter = restarter
        self._announcer = announcer
        self._redactor = redactor
        self._clock = clock
        self._window_s = window_s
        self._at_once = at_once
        self._restraint = restraint
        self._rolls: dict[WorkloadRef, Roll] = {}
        self._hosts_actors: dict[WorkloadRef, bool] = {}
        self._surroundings = Surroundings(restarter, ControlPlane())
        """As they are in the present step."""
        self._violations: dict[WorkloadRef, str] = {}
        """Which disruption budgets are violated while workloads are restarted."""
        self._clean_ups: dict[WorkloadRef, float] = {}
        """Until when the eviction of pods that restarts left behind is waited for."""
        self.failures: dict[WorkloadRef, Failure] = {}
        """Restarts that failed and were undone, now or in an earlier try."""
        self._deferred: set[WorkloadRef] = set()
        """Those of an earlier try, which is not repeated yet: they do not keep others from restarting."""
        self.waiting: dict[WorkloadRef, str] = {}
        """Why workloads are not restarted, or not yet."""
        self.notes_on: dict[WorkloadRef, str] = {}
        """What else is to be reported on workloads, such as a violated disruption budget."""
        self.restrained: dict[WorkloadRef, Restraint] = {}
        """Workloads that wait for a maintenance window or the end of a hold."""
        self.is_due = False
        """Whether workloads are still to be restarted."""
        self.notes: list[Evidence] = []
        """What restarts change beside the delivery: the version of daprd."""

    @property
    def is_busy(self) -> bool:
        """Whether a restart is not over."""
        return any(roll.state not in FINAL for roll in self._rolls.values())

    @property
    def is_cleaning_up(self) -> bool:
        """Whether pods that a failed restart left behind may still go."""
        return any(until_s >= self._clock.monotonic() for until_s in self._clean_ups.values())

    async def read_control_plane(self) -> ControlPlane:
        """Return Dapr's control plane as it is now."""
        return await self._restarter.dapr_control_plane()

    async def step(self, planned: Plan, workloads: Mapping[WorkloadRef, Workload], control_plane: ControlPlane) -> None:
        """Observe the running restarts, undo those that fail, and start the next ones."""
        self._surroundings = Surroundings(self._restarter, control_plane)
        self._violations, self.notes_on = {}, {}
        self.failures = {ref: each for ref, each in self.failures.items() if ref not in self._deferred}
        self._deferred.clear()
        self._resume(planned, workloads)
        await self._observe(workloads)
        await self._clean_up(planned, workloads)
        self.waiting = {
            **{each.workload: each.text for each in planned.workloads if each.action in _LEFT_TO_OTHERS},
            **{ref: roll.reason for ref, roll in self._rolls.items() if roll.reason},
        }
        for each in planned.workloads:
            if each.action is Action.NEXT_RUN and not live_pods(workloads[each.workload]):
                self.notes_on[each.workload] = each.text
            if each.action is Action.RESTART_NEEDED:
                self._announcer.restart_needed(each.workload, each.text, each.digest)
        due, restraint = self._due(planned), self._restraint()
        self.restrained = {each.workload: restraint for each in due} if restraint is not None else {}
        if due and restraint is None:
            await self._start(due, workloads)
        self.is_due = any(each.action in STARTS and each.workload not in self._rolls for each in planned.workloads)

    def _resume(self, planned: Plan, workloads: Mapping[WorkloadRef, Workload]) -> None:
        """Observe restarts that an agent began before it was restarted itself: they can fail too."""
        for each in planned.workloads:
            is_known = each.workload in self._rolls or each.workload in self.failures
            if each.action is Action.AWAIT and not is_known and _is_rolling(workloads[each.workload], each.digest):
                self._add(each)

    def _due(self, planned: Plan) -> list[WorkloadPlan]:
        """Return what the present wave starts: the next one waits until this one is done, and after a failure."""
        if self.failures or not planned.waves:
            return []
        wave = set(planned.waves[0]) - self._rolls.keys()
        return [each for each in planned.workloads if each.workload in wave and each.action in STARTS]

    async def _start(self, due: Sequence[WorkloadPlan], workloads: Mapping[WorkloadRef, Workload]) -> None:
        candidates = [
            Candidate(each.workload, each.may_host_actors, await self._obstacle(each, workloads[each.workload]))
            for each in due
        ]
        running = [
            Candidate(ref, self._hosts_actors.get(ref, False), self._violations.get(ref, ""))
            for ref, roll in self._rolls.items()
            if roll.state not in FINAL
        ]
        admitted = admit(candidates, running, self._at_once)
        plans = {each.workload: each for each in due}
        changes = {ref: plans[ref].image_change for ref in admitted.waiting}
        self.waiting |= {ref: f"{text}; {changes[ref]}".removesuffix("; ") for ref, text in admitted.waiting.items()}
        for ref in admitted.starts:
            await self._restart(plans[ref])

    def _add(self, each: WorkloadPlan) -> None:
        self._rolls[each.workload] = Roll(each.digest, self._clock.monotonic())
        self._hosts_actors[each.workload] = each.may_host_actors

    async def _restart(self, each: WorkloadPlan) -> None:
        if not await self._annotate(each.workload, each.digest):
            return
        self._add(each)
        self._announcer.restarting(each.workload, each.text, each.digest)
        _log.info("workload restarted", workload=str(each.workload), reason=each.reason, change=each.image_change)
        if each.image_change:
            text = f"{each.workload} is restarted: {each.image_change}"
            self.notes.append(Evidence(AGENT, self._clock.now(), text))

    async def _annotate(self, ref: WorkloadRef, digest: str) -> bool:
        """Annotate a template; return False if it is gone, or if that failed lately, or others revert it too often."""
        revision = self._surroundings.control_plane.revision
        done = await _unless_deleted(self._restarter.restart(ref, digest, revision), None)
        if done is not None and done.warning:
            self.failures[ref] = Failure(done.warning, Cause.RUNTIME)
            self._announcer.restart_reverted(ref, done.warning, digest)
            _log.warning("restart reverted", workload=str(ref), reason=done.warning)
        if done is not None and done.deferral:
            self.failures[ref] = Failure(done.deferral, Cause.RUNTIME)
            self._deferred.add(ref)
        return done is not None and not (done.warning or done.deferral)

    async def _obstacle(self, each: WorkloadPlan, workload: Workload) -> str:
        """Return why a workload must not be restarted now, or ``""``."""
        if remains := earlier_try(workload, each.digest):
            return remains
        return await self._surroundings.obstacle(workload, hosts_actors=each.hosts_actors)

    async def _observe(self, workloads: Mapping[WorkloadRef, Workload]) -> None:
        # The restart of a workload that was deleted meanwhile never ends.
        self._rolls = {ref: roll for ref, roll in self._rolls.items() if ref in workloads}
        for ref, roll in tuple(self._rolls.items()):
            if roll.state not in FINAL:
                await self._observe_one(ref, roll, workloads[ref])

    async def _observe_one(self, ref: WorkloadRef, roll: Roll, workload: Workload) -> None:
        waiting = await self._evict_next(roll, workload)
        violation = await self._surroundings.violation(workload)
        if violation:
            self._violations[ref] = self.notes_on[ref] = violation
        self._rolls[ref] = now = observe(
            roll,
            workload,
            self._clock.monotonic(),
            window_s=self._window_s,
            waiting=waiting,
            # The agent's own evictions respect budgets.
            violation=violation if _is_rolled_by_controller(workload) else "",
        )
        if now.violated_s is not None and roll.violated_s is None:
            _log.warning("restart violates a disruption budget", workload=str(ref), reason=violation)
        if now.state is RollState.FAILED:
            await self._take_back(ref, now)
        elif now.state is RollState.REVERTED and not await self._annotate(ref, roll.digest):
            del self._rolls[ref]

    async def _evict_next(self, roll: Roll, workload: Workload) -> str:
        """Evict the next old pod, if the agent must; return why a disruption budget does not allow it, or ``""``."""
        # Without the annotation in the template, each new pod would be an old one again.
        if _is_rolled_by_controller(workload) or workload.restart_digest != roll.digest:
            return ""
        pod = next_eviction(workload, roll.digest)
        return await self._restarter.evict(pod) if pod is not None else ""

    async def _clean_up(self, planned: Plan, workloads: Mapping[WorkloadRef, Workload]) -> None:
        """Evict the pods that restarts left behind after they were undone, also by an earlier process."""
        left = {
            each.workload: pod
            for each in planned.workloads
            if each.expected and (pod := self._left_behind(each.workload, workloads[each.workload]))
        }
        self._clean_ups = {ref: until_s for ref, until_s in self._clean_ups.items() if ref in left}
        for ref, pod in left.items():
            self._clean_ups.setdefault(ref, self._clock.monotonic() + self._window_s)
            if refused := await self._restarter.evict(pod):
                text = f"pod {pod.name}, which a failed restart left behind, cannot be evicted: {refused}"
                self.notes_on[ref] = text

    def _left_behind(self, ref: WorkloadRef, workload: Workload) -> Pod | None:
        roll = self._rolls.get(ref)
        has_failed = roll is not None and roll.state is RollState.FAILED
        return left_behind(workload, roll.digest) if roll is not None and has_failed else stranded(workload)

    async def _take_back(self, ref: WorkloadRef, roll: Roll) -> None:
        """Return a workload to its old template: the pods that still run keep running."""
        reason, cause = self._redactor.redact(roll.reason), roll.cause or Cause.CHANGE
        control_plane = await self.read_control_plane()
        record = await self._restarter.take_back(ref, roll.digest, reason, control_plane.revision)
        # A change that failed is rolled back, not tried again.
        again = record.text if record is not None and cause is Cause.RUNTIME else ""
        self.failures[ref] = Failure(again or f"the restart was undone: {reason}", cause)
        _log.warning("restart undone", workload=str(ref), reason=reason)


async def _unless_deleted(call: Awaitable[T], default: T) -> T:
    """Return the result of a call, or the default if the workload is gone: the next observation shows that too."""
    try:
        return await call
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return default


def _is_rolled_by_controller(workload: Workload) -> bool:
    return workload.update in (Update.ROLLING, Update.RECREATE)


def _is_rolling(workload: Workload, digest: str) -> bool:
    """Return whether a workload has the annotation, but not yet all of its pods."""
    return workload.restart_digest == digest and any(pod.restart_digest != digest for pod in live_pods(workload))


def by_ref(workloads: Iterable[Workload]) -> dict[WorkloadRef, Workload]:
    """Return workloads by their references."""
    return {each.ref: each for each in workloads}
