"""Observes the workloads with Dapr in the namespaces of a runtime: lists and watches, no request per pod."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

from governor.agent.platforms.kubernetes.workloads.ownership import assemble
from governor.agent.platforms.kubernetes.workloads.pods import pod_of
from governor.agent.platforms.kubernetes.workloads.views import (
    CronJob,
    Job,
    Owner,
    PodView,
    Replicated,
    controller_ref,
    has_dapr,
    has_pods_or_dapr,
    is_active_or_has_dapr,
    is_enabled,
)
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Workload
from governor.domain.reports import WorkloadRef
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.controller.views import readable
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector import Added, Event, Reflector, Removed, Unreadable
from governor.process.clock import Clock

SYNC_TIMEOUT_S: Final = 30.0
PODS: Final = ApiResource("", "v1", "Pod", "pods", namespaced=True)
DEPLOYMENTS: Final = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)
STATEFUL_SETS: Final = ApiResource("apps", "v1", "StatefulSet", "statefulsets", namespaced=True)
DAEMON_SETS: Final = ApiResource("apps", "v1", "DaemonSet", "daemonsets", namespaced=True)
REPLICA_SETS: Final = ApiResource("apps", "v1", "ReplicaSet", "replicasets", namespaced=True)
JOBS: Final = ApiResource("batch", "v1", "Job", "jobs", namespaced=True)
CRON_JOBS: Final = ApiResource("batch", "v1", "CronJob", "cronjobs", namespaced=True)

_CONTROLLER: Final = "controller"

Seen = TypeVar("Seen", PodView, Replicated, Job, CronJob)
_OwnerReflector: TypeAlias = Reflector[Replicated] | Reflector[Job] | Reflector[CronJob]


class Observer:
    """The workloads with Dapr in some namespaces, as up to date as the watches.

    ``on_change`` is called for each change of a pod with Dapr, or of a workload that has such pods or will have, also
    during the initial lists. It must not block.
    """

    def __init__(
        self, client: Client, namespaces: Iterable[str], *, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self._namespaces = [_Namespace(client, name, clock, on_change) for name in dict.fromkeys(namespaces)]

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces:
                for reflector in namespace.reflectors:
                    group.create_task(reflector.run())

    async def synced(self, within_s: float = SYNC_TIMEOUT_S) -> None:
        """Wait until the initial lists are complete; UNAVAILABLE, with the reasons, if that takes longer."""
        try:
            async with asyncio.timeout(within_s):
                for namespace in self._namespaces:
                    for reflector in namespace.reflectors:
                        await reflector.synced()
        except TimeoutError as error:
            reasons = "; ".join(self.failures()) or f"the API server has not listed them within {within_s:g} s"
            message = f"the workloads are not known: {reasons}"
            raise GovernorError(Kind.UNAVAILABLE, "workloads-not-observed", message) from error

    def failures(self) -> tuple[str, ...]:
        """Return what cannot be observed at present, and why; ``workloads`` may be out of date meanwhile.

        A failure ends with the next event or bookmark that the server sends, which may take a minute.
        """
        return tuple(failure for namespace in self._namespaces for failure in namespace.failures())

    def workloads(self) -> tuple[Workload, ...]:
        """Return the workloads with Dapr. No request is sent."""
        return tuple(workload for namespace in self._namespaces for workload in namespace.workloads())

    def throw_away(self, job: ObjectRef, uid: str) -> Pod | None:
        """Return the pod of a preflight's Job, or None. No request is sent."""
        return next((pod for namespace in self._namespaces if (pod := namespace.throw_away(job, uid))), None)


class _Namespace:
    """The pods with Dapr of one namespace, and all that may own them."""

    def __init__(self, client: Client, name: str, clock: Clock, on_change: Callable[[], None]) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._on_change = on_change
        self._assembled: tuple[Workload, ...] | None = None
        self._pods = self._reflect(PODS, PodView, has_dapr)
        self._owners: dict[ApiResource, _OwnerReflector] = {
            DEPLOYMENTS: self._reflect(DEPLOYMENTS, Replicated),
            STATEFUL_SETS: self._reflect(STATEFUL_SETS, Replicated),
            DAEMON_SETS: self._reflect(DAEMON_SETS, Replicated),
            CRON_JOBS: self._reflect(CRON_JOBS, CronJob),
            REPLICA_SETS: self._reflect(REPLICA_SETS, Replicated, has_pods_or_dapr),
            JOBS: self._reflect(JOBS, Job, is_active_or_has_dapr),
        }

    def _reflect(
        self, resource: ApiResource, view: type[Seen], keep: Callable[[Seen], bool] | None = None
    ) -> Reflector[Seen]:
        return Reflector(
            self._client,
            resource,
            view,
            clock=self._clock,
            on_event=self._changed,
            namespace=self._name,
            indexes={_CONTROLLER: _controller_keys},
            keep=keep,
        )

    @property
    def reflectors(self) -> tuple[Reflector[PodView] | _OwnerReflector, ...]:
        """All reflectors; owners first, so that the owners of a listed pod are usually known."""
        return (*self._owners.values(), self._pods)

    def failures(self) -> Iterator[str]:
        """Yield why a kind cannot be observed at present."""
        for resource, reflector in {**self._owners, PODS: self._pods}.items():
            if error := reflector.failure:
                advice = "; grant the agent list and watch on them" if error.kind is Kind.DENIED else ""
                yield f"cannot observe {resource.plural} in namespace {self._name}: {error}{advice}"

    def workloads(self) -> tuple[Workload, ...]:
        """Return the workloads with Dapr of this namespace; they are assembled only after a change."""
        if self._assembled is None:
            pods = (view for entry in self._pods.store.values() if (view := readable(entry)))
            lasting = (view for view in pods if not view.metadata.labels.preflight)
            self._assembled = assemble(lasting, self._known_owners())
        return self._assembled

    def throw_away(self, job: ObjectRef, uid: str) -> Pod | None:
        """Return the pod of a preflight's Job, or None; one of an earlier Job of that name does not count."""
        views = (view for entry in self._pods.store.find(_CONTROLLER, job) if (view := readable(entry)))
        owned = (view for view in views if view.metadata.controller and view.metadata.controller.uid == uid)
        found = next(owned, None)
        return pod_of(found, WorkloadRef(job.namespace, job.kind, job.name)) if found else None

    def _known_owners(self) -> dict[ObjectRef, Owner]:
        return {
            ref: view
            for reflector in self._owners.values()
            for ref, entry in reflector.store.items()
            if (view := entry.last if isinstance(entry, Unreadable) else entry)
        }

    def _changed(self, event: Event[Seen]) -> None:
        self._assembled = None
        old = None if isinstance(event, Added) else readable(event.old)
        new = None if isinstance(event, Removed) else readable(event.new)
        if any(map(_is_relevant, (old, new))) or self._has_pods_with_dapr(event.ref):
            self._on_change()

    def _has_pods_with_dapr(self, owner: ObjectRef) -> bool:
        children = (
            ObjectRef(resource.group, resource.kind, self._name, each.metadata.name)
            for resource in (REPLICA_SETS, JOBS)
            for each in self._owners[resource].store.find(_CONTROLLER, owner)
        )
        return any(self._pods.store.find(_CONTROLLER, ref) for ref in (owner, *children))


def _is_relevant(view: PodView | Owner | None) -> bool:
    if view is None or view.metadata.labels.preflight:
        return False
    return isinstance(view, PodView) or is_enabled(view)


def _controller_keys(view: PodView | Owner) -> Iterable[ObjectRef]:
    ref = controller_ref(view.metadata)
    return () if ref is None else (ref,)
