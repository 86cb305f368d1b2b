"""Reasons why a reload of a running sidecar could not be verified, known before anything is written. Pure.

Judging the result afterwards is ``verdicts``.
"""

from collections.abc import Sequence

from governor.agent.verification.resources import named_stores, subscription_of
from governor.agent.verification.sidecar_api import Metadata
from governor.agent.verification.verdicts import Expected, Reading, restart_obstacle
from governor.domain.dapr.kinds import is_secret_store
from governor.domain.dapr.reload import reload_obstacle
from governor.domain.documents import ResourceRef


def reload_obstacles(
    unproven: Sequence[Expected], expected: Sequence[Expected], before: Reading | None
) -> dict[ResourceRef, str]:
    """Return, by resource of ``unproven``, why a reload could not be verified; omit those without an obstacle."""
    found = {each.ref: _reload_obstacle(each, expected, before) for each in unproven}
    return {ref: reason for ref, reason in found.items() if reason}


def _reload_obstacle(each: Expected, expected: Sequence[Expected], before: Reading | None) -> str:
    if before is None or before.status is None or not before.status.healthy:
        return "the sidecar could not be probed before the change"
    if before.reload_obstacle:
        return before.reload_obstacle
    if not each.changed:
        return "" if each.new is None and _never_existed(each) else "nothing shows that the running sidecar loaded it"
    version = before.status.metadata.runtime_version
    match each.ref.kind:
        case "Component":
            return reload_obstacle("Component", version) or _component_obstacle(each, expected, before)
        case "Subscription":
            return reload_obstacle("Subscription", version) or _subscription_obstacle(each, before.status.metadata)
        case kind:
            return f"a running sidecar does not show which content of a {kind} it uses"


def _never_existed(each: Expected) -> bool:
    return each.old is None and each.ref.kind != "Subscription"


def _component_obstacle(each: Expected, expected: Sequence[Expected], before: Reading) -> str:
    kind = each.component_type
    if kind.startswith("middleware."):
        return "a sidecar does not count the initialisations of middleware"
    if each.new is None:
        return ""
    if before.status is None or before.status.counters is None:
        return "the sidecar's metrics are off"
    if reason := restart_obstacle(before):
        return reason
    if is_secret_store(each.new) and any(_reads_from(other, each.ref.name) for other in expected):
        return "components that read secrets from it keep the old ones until a restart"
    same_type = [other for other in expected if other.component_type == kind and other.new and other.changed]
    if kind.startswith("bindings.") and len(same_type) > 1:
        return f"a binding may be counted twice, so the counter cannot distinguish {len(same_type)} changed {kind}"
    return ""


def _reads_from(each: Expected, store: str) -> bool:
    return each.new is not None and store in named_stores(each.new)


def _subscription_obstacle(each: Expected, before: Metadata) -> str:
    if each.new is None:
        return "" if each.old and subscription_of(each.old) in before.subscriptions else "it was not listed before"
    same = subscription_of(each.new) in before.subscriptions
    return "it was listed identically before the change" if same else ""
