"""What the steps of a ModuleInstance have in common: the work that they pass on, and how one of them halts it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from governor.kube.client import Client
from governor.kube.reflector import Entry
from governor.reconciler.kinds.cluster import Cluster
from governor.reconciler.kinds.module import Module
from governor.reconciler.kinds.module_instance import ModuleInstance
from governor.reconciler.kinds.state import Problem
from governor.values.secret import Secret


class Work(msgspec.Struct, frozen=True):
    """One run for one ModuleInstance: what it was started with, and what the steps so far have found out."""

    instance: ModuleInstance
    cluster: Entry[Cluster] | None
    module: Entry[Module] | None
    hub: Client
    """Client of the hub, for reads in the namespace of the ModuleInstance."""
    kubeconfigs: Mapping[str, str] = {}
    """Names of the Secrets with kubeconfigs, and of their Clusters. No chart may read them as its values."""
    values: tuple[Secret, ...] = ()
    """The layers of values as YAML, of which later ones override earlier ones; set by ``read_values``. They are texts,
    because Helm reads some scalars of YAML in another way."""


class Paused(msgspec.Struct, frozen=True):
    """Nothing may be changed on the cluster for now."""


Halt: TypeAlias = Problem | Paused
Step: TypeAlias = Callable[[Work], Awaitable[Work | Halt]]


async def run(steps: Sequence[Step], work: Work) -> Work | Halt:
    """Run the steps until one halts the work; return the completed work, or why it was halted."""
    for step in steps:
        result = await step(work)
        if not isinstance(result, Work):
            return result
        work = result
    return work
