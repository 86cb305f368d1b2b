"""Applies one delivery in a cluster: read, plan, preflight, write, restart what must restart, ask the sidecars.

Only the order is here; ``manifests`` and ``plan`` decide what to do, ``judgement`` whether it worked.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from governor.agent.platform import Progress, Superseded
from governor.agent.platforms.kubernetes.hold import NamespaceHold
from governor.agent.platforms.kubernetes.plans.affected import Changes, Scope, is_unloaded, live_pods, scope_of
from governor.agent.platforms.kubernetes.plans.plan import Rejection, plan, restraint
from governor.agent.platforms.kubernetes.preflight.preflight import ClusterPreflight
from governor.agent.platforms.kubernetes.proof.judgement import fresh_proofs, unsettled_types
from governor.agent.platforms.kubernetes.proof.probes import Probes, confirmed
from governor.agent.platforms.kubernetes.proof.proofs import ProofBook
from governor.agent.platforms.kubernetes.proof.verification import Change, Verification, fails_by_runtime
from governor.agent.platforms.kubernetes.resources.applied import AppliedResources
from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.platforms.kubernetes.resources.live_resources import object_ref
from governor.agent.platforms.kubernetes.resources.manifests import Manifests, manifests_of
from governor.agent.platforms.kubernetes.resources.object_watch import ObjectWatch
from governor.agent.platforms.kubernetes.resources.outcomes import Applied, Outcome
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.restarts.restarts import Restarts
from governor.agent.platforms.kubernetes.visibility.announcer import Announcer
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.redaction import Redactor
from governor.agent.verification import findings
from governor.agent.verification.findings import DriftFindings, Findings
from governor.agent.verification.verdicts import Expected
from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import is_secret_store
from governor.domain.documents import Drift, ResourceRef, resource_ref
from governor.domain.reports import Cause, Evidence, ResourceReport, State, WorkloadRef
from governor.domain.windows import Hold
from governor.errors import GovernorError, Kind
from governor.kube.objects import ref_of
from governor.process.clock import Clock
from governor.process.telemetry import logging

API: Final = "api-server"
"""The source of evidence on objects."""
_WAS_CHANGED: Final = "was changed by another client since the agent applied it, and is as delivered again"
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_PAUSE_GROWTH: Final = 1.2

_log = logging.get_logger(__name__)


class Parts(msgspec.Struct, frozen=True):
    """What the platform is made of. ``naming_key`` is that of ``manifests.naming_key``."""

    namespaces: tuple[str, ...]
    naming_key: bytes
    applied: AppliedResources
    watch: ObjectWatch
    observer: Observer
    probes: Probes
    restarter: Restarter
    proofs: ProofBook
    announcer: Announcer
    redactor: Redactor
    hold: NamespaceHold
    preflight: ClusterPreflight


class KubernetesPlatform:
    """The resources and workloads of one runtime in one cluster."""

    def __init__(self, parts: Parts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._written: tuple[tuple[int, int], tuple[Evidence, ...]] | None = None
        self._releasable: Manifests | None = None
        """The delivery verified last, if it leaves Secrets to be removed and no other was begun since."""
        self._failed_during_drift = False
        """Whether sidecars failed during drift that still exists, so that it is found although it is to be ignored."""

    @property
    def workloads(self) -> Mapping[WorkloadRef, int]:
        """The workloads with Dapr in the runtime's namespaces."""
        return {each.ref: len(live_pods(each)) for each in self._parts.observer.workloads()}

    def refs(self, delivery: Delivery) -> tuple[ResourceRef, ...]:
        """Return the resources that a delivery sets or removes."""
        delivered = [resource_ref(manifest, self._parts.namespaces[0]) for manifest in delivery.resources]
        return tuple(dict.fromkeys([*delivered, *delivery.removals]))

    def hold(self) -> Hold | None:
        """Return the hold that is set in the cluster, or None."""
        return self._parts.hold.current

    def start(self) -> None:
        """Do nothing: the agent starts no workload of a cluster."""

    async def run(self) -> None:
        """Watch the workloads, the runtime's resources, and for a hold, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._parts.observer.run())
            group.create_task(self._parts.watch.run())
            group.create_task(self._parts.hold.run())

    async def converge(
        self, delivery: Delivery, received: Evidence, progress: Progress, superseded: Superseded
    ) -> Findings:
        """Apply a delivery and return the findings; call ``progress`` when it is written and as sidecars prove it."""
        self._releasable = None
        self._parts.redactor.add(delivery.resources)
        await self._parts.observer.synced()
        change = await self._read(delivery, received, superseded)
        if superseded():
            return findings.uniform(State.RECEIVED, self.refs(delivery), self.workloads, received)
        observed = change.observed(self._parts.observer.workloads(), self._parts.proofs, applied=False)
        planned = plan(change.changes, observed, delivery.apply)
        if isinstance(planned, Rejection):
            reasons, now = planned.reasons, self._clock.now()
            return findings.rejected(reasons, self.refs(delivery), self.workloads, now, received)
        writes = change.is_new or change.adopts
        waits_for = restraint(planned, delivery, self._clock.now(), is_new=writes)
        if waits_for is not None and writes:
            return findings.waiting(waits_for, self.refs(delivery), self.workloads, self._clock.now(), received)
        tried = await self._parts.preflight.check(change, planned, self._manifests(delivery), superseded)
        if not tried.passed:
            return tried.report(self.refs(delivery), self.workloads, received)
        applied = await self._write(change)
        if not applied.ok:
            return tried.prepend_to(self._not_applied(applied, delivery, received))
        manifests = self._manifests(delivery)
        self._parts.watch.follow(map(ref_of, (*manifests.objects.values(), *manifests.secrets.values())))
        change = await self._after_write(change, applied)
        found = await self._verify(change, manifests, lambda each: progress(tried.prepend_to(each)), superseded)
        return tried.prepend_to(found)

    async def _write(self, change: Change) -> Applied:
        """Write a delivery; one that may not be written now has no new content and is only verified."""
        if change.delivery.write_restraint(self._clock.now()) is not None:
            return Applied({})
        await self._begin_write(change)
        manifests = self._manifests(change.delivery)
        kept = self._parts.proofs.secrets.union(map(object_ref, self._kept(manifests)))
        return await self._parts.applied.converge(
            manifests, kept=kept, drift=change.delivery.apply.drift, allow_empty=True
        )

    def _manifests(self, delivery: Delivery) -> Manifests:
        return manifests_of(delivery, self._parts.namespaces, self._parts.naming_key, self._parts.proofs.adopted)

    def _kept(self, manifests: Manifests) -> frozenset[ResourceRef]:
        """Return the adopted resources that a delivery does not have: they existed before, and a rollback keeps them.

        One that is taken out of the profiles is a removal of the delivery, and is deleted.
        """
        return self._parts.proofs.adopted.difference(manifests.refs)

    async def find_drift(self, delivery: Delivery, *, after_failure: bool = False) -> DriftFindings | None:
        """Return how the cluster differs from a delivery that was applied, or None; drop the proofs concerned."""
        is_off = delivery.apply.drift is Drift.OFF
        if self._written is None or self._written[0] != _version(delivery):
            return None
        if is_off and not (after_failure or self._failed_during_drift):
            return None
        self._parts.redactor.add(delivery.resources)
        manifests = self._manifests(delivery)
        found = await self._parts.applied.find_drift(manifests)
        texts = dict(found.texts) if found is not None else {}
        if is_off:
            loaded = found.loaded if found is not None else frozenset()
            texts = {ref: text for ref, text in texts.items() if ref in loaded}
            self._failed_during_drift = bool(texts)
        is_past = after_failure and not texts
        if is_past:
            texts = dict.fromkeys(await self._disturbed(manifests), _WAS_CHANGED)
        self._parts.proofs.drop(texts.keys())
        is_repairable = found is not None and found.is_repairable
        concerned = await self._concerned(texts, manifests) if texts else ()
        return DriftFindings(texts, concerned, API, is_repairable, is_past) if texts else None

    async def _disturbed(self, manifests: Manifests) -> frozenset[ResourceRef]:
        """Return the resources that another client has changed since they were last read or written to be verified."""
        live = await self._parts.applied.read(manifests)
        return self._parts.proofs.compare({ref: each.version for ref, each in live.items()}, manifests.resources)

    async def _concerned(self, refs: Collection[ResourceRef], manifests: Manifests) -> tuple[WorkloadRef, ...]:
        """Return the workloads that load one of some resources, as delivered or as it is now."""
        live = {ref: each.manifest for ref, each in (await self._parts.applied.read(manifests)).items()}

        def is_loaded(ref: ResourceRef, scope: Scope) -> bool:
            known = [each for each in (manifests.resources.get(ref), live.get(ref)) if each is not None]
            # Of a resource that is back and not the runtime's own, the scopes are not known.
            return any(scope.loads(ref, each) for each in known) if known else scope.namespace == ref.namespace

        scopes = {each.ref: set(map(scope_of, live_pods(each))) for each in self._parts.observer.workloads()}
        return tuple(each for each, own in scopes.items() if any(is_loaded(ref, one) for ref in refs for one in own))

    async def _read(self, delivery: Delivery, received: Evidence, superseded: Superseded) -> Change:
        """Read what is applied or to be adopted, and the sidecars, before anything is changed."""
        proofs = self._parts.proofs
        proofs.end_adoptions(*_version(delivery))
        manifests = self._manifests(delivery)
        own = await self._parts.applied.read(manifests, drift=delivery.apply.drift)
        proofs.compare({ref: each.version for ref, each in own.items()}, manifests.resources)
        kept = self._kept(manifests)
        adoptable = await self._parts.applied.adoptable(manifests, own)
        live = {**{ref: each for ref, each in own.items() if ref not in kept}, **adoptable}
        versions = {ref: each.version for ref, each in live.items()}
        gone = {ref: each[0] for ref, each in proofs.former.items() if ref not in manifests.resources}
        old = {**gone, **{ref: each.manifest for ref, each in live.items()}}
        expected = tuple(
            Expected(ref, manifests.resources.get(ref), old.get(ref)) for ref in dict.fromkeys([*manifests.refs, *old])
        )
        same = {each.ref: versions[each.ref] for each in expected if each.ref in adoptable and not each.changed}
        proofs.adopt(same, *_version(delivery))
        expected = tuple(_unmarked(each) if each.ref in proofs.adopted else each for each in expected)
        foreign = await self._foreign_before(expected)
        changes = Changes(expected, proofs.former, foreign)
        pods = self._pods(changes)
        before = confirmed(await self._parts.probes.read(pods, superseded), self._parts.observer.workloads())
        written = await self._with_removals({ref: each.written for ref, each in live.items()}, expected)
        for each in before.values():
            instance = each.pod.instance
            for ref, proof in tuple(fresh_proofs(each, changes, written, proofs.of(instance))):
                proofs.add(instance, ref, proof)
        unsettled = {pod.instance: unsettled_types(pod, changes, proofs.of(pod.instance)) for pod in pods}
        return Change(
            delivery,
            changes,
            before,
            written,
            versions,
            (received,),
            unsettled,
            foreign,
            notes=manifests.plain_text_notes,
            adopts=bool(adoptable),
        )

    async def _foreign_before(self, expected: Collection[Expected]) -> tuple[ForeignResource, ...]:
        """Return what other owners have where Components change.

        A list that is older than the last write differs from the one after the agent's own write, which proves nothing
        then. But it might lack a reader of a secret store.
        """
        changed = [each for each in expected if each.component_type and each.changed]
        contents = [each for one in changed for each in (one.old, one.new) if each is not None]
        cached = not any(map(is_secret_store, contents))
        namespaces, own = {each.ref.namespace for each in changed}, {each.ref for each in expected}
        return await self._parts.applied.foreign_resources(namespaces, own, cached=cached)

    async def _with_removals(
        self, times: Mapping[ResourceRef, datetime], expected: Iterable[Expected]
    ) -> dict[ResourceRef, datetime]:
        """Return when resources were last written; nothing is left of a removed one: the last write of all counts."""
        removed = [each.ref for each in expected if each.new is None and each.ref not in times]
        last = await self._parts.applied.last_write() if removed else None
        return {**times, **(dict.fromkeys(removed, last) if last else {})}

    def _pods(self, changes: Changes) -> list[Pod]:
        """Return the pods that load any of the resources."""
        pods = (pod for each in self._parts.observer.workloads() for pod in live_pods(each))
        return [pod for pod in pods if changes.seen_by(frozenset({scope_of(pod)}))]

    def _not_applied(self, applied: Applied, delivery: Delivery, received: Evidence) -> Findings:
        """Return the findings of a delivery that the API server did not take completely."""
        reports = (_resource_report(ref, applied, received, self._clock.now()) for ref in self.refs(delivery))
        others = findings.uniform(State.RECEIVED, (), self.workloads, received)
        return Findings(tuple(reports), others.workloads, applied=bool(applied.written))

    async def _after_write(self, change: Change, applied: Applied) -> Change:
        """Return the change with the times of the write; what was written is to be proven anew."""
        version = _version(change.delivery)
        if self._written is None or self._written[0] != version or applied.written:
            self._written = version, (Evidence(API, self._clock.now(), str(applied)),)
        history = (*change.history, *self._written[1])
        if not applied.written:
            self._parts.proofs.end_write(change.versions)
            return msgspec.structs.replace(change, history=history)
        live = applied.versions
        others = {ref: version for ref, version in change.versions.items() if ref not in applied.written}
        self._parts.proofs.end_write({**others, **{ref: each.version for ref, each in live.items()}}, applied.written)
        times = {ref: time for ref, time in change.written.items() if ref not in applied.written}
        times |= {ref: each.written for ref, each in live.items()}
        written = await self._with_removals(times, change.changes.expected)
        return msgspec.structs.replace(change, written=written, history=history)

    async def _verify(
        self, change: Change, manifests: Manifests, progress: Progress, superseded: Superseded
    ) -> Findings:
        """Ask the sidecars until all is proven, one has failed, the window is over, or a newer delivery arrives."""
        window_s = float(change.delivery.apply.verify_window_seconds)
        verification = Verification(
            change,
            self.refs(change.delivery),
            self._parts.observer,
            self._parts.probes,
            self._parts.proofs,
            Restarts(
                self._parts.restarter,
                self._parts.announcer,
                self._parts.redactor,
                self._clock,
                window_s,
                restraint=lambda: change.delivery.restart_restraint(self._clock.now()),
            ),
            self._clock,
            superseded,
            list_foreign=lambda: self._list_foreign(change),
        )
        pause_s = _FIRST_PAUSE_S
        while True:
            found = await verification.step()
            is_result, waits_for = verification.is_result(found), verification.waits_for(found)
            if is_result or waits_for is not None or verification.is_over or superseded():
                break
            # The loop reports the result, after it has compared the objects once more.
            if not (found.verified or found.failed) or fails_by_runtime(found):
                progress(found)
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)
        assert self._written is not None  # noqa: S101 - nothing is verified before it is written
        self._written = self._written[0], (*self._written[1], *verification.notes)
        is_verified = found.verified and is_result
        if is_verified:
            self._require_observation()
            released = self._parts.proofs.settle(map(ref_of, manifests.secrets.values()))
            self._releasable = manifests if released else None
        await self._save_proofs()
        return msgspec.structs.replace(found, restraint=waits_for)

    async def _list_foreign(self, change: Change) -> tuple[ForeignResource, ...]:
        namespaces = {ref.namespace for ref in change.components}
        own = {each.ref for each in change.changes.expected}
        return await self._parts.applied.foreign_resources(namespaces, own)

    def _require_observation(self) -> None:
        """Raise if workloads cannot be observed: there may be sidecars that were not asked."""
        if failures := self._parts.observer.failures():
            message = f"not verified, because the workloads are not known: {'; '.join(failures)}"
            raise GovernorError(Kind.UNAVAILABLE, "workloads-not-observed", message)

    async def _begin_write(self, change: Change) -> None:
        """Store before the write what the cluster does not show after it, for an agent that starts then."""
        changed = [each for each in change.changes.expected if each.changed]
        former = {each.ref: each.old for each in changed if each.old is not None and is_unloaded(each)}
        self._parts.proofs.begin_write({each.ref for each in changed if each.new is not None}, former)
        await self._save_proofs()

    async def _save_proofs(self) -> None:
        await self._parts.proofs.save({pod.instance for each in self._parts.observer.workloads() for pod in each.pods})

    async def release(self) -> None:
        """Remove the Secrets of the delivery before, now that no sidecar needs them; what fails is tried again."""
        manifests, self._releasable = self._releasable, None
        if manifests is not None:
            try:
                kept = frozenset(map(object_ref, self._kept(manifests)))
                await self._parts.applied.converge(manifests, kept=kept, drift=Drift.OFF, allow_empty=True)
            except GovernorError as error:
                _log.warning("cannot remove Secrets that are no longer used", error=str(error))


def _resource_report(ref: ResourceRef, applied: Applied, received: Evidence, now: datetime) -> ResourceReport:
    result = applied.results.get(ref)
    has_failed = result is not None and result.outcome is Outcome.FAILED
    text = result.text if result is not None and result.text else str(applied)
    cause = result.cause if result is not None else None
    return ResourceReport(
        resource=ref,
        # What was written and not recorded is written again: a failure of the agent, which it retries.
        state=State.FAILED if has_failed or applied.error else State.RECEIVED,
        cause=cause or (Cause.AGENT if applied.error else None),
        evidence=(received, Evidence(API, now, text)),
    )


def _unmarked(expected: Expected) -> Expected:
    """Return what is expected of an adopted resource: a Configuration gets no marker until it is changed."""
    is_unmarked = expected.ref.kind == "Configuration" and not expected.changed
    return msgspec.structs.replace(expected, unmarked=is_unmarked)


def _version(delivery: Delivery) -> tuple[int, int]:
    return delivery.sequence, delivery.attempt
