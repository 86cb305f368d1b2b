"""Tables and descriptions of modules and clusters for users. Pure; the current time is a parameter."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from governor.domain.conditions import Actor
from governor.kube.controller import Condition
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.module_instance import Applied, ModuleInstance
from governor.reconciler.kinds.state import READY, State
from governor.reconciler.states.module_lines import line_of
from governor.values.printing import NONE, age, one_line, table


def modules_table(instances: Iterable[ModuleInstance], now: datetime, clusters: Iterable[Cluster] = ()) -> str:
    """Return one line per module on a cluster; empty if there is none.

    Installations that are not resolved have no ModuleInstance, but a line in the status of their Cluster.
    """
    known = {(each.spec.cluster, each.spec.module): _cells(each, now) for each in instances}
    lines = [(each.metadata.name, line) for each in clusters for line in each.status.modules]
    rows = {(cluster, line.module): (line.version, line.state, NONE, line.message) for cluster, line in lines} | known
    header = ("MODULE", "CLUSTER", "VERSION", "STATE", "FOR", "MESSAGE")
    return table(header, [(key[1], key[0], *rows[key]) for key in sorted(rows)]) if rows else ""


def _cells(instance: ModuleInstance, now: datetime) -> tuple[object, ...]:
    line = line_of(None, instance)
    state, message = (line.state, line.message) if line else (State.PENDING, "")
    return instance.spec.version, state, _since(instance.status.conditions, now), message


def module_text(instance: ModuleInstance, now: datetime) -> str:
    """Return the full description of a module on a cluster."""
    parts = [_module_identity(instance), _conditions(instance.status.conditions, now), _history(instance, now)]
    return "\n\n".join("\n".join(part) for part in parts)


def _module_identity(instance: ModuleInstance) -> Iterator[str]:
    spec, status, line = instance.spec, instance.status, line_of(None, instance)
    yield f"Module:        {spec.module}"
    yield f"Cluster:       {spec.cluster}"
    yield f"Installation:  {spec.installation}"
    yield f"Version:       {spec.version}"
    yield f"Applied:       {status.last_applied.version if status.last_applied else NONE}"
    if status.rollback is not None:
        yield f"Rolled back:   from {status.rollback.version} by {status.rollback.cause}"
    yield f"Namespace:     {spec.namespace}"
    yield f"Chart:         {spec.chart_digest}"
    yield f"Depends on:    {', '.join(spec.depends_on) or NONE}"
    if status.adopted is not None:
        yield f"Adopted from:  {status.adopted.source}: {status.adopted.next_step}"
    if line is not None:
        yield f"State:         {line.state}: {one_line(line.message)}"
        if line.actor is not Actor.NOBODY:
            yield f"Action by:     {line.actor}"


def _conditions(conditions: Iterable[Condition], now: datetime) -> Iterator[str]:
    yield "Conditions:"
    for each in conditions:
        since = f" for {age(_time(each.last_transition_time), now)}" if each.last_transition_time else ""
        yield f"  {each.type}: {each.status}{since}, {each.reason}: {one_line(each.message)}"


def _history(instance: ModuleInstance, now: datetime) -> Iterator[str]:
    yield "History:"
    applied = instance.status.last_applied
    for each in (*((applied,) if applied else ()), *instance.status.history):
        yield f"  {_applied(each, now)}"
    if applied is None:
        yield "  nothing was applied yet"


def _applied(applied: Applied, now: datetime) -> str:
    return f"{applied.version}, {age(_time(applied.time), now)} ago, chart {applied.chart_digest}"


def cluster_text(cluster: Cluster, now: datetime) -> str:
    """Return the full description of a cluster: its state, conditions and modules."""
    parts = [_cluster_identity(cluster), _conditions(cluster.status.conditions, now), _modules(cluster)]
    return "\n\n".join("\n".join(part) for part in parts)


def _cluster_identity(cluster: Cluster) -> Iterator[str]:
    status = cluster.status
    labels = ", ".join(f"{key}={value}" for key, value in sorted(cluster.metadata.labels.items()))
    yield f"Name:       {cluster.metadata.name}"
    yield f"Labels:     {labels or NONE}"
    yield f"Version:    {status.version or NONE}"
    yield f"Identity:   {status.uid or NONE}"
    yield f"Paused:     {'yes' if cluster.spec.paused else 'no'}"
    yield f"State:      {status.state or State.PENDING}: {one_line(status.message)}"


def _modules(cluster: Cluster) -> Iterator[str]:
    lines = cluster.status.modules
    yield f"Modules ({cluster.status.ready or NONE} ready):"
    header = ("MODULE", "VERSION", "STATE", "REASON", "ACTION BY", "MESSAGE")
    rows = [(each.module, each.version, each.state, each.reason, each.actor, each.message) for each in lines]
    yield from (f"  {line}" for line in table(header, rows).splitlines())
    total = cluster.status.counts.total if cluster.status.counts else 0
    if total > len(lines):
        yield f"  and {total - len(lines)} more: kubectl get moduleinstances"


def _since(conditions: Iterable[Condition], now: datetime) -> str:
    """Return since when the module has its state: the last change of one of its conditions."""
    times = [time for each in conditions if (time := _time(each.last_transition_time)) is not None]
    ready = [_time(each.last_transition_time) for each in conditions if each.type == READY]
    return age(ready[0] if ready else max(times, default=None), now)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
