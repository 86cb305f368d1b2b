"""The preflight of a delivery in a cluster: one throw-away pod for each group of sidecars that are alike.

Only the order is here; ``groups``, ``copies``, ``job`` and ``policies`` decide.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

from governor.agent.platform import Superseded
from governor.agent.platforms.kubernetes.plans.plan import Plan
from governor.agent.platforms.kubernetes.preflight.copies import Copies, attributed, make_copies
from governor.agent.platforms.kubernetes.preflight.groups import MAX_GROUPS, Group, groups_of
from governor.agent.platforms.kubernetes.preflight.job import job, obstacle
from governor.agent.platforms.kubernetes.preflight.policies import differing, excused, is_unreachable
from governor.agent.platforms.kubernetes.preflight.throw_away import (
    Cluster,
    CopyRefusedError,
    NotPermittedError,
    ThrowAwayPod,
    sweep,
)
from governor.agent.platforms.kubernetes.proof.verification import Change
from governor.agent.platforms.kubernetes.resources.manifests import Manifests
from governor.agent.platforms.kubernetes.workloads.observer import PODS
from governor.agent.preflight import LatestResult, Trial, findings_of, impossible, time_limit_s, without_preflight
from governor.agent.redaction import Redactor
from governor.agent.verification.findings import AGENT
from governor.agent.verification.preflight_plan import PreflightReading, PreflightResult, judge
from governor.agent.verification.verdicts import Verdict, Verdicts
from governor.domain.dapr.kinds import GROUP
from governor.domain.documents import ApplyPolicy, Preflight, ResourceRef, resource_ref
from governor.domain.reports import Evidence, Finding, State
from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import find_kinds
from governor.kube.applyset.order import gather_bounded
from governor.kube.objects import ApiResource, Object
from governor.process.telemetry import logging
from governor.values.trees import Manifest

_AT_ONCE: Final = 3
_NAME_LENGTH: Final = 32
_NOT_IN_NAMES: Final = re.compile(r"[^-a-z0-9]")
_LIVE_KINDS: Final = ("Component", "Configuration", "HTTPEndpoint", "MCPServer")
_NETWORK_POLICIES: Final = ApiResource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", namespaced=True)
_UNLISTED: Final = ("that the agent may not list",)
_ORDER: Final = (State.RECEIVED, State.PREFLIGHTED, State.FAILED)
"""The state of a resource that several throw-away pods have tried is the last of theirs in this order."""

_log = logging.get_logger(__name__)


class ClusterPreflight:
    """Runs the preflights of one agent."""

    def __init__(self, cluster: Cluster, redactor: Redactor) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._redactor = redactor
        self._latest = LatestResult()
        self._is_swept = False

    async def check(
        self, change: Change, planned: Plan, manifests: Manifests, superseded: Superseded
    ) -> PreflightResult:
        """Try what a delivery changes. Without changes, return the earlier result of the same delivery."""
        await self._sweep_once()
        delivery = change.delivery
        changed = {each.ref for each in change.changes.expected if each.changed and each.new is not None}
        if not changed:
            return self._latest.of(delivery)
        if delivery.apply.preflight is Preflight.OFF:
            result = without_preflight(changed, self._clock.now())
        else:
            groups = groups_of(self._cluster.observer.workloads(), change.changes, planned)
            result = await self._try(changed, groups, manifests, delivery.apply, superseded)
        if result.passed:
            self._latest.keep(delivery, result)
        return result

    async def _sweep_once(self) -> None:
        """Remove what a killed agent left; a failure is tried again at the next check."""
        if self._is_swept:
            return
        try:
            await sweep(self._cluster)
            self._is_swept = True
        except GovernorError as error:
            _log.warning("cannot remove preflights of an earlier process", error=str(error))

    async def _try(
        self,
        changed: Collection[ResourceRef],
        groups: tuple[Group, ...],
        manifests: Manifests,
        policy: ApplyPolicy,
        superseded: Superseded,
    ) -> PreflightResult:
        chosen, others = groups[:MAX_GROUPS], groups[MAX_GROUPS:]
        live = {each: await self._live(each) for each in {group.sidecars.namespace for group in chosen}}

        async def attempt(group: Group) -> Mapping[ResourceRef, Finding]:
            attempt = _Attempt(self._cluster, self._redactor, group, policy, superseded)
            return await attempt.run(manifests, live[group.sidecars.namespace])

        found = await gather_bounded(chosen, attempt, _AT_ONCE)
        if superseded():
            return PreflightResult(superseded=True)
        more = {ref for group in others for ref in group.changed}
        untried = {ref: self._untried(ref, more) for ref in changed}
        return PreflightResult({**untried, **_merged(found)})

    def _untried(self, ref: ResourceRef, more: Collection[ResourceRef]) -> Finding:
        limit = f"not tried: only {MAX_GROUPS} throw-away pods are started for one delivery"
        text = limit if ref in more else "not tried: no running sidecar loads it"
        return Finding(state=State.RECEIVED, evidence=(Evidence(AGENT, self._clock.now(), text),))

    async def _live(self, namespace: str) -> list[Manifest]:
        """Return the resources of a namespace that sidecars load with credentials, or that name others."""
        kinds = await find_kinds(self._cluster.client, {(GROUP, "", kind) for kind in _LIVE_KINDS})
        return [each for kind in kinds.values() async for each in self._cluster.client.list(kind, namespace)]


class _Attempt:
    """The preflight of one group."""

    def __init__(
        self, cluster: Cluster, redactor: Redactor, group: Group, policy: ApplyPolicy, superseded: Superseded
    ) -> None:
        self._cluster = cluster
        self._redactor = redactor
        self._group = group
        self._policy = policy
        self._superseded = superseded
        plain = _NOT_IN_NAMES.sub("-", group.pod.app_id.lower())[:_NAME_LENGTH].strip("-") or "app"
        self._app_id = f"{plain}-preflight-{secrets.token_hex(4)}"

    async def run(self, manifests: Manifests, live: Iterable[Manifest]) -> Mapping[ResourceRef, Finding]:
        """Try what changes for the group and return what was found."""
        if self._superseded():
            return {}
        live = tuple(live)
        copies = self._copies(manifests, live)
        pod = await self._read_pod()
        try:
            verdicts = await self._verdicts(copies, pod)
        except NotPermittedError:
            reason = f"the agent may not create Jobs in namespace {self._group.sidecars.namespace}"
            return without_preflight(self._group.changed, self._cluster.clock.now(), reason).found
        except CopyRefusedError as error:
            verdicts = self._not_tried(f"a copy of it was refused: {copies.in_original_terms(str(error))}")
        own = attributed(verdicts, manifests.resources, live)
        return findings_of(own, self._app_id, self._cluster.clock.now(), self._redactor)

    def _copies(self, manifests: Manifests, live: tuple[Manifest, ...]) -> Copies:
        namespace = self._group.sidecars.namespace
        present = {resource_ref(each, namespace): each for each in live}
        # What is removed is not loaded any more; of what is delivered, only the new content counts.
        others = {ref: each for ref, each in present.items() if ref not in manifests.refs}
        loaded = self._group.loads({**others, **manifests.resources})
        return make_copies(self._group.changed, loaded, manifests.secrets, live, self._app_id)

    async def _read_pod(self) -> Object:
        """Return the pod after which the throw-away pod is made."""
        pod = self._group.pod
        found = self._cluster.client.list(PODS, pod.namespace, fields=f"metadata.name={pod.name}")
        for each in [each async for each in found]:
            return each
        raise impossible(f"pod {pod.name} is gone, which was the model of the throw-away pod")

    async def _verdicts(self, copies: Copies, pod: Object) -> Verdicts:
        if reason := obstacle(pod):
            return self._not_tried(reason)
        limit_s = time_limit_s(self._policy)
        reading = PreflightReading()
        if copies.plan.tried:
            start = partial(self._new_pod, copies, pod)
            reading = await Trial(start, self._cluster.clock, self._superseded, limit_s).run(copies.plan)
        verdicts = judge(copies.plan, reading, f"not initialised within {limit_s:.0f} s")
        return await self._excused(copies.verdicts_on_originals(verdicts), pod)

    def _new_pod(self, copies: Copies, pod: Object) -> ThrowAwayPod:
        def make_job(configuration: str) -> Object:
            return job(
                pod,
                self._app_id,
                self._cluster.runtime,
                configuration=configuration,
                image=self._group.sidecars.image,
                labels=self._policy.preflight_labels,
            )

        return ThrowAwayPod(self._cluster, make_job, copies.secrets, copies.denied, self._superseded)

    def _not_tried(self, reason: str) -> Verdicts:
        return dict.fromkeys(self._group.changed, Verdict(State.RECEIVED, f"not tried: {reason}"))

    async def _excused(self, verdicts: Verdicts, pod: Object) -> Verdicts:
        """Return the verdicts; connections that only the throw-away pod may be denied are inconclusive."""
        if not is_unreachable(verdicts):
            return verdicts
        labels = pod["metadata"].get("labels") or {}
        # Dapr's injector adds the same labels to both; the Job's are not those of any workload.
        kept = {name: text for name, text in labels.items() if _is_copied(name, self._policy)}
        try:
            listed = self._cluster.client.list(_NETWORK_POLICIES, pod["metadata"]["namespace"])
            differ = differing([each async for each in listed], labels, kept)
        except GovernorError as error:
            if error.kind is not Kind.DENIED:
                raise
            differ = list(_UNLISTED)
        return excused(verdicts, differ) if differ else verdicts


def _is_copied(label: str, policy: ApplyPolicy) -> bool:
    return label in policy.preflight_labels or label in ("dapr.io/sidecar-injected", "dapr.io/metrics-enabled")


def _merged(found: Iterable[Mapping[ResourceRef, Finding]]) -> dict[ResourceRef, Finding]:
    """Return the findings of all groups; the evidence that decides is the last."""
    merged: dict[ResourceRef, Finding] = {}
    for findings in found:
        for ref, each in findings.items():
            both = sorted((each, *([merged[ref]] if ref in merged else ())), key=lambda one: _ORDER.index(one.state))
            evidence = tuple(item for one in both for item in one.evidence)
            merged[ref] = Finding(state=both[-1].state, evidence=evidence)
    return merged
