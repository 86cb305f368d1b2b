"""Restarts of a sidecar within its process, inferred from what changed and from its counters. Pure.

Such a sidecar initialises all of its components again, perhaps as they were before the write, so that a counter that
rises proves nothing. Afterwards each response of Dapr 1.18 has the counters of one of the runtimes that the process has
had, at random. Nothing in a pod's status shows it.
"""

from collections.abc import Iterable, Set

from governor.agent.platforms.kubernetes.plans.affected import Change
from governor.agent.platforms.kubernetes.plans.hot_reload import HOT_RELOAD, uptake_of
from governor.agent.platforms.kubernetes.proof.instances import Probed, facts
from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.verification.verdicts import Reading
from governor.domain.dapr.reload import Uptake, uptake
from governor.domain.documents import ResourceRef


def may_have_restarted(unproven: Iterable[Change], before: Probed) -> bool:
    """Return whether a sidecar restarts within its process for what it has not proven, or has done so."""
    known = facts(before.status)
    return known is not None and any(uptake_of(each, known) is Uptake.IN_PLACE for each in unproven)


def restarted_for(reloaded: Iterable[ForeignResource], before: Probed) -> str:
    """Return the resource of another owner for which a sidecar may have restarted within its process, or ``""``."""
    known = facts(before.status)
    if known is None or HOT_RELOAD not in known.features:
        return ""
    taken = (each for each in reloaded if uptake(each.kind, known.version) is Uptake.IN_PLACE)
    return next((f"{each.kind} {each.name}" for each in taken), "")


def unexplained_initialisation(
    seen: Iterable[Change],
    unproven: Set[ResourceRef],
    before: Reading,
    now: Reading,
    explained: frozenset[str] | None,
) -> str:
    """Return which component type was initialised although nothing of it changed, or ``""``.

    ``seen`` is what a sidecar loads of a delivery, ``unproven`` the Components that it has not proven. ``explained``
    are the component types whose counters others may have raised; None if that is not known yet.
    """
    if explained is None:
        return ""
    own = {each.expected.component_type for each in seen if each.changed or each.ref in unproven}
    unexplained = _risen(before, now) - own - explained
    if not unexplained:
        return ""
    return (
        f"{min(unexplained)} was initialised too, although nothing of that type changed: "
        "the sidecar may have restarted within its process"
    )


def _risen(before: Reading, now: Reading) -> frozenset[str]:
    """Return the component types of which some were initialised in between."""
    old, new = (each.status.counters if each.status is not None else None for each in (before, now))
    if old is None or new is None:
        return frozenset()
    return frozenset(kind for kind, number in new.initialised.items() if number > old.initialised.get(kind, 0))
