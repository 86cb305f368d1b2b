"""Which sidecars of a cluster one throw-away pod stands for, and what changes for them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.plans.affected import Changes, Scope, live_pods, scope_of
from governor.agent.platforms.kubernetes.plans.plan import Action, Plan
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod, Workload
from governor.domain.documents import ResourceRef
from governor.domain.reports import WorkloadRef
from governor.values.trees import Manifest

MAX_GROUPS: Final = 8
"""Groups that are tried for one delivery, those with the most changes first."""

_RESTARTS: Final = frozenset({Action.RESTART, Action.EVICT})


class Sidecars(msgspec.Struct, frozen=True, order=True):
    """What a group of sidecars has in common, as far as it decides whether a resource can be initialised.

    ``image`` is empty if Dapr's injector chooses it: for a workload that will restart and names none.
    """

    namespace: str
    service_account: str
    image: str
    configuration: str
    environment: tuple[str, ...] = ()


class Group(msgspec.Struct, frozen=True):
    """Pods whose sidecars are alike, and the resources that change for them."""

    sidecars: Sidecars
    pods: tuple[Pod, ...]
    changed: frozenset[ResourceRef]

    @property
    def pod(self) -> Pod:
        """The pod after which the throw-away pod is made."""
        return self.pods[0]

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes of its sidecars."""
        return frozenset(map(scope_of, self.pods))

    def loads(self, manifests: Mapping[ResourceRef, Manifest]) -> dict[ResourceRef, Manifest]:
        """Return those of the resources that any of its sidecars loads."""
        scopes = self.scopes
        return {ref: each for ref, each in manifests.items() if any(scope.loads(ref, each) for scope in scopes)}


def groups_of(workloads: Iterable[Workload], changes: Changes, planned: Plan) -> tuple[Group, ...]:
    """Return the groups for which something changes, those with the most changes and pods first."""
    restarting = {each.workload for each in planned.workloads if each.action in _RESTARTS}
    alike: dict[Sidecars, list[Pod]] = {}
    for workload in workloads:
        for pod in live_pods(workload):
            if pod.sidecar is not None:
                alike.setdefault(_sidecars(pod, pod.sidecar, workload, restarting), []).append(pod)
    groups = [Group(key, _ordered(pods), _changed(pods, changes)) for key, pods in alike.items()]
    return tuple(
        sorted(
            (each for each in groups if each.changed),
            key=lambda each: (-len(each.changed), -len(each.pods), each.sidecars),
        )
    )


def _sidecars(pod: Pod, sidecar: Container, workload: Workload, restarting: set[WorkloadRef]) -> Sidecars:
    chosen = "" if workload.ref in restarting else sidecar.image
    image = workload.sidecar_image or chosen
    return Sidecars(pod.namespace, pod.service_account, image, pod.configuration, pod.environment)


def _ordered(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the pods with those first whose sidecar runs, by name."""
    return tuple(sorted(pods, key=lambda pod: (pod.sidecar is None or pod.sidecar.started is None, pod.name)))


def _changed(pods: Iterable[Pod], changes: Changes) -> frozenset[ResourceRef]:
    seen = changes.seen_by(frozenset(map(scope_of, pods)))
    return frozenset(each.ref for each in seen if each.changed and each.digest)
