"""Hot reload in a cluster: how a running sidecar takes a change, and why it could not prove that it did. Pure.

Judging what a sidecar reports afterwards is ``governor.agent.verification``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.plans.affected import Change, Changes, live_pods, scope_of
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Workload
from governor.domain.dapr.reload import Uptake, reload_obstacle, uptake
from governor.domain.documents import ResourceRef
from governor.domain.reports import WorkloadRef

HOT_RELOAD: Final = "HotReload"
"""The feature that a sidecar lists if it reloads."""
_PROVABLE: Final = frozenset({"Component", "Subscription"})
_NAMED_PODS: Final = 3
_NAMED_WORKLOADS: Final = 10


class SidecarFacts(msgspec.Struct, frozen=True):
    """What a running sidecar reported before the change."""

    version: str
    features: frozenset[str] = frozenset()
    has_metrics: bool = True
    hosts_actors: bool = False
    healthy: bool = True


def uptake_of(change: Change, facts: SidecarFacts) -> Uptake:
    """Return how a sidecar takes the change of a resource."""
    if HOT_RELOAD not in facts.features:
        return Uptake.START
    return uptake(change.ref.kind, facts.version, change.expected.new, change.expected.old)


def obstacle(change: Change, seen: Sequence[Change], facts: SidecarFacts | None) -> str:
    """Return why a running sidecar could not load and prove a resource, or ``""``; ``seen`` is all that it loads."""
    if facts is None:
        return "the sidecar could not be probed before the change"
    if not facts.healthy:
        return "the sidecar is not healthy"
    if change.stale_secrets:
        return change.stale_secrets
    if not change.changed:
        return "nothing shows that the running sidecar loaded it"
    if uptake_of(change, facts) is Uptake.START:
        return _why_not_loaded(change, facts)
    if change.ref.kind not in _PROVABLE:
        return f"a running sidecar does not show which content of a {change.ref.kind} it uses"
    return _component_obstacle(change, seen, facts) if change.expected.component_type else ""


def rolling_rejections(
    changes: Changes, workloads: Iterable[Workload], sidecars: Mapping[str, SidecarFacts]
) -> dict[ResourceRef, str]:
    """Return, by resource, which sidecars would load the change at once, in spite of strategy rolling."""
    found: dict[ResourceRef, dict[WorkloadRef, list[str]]] = {}
    for workload in workloads:
        for pod in live_pods(workload):
            for ref in _taken_at_once(pod, changes, sidecars.get(pod.uid)):
                found.setdefault(ref, {}).setdefault(workload.ref, []).append(pod.name)
    return {ref: _rolling_rejection(pods) for ref, pods in found.items()}


def _why_not_loaded(change: Change, facts: SidecarFacts) -> str:
    if text := reload_obstacle(change.ref.kind, facts.version):
        return text
    if HOT_RELOAD not in facts.features:
        return f"hot reload is off in the sidecar (Dapr {facts.version})"
    return f"Dapr {facts.version} loads a changed actor state store only at startup"


def _component_obstacle(change: Change, seen: Sequence[Change], facts: SidecarFacts) -> str:
    kind = change.expected.component_type
    if kind.startswith("middleware."):
        return "a sidecar does not count the initialisations of middleware"
    if not change.digest:
        return ""
    if not facts.has_metrics:
        return "the sidecar's metrics are off"
    return _binding_obstacle(kind, seen) if kind.startswith("bindings.") else ""


def _binding_obstacle(kind: str, seen: Sequence[Change]) -> str:
    same_type = sum(each.expected.component_type == kind and each.changed and bool(each.digest) for each in seen)
    if same_type < 2:
        return ""
    return f"a binding may be counted twice, so the counter cannot distinguish {same_type} changed {kind}"


def _taken_at_once(pod: Pod, changes: Changes, facts: SidecarFacts | None) -> list[ResourceRef]:
    """Return the changed resources that a running sidecar loads at once, or may load because it was not probed."""
    if not pod.instance or (pod.sidecar and pod.sidecar.waiting):
        return []
    changed = (each for each in changes.seen_by(frozenset({scope_of(pod)})) if each.changed)
    return [each.ref for each in changed if facts is None or uptake_of(each, facts) is not Uptake.START]


def _rolling_rejection(pods: Mapping[WorkloadRef, Sequence[str]]) -> str:
    workloads = [f"{ref} ({_listing(names, _NAMED_PODS)})" for ref, names in pods.items()]
    return (
        "strategy rolling needs sidecars without hot reload; these load the change at once, or could not be probed: "
        f"{_listing(workloads, _NAMED_WORKLOADS)}; use strategy reload, or disable HotReload in their Configuration"
    )


def _listing(names: Sequence[str], limit: int) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
