"""Modules that another one depends on are ready before it is applied, and are removed after it. Pure."""

from collections.abc import Mapping

from governor.domain.conditions import Actor
from governor.kube.controller.views import readable
from governor.kube.reflector import Entry
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.kinds.state import State
from governor.reconciler.release.reference import is_same
from governor.reconciler.states.module_lines import line_of
from governor.reconciler.steps.step import Halt, Work, waiting
from governor.values.printing import listed


async def check_dependencies(work: Work) -> Work | Halt:
    """Halt until all modules that this one depends on are ready; what is applied already is repaired without them."""
    if is_applied(work):
        return work
    missing = unready(work.instance, work.others)
    if not missing:
        return work
    return waiting(work, "DependencyNotReady", f"waiting for {listed(missing)}, which must be ready first")


def is_applied(work: Work) -> bool:
    """Return whether all objects of the desired state were applied before."""
    attempt = work.status.attempt
    applied = work.status.last_applied if attempt is None else attempt if attempt.is_applied else None
    return is_same(applied, work.instance.spec.chart_digest, work.values_digest)


def unready(instance: ModuleInstance, others: Mapping[str, Entry[ModuleInstance]]) -> list[str]:
    """Return the modules that must be ready before this one and are not."""
    return [each for each in instance.spec.depends_on if not _is_ready(others.get(each))]


def dependents(instance: ModuleInstance, others: Mapping[str, Entry[ModuleInstance]]) -> list[str]:
    """Return the modules on the cluster that depend on this one."""
    found = {name: readable(entry) for name, entry in others.items()}
    return sorted(name for name, each in found.items() if each and instance.spec.module in each.spec.depends_on)


def _is_ready(entry: Entry[ModuleInstance] | None) -> bool:
    line = line_of(None, entry)
    return line is not None and line.state is State.READY and line.actor is Actor.NOBODY
