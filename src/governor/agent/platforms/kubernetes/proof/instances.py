"""The sidecars of pods in the terms of the shared verification: which instance, started when, why it ended. Pure.

Whether a sidecar started after a write is decided by the clock of the API server alone, or by the agent's own restart:
a node's clock may be wrong. A container that was restarted in its pod may have started before or after.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.plans.hot_reload import SidecarFacts
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.verification.sidecar_api import SidecarStatus
from governor.agent.verification.verdicts import MAX_EXTERNAL_EXITS, Instance, Reading, SidecarExit
from governor.domain.dapr.reload import why_not_reloading

_HOT_RELOAD: Final = "HotReload"


class Probed(msgspec.Struct, frozen=True):
    """A pod and what its sidecar answered at one moment, or why it did not; ``errors`` are from its log."""

    pod: Pod
    status: SidecarStatus | None
    time: datetime
    reason: str = ""
    errors: tuple[str, ...] = ()


def started_after(pod: Pod, written: datetime | None, digest: str) -> bool:
    """Return whether a pod was created after a write.

    Kubernetes stores times in whole seconds, so a pod of the same second may be older, unless it was created by the
    agent's own restart for this write. The annotation alone is no proof: other clients may have written since.
    """
    if written is None or pod.created < written:
        return False
    return pod.created > written or (digest != "" and pod.restart_digest == digest)


def reading(
    now: Probed, before: Probed | None, written: datetime | None, digest: str, *, disturbed: bool = False
) -> Reading:
    """Return a sidecar's state; ``before`` is the same pod before the change, ``digest`` that of the last restart.

    ``disturbed`` if one that started before the last write may have loaded what another client wrote.
    """
    pod, status = now.pod, now.status
    answers = status is not None and status.metadata.id == pod.app_id
    is_after = started_after(pod, written, digest)
    return Reading(
        now.time,
        Instance(pod.instance, f"pod {pod.name}") if pod.instance else None,
        started_after_write=is_after,
        # Nothing in a pod's status shows it; see ``restarts_in_place``.
        restarted_in_place=False,
        status=status if answers else None,
        load_evidence="gets its resources from Dapr's operator" if answers else "",
        reload_obstacle=_reload_obstacle(status),
        last_exit=_last_exit(now, before, started_after_write=is_after, disturbed=disturbed and not is_after),
        errors=now.errors,
    )


def facts(status: SidecarStatus | None) -> SidecarFacts | None:
    """Return what a plan needs to know of a sidecar that answered."""
    if status is None:
        return None
    metadata = status.metadata
    return SidecarFacts(
        metadata.runtime_version,
        frozenset(metadata.enabled_features),
        has_metrics=status.counters is not None,
        hosts_actors=bool(metadata.actors),
        healthy=status.healthy,
    )


def has_exited(now: Pod, before: Pod | None) -> bool:
    """Return whether the sidecar of a pod has ended since, or ends again and again."""
    if now.sidecar is None or not now.sidecar.last_exit:
        return False
    if before is None or before.sidecar is None or before.uid != now.uid:
        return bool(now.sidecar.waiting) or not now.sidecar.ready
    return now.sidecar.restarts > before.sidecar.restarts or (bool(now.sidecar.waiting) and not before.sidecar.waiting)


def has_failed(now: Probed, before: Probed | None) -> bool:
    """Return whether a sidecar has failed to initialise a component since, and runs on."""
    failed, earlier = (_failures(each) for each in (now, before))
    return any(count > earlier.get(name, 0) for name, count in failed.items())


def _failures(probed: Probed | None) -> Mapping[str, int]:
    counters = probed.status.counters if probed is not None and probed.status is not None else None
    return counters.failed if counters is not None else {}


def _last_exit(now: Probed, before: Probed | None, *, started_after_write: bool, disturbed: bool) -> SidecarExit | None:
    earlier = before.pod if before is not None else None
    if now.pod.sidecar is None or not has_exited(now.pod, earlier):
        return None
    ended = earlier.instance if earlier is not None and earlier.instance else now.pod.instance
    exits = now.pod.sidecar.exits - (earlier.sidecar.exits if earlier is not None and earlier.sidecar else 0)
    # The prober puts the exit itself there if the log says nothing; both are redacted.
    text = now.errors[-1] if now.errors else f"the sidecar of pod {now.pod.name} exited"
    return SidecarExit(
        ended,
        text,
        started_after_write=started_after_write,
        external_cause=(now.pod.sidecar.killed or disturbed) and exits <= MAX_EXTERNAL_EXITS,
    )


def _reload_obstacle(status: SidecarStatus | None) -> str:
    if status is None:
        return "the sidecar does not respond"
    metadata = status.metadata
    if _HOT_RELOAD in metadata.enabled_features:
        return ""
    return why_not_reloading(metadata.runtime_version) or "its Configuration disables HotReload"
