"""Whether the applied objects of a module are ready: by the rules of their kinds, or by those of the Module."""

from collections.abc import Iterable

from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.errors import NO_API
from governor.kube.objects import ObjectRef
from governor.kube.readiness import Readiness, Rule, Rules, State, compute_readiness, summarise
from governor.kube.readiness.state import progressing, unknown
from governor.reconciler.kinds.module import ReadinessRule
from governor.reconciler.kinds.state import HEALTHY
from governor.reconciler.release.objects import objects_client
from governor.reconciler.states.failures import type_in
from governor.reconciler.steps.diagnosis import diagnosed
from governor.reconciler.steps.step import Halt, Work, failed, is_overdue, readiness_of, unhealthy
from governor.reconciler.watch import ClusterWatch


async def check_health(work: Work) -> Work | Halt:
    """Halt unless all objects are ready."""
    try:
        summary = summarise(await _readiness(work))
    except GovernorError as error:
        return failed(work, "NotObserved", error, HEALTHY)
    if summary.state is State.READY:
        return work
    summary = await diagnosed(work, summary)
    failure = type_in(summary.reason, summary.message)
    if is_overdue(work, HEALTHY):
        message = f"not ready within {readiness_of(work).timeout_seconds} s: {summary.message}"
        return unhealthy(work, summary.reason, message, failure.actor if failure else Actor.OPERATOR, failure)
    actor = Actor.OPERATOR if summary.state is State.FAILED else Actor.NOBODY
    return unhealthy(work, summary.reason, summary.message, actor, failure)


async def _readiness(work: Work) -> dict[ObjectRef, Readiness]:
    """Return the readiness of all objects. Those that the watch cannot show are read, with the chart's permissions."""
    watch, client = work.on.watch, objects_client(work.on.place, work.instance.spec)
    found = {ref: _observed(watch, ref) for ref in work.entries}
    for ref in work.entries:
        rules = rules_for(ref, readiness_of(work).rules)
        if rules or watch.is_unwatchable(ref):
            found[ref] = await _read(client, ref, rules)
    return found


def _observed(watch: ClusterWatch, ref: ObjectRef) -> Readiness:
    """Return the readiness of an object as the watch has it; it may be late for an object that was just applied."""
    state = watch.state(ref)
    if state is not None:
        return state.readiness
    if watch.is_known(ref):
        return progressing("NotObserved", "the watch has not reported it yet, or it was deleted")
    return unknown("NotObserved", watch.problem or "its kind is not listed yet")


def rules_for(ref: ObjectRef, rules: Iterable[ReadinessRule]) -> Rules | None:
    """Return the rules of a Module for one object, or None if it has none."""
    own = [each for each in rules if (each.group, each.kind) == (ref.group, ref.kind) and each.name in ("", ref.name)]
    return Rules(tuple(Rule(each.path, each.operator, each.value) for each in own)) if own else None


async def _read(client: Client, ref: ObjectRef, rules: Rules | None) -> Readiness:
    try:
        resource = await client.discovery.find(ref.group, ref.kind)
        return compute_readiness(await client.get(resource, ref.name, ref.namespace), rules)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND and error.code != NO_API:
            raise
        return unknown("NotFound", "it, or its kind, was deleted after it was applied")
