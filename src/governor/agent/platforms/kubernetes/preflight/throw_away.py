"""Throw-away pods: created with the copies that they load, read, and removed whatever happens.

The Job is created first and removed last, so where no Job is left, nothing is. After a crash of the agent the next one
removes all of it. Otherwise Kubernetes does: it ends the pod, removes the Job, and then what belongs to the Job.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from governor.agent.platform import Superseded
from governor.agent.platforms.kubernetes.preflight.copies import with_denied
from governor.agent.platforms.kubernetes.proof import sidecar_log
from governor.agent.platforms.kubernetes.proof.sidecar_reader import SidecarReader
from governor.agent.platforms.kubernetes.resources.applied import MANAGER
from governor.agent.platforms.kubernetes.workloads.observer import JOBS, Observer
from governor.agent.platforms.kubernetes.workloads.views import PREFLIGHT
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.preflight import impossible
from governor.agent.verification.preflight_plan import PreflightReading
from governor.agent.verification.resources import with_marker
from governor.domain.dapr.kinds import GROUP, kinds
from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import find_kinds
from governor.kube.applyset.order import gather_bounded
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.values.trees import Manifest

_START_S: Final = 60.0
"""How long a pod may take until its sidecar starts: it is scheduled, and the image is pulled."""
_SECRETS: Final = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
_SETTLE_S: Final = 0.1
"""Between a Secret and the resource that refers to it: dapr-operator reads both from caches."""
_AT_ONCE: Final = 8
_POLL_S: Final = 0.05
_STOP_S: Final = 10.0
_NEVER_COPIED: Final = frozenset({"Subscription"})
_NO_PERMISSION: Final = "cannot create resource"
"""How the API server words a missing permission; a quota or a policy denies in other words."""

_log = logging.get_logger(__name__)


class NotPermittedError(Exception):
    """The agent may not create Jobs."""


class CopyRefusedError(Exception):
    """The API server does not accept a copy; it would refuse the original for the same reason, or has a quota."""


class Cluster(msgspec.Struct, frozen=True):
    """What throw-away pods need of the cluster. ``permit_write`` is that of the applied resources."""

    client: Client
    observer: Observer
    reader: SidecarReader
    permit_write: Callable[[], Awaitable[None]]
    clock: Clock
    runtime: str
    namespaces: tuple[str, ...]


async def sweep(cluster: Cluster) -> None:
    """Remove what a killed agent of this runtime has left."""
    for namespace in cluster.namespaces:
        if not await _left(cluster, JOBS, namespace):
            continue
        await cluster.permit_write()
        found = await find_kinds(cluster.client, {(GROUP, "", kind) for kind in kinds().keys() - _NEVER_COPIED})
        # Not left to the garbage collector, which does not know a new kind for half a minute.
        for resource in (_SECRETS, *found.values(), JOBS):
            for ref in await _left(cluster, resource, namespace):
                await _delete(cluster.client, resource, ref)
        _log.info("removed a preflight of an earlier process", namespace=namespace)


async def _left(cluster: Cluster, resource: ApiResource, namespace: str) -> list[ObjectRef]:
    labels = f"{PREFLIGHT}={cluster.runtime}"
    found = cluster.client.list(resource, namespace, labels=labels, metadata_only=True)
    return [ref_of(each) async for each in found]


class ThrowAwayPod:
    """One throw-away pod. Leaving the context removes it with its copies.

    ``make_job`` returns its Job for the name of a Configuration. ``denied`` are Components that it must not load.
    """

    def __init__(
        self,
        cluster: Cluster,
        make_job: Callable[[str], Object],
        secrets: Sequence[Manifest],
        denied: Sequence[str],
        superseded: Superseded,
    ) -> None:
        self._cluster = cluster
        self._make_job = make_job
        self._secrets = secrets
        self._denied = denied
        self._superseded = superseded
        self._created: list[tuple[ApiResource, ObjectRef]] = []
        self._job: ObjectRef | None = None
        self._uid = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self._remove()
        except GovernorError as failure:
            if error is None:
                raise
            _log.warning("cannot remove a preflight yet", job=str(self._job), error=str(failure))

    async def load(self, copies: Sequence[Manifest]) -> None:
        """Create the pod with what it loads, and wait until its sidecar has started."""
        prepared = [self._prepared(each) for each in copies]
        (configuration,) = (each["metadata"]["name"] for each in prepared if each["kind"] == "Configuration")
        owner = await self._create_job(self._make_job(configuration))
        await self._create_all([(_SECRETS, _owned(each, owner)) for each in self._secrets])
        if self._secrets:
            await self._cluster.clock.sleep(_SETTLE_S)
        await self._create_all([(await self._resource(each), _owned(each, owner)) for each in prepared])
        await self._cluster.client.patch(
            JOBS, owner["name"], owner["namespace"], {"spec": {"suspend": False}}, manager=MANAGER
        )
        await self._until_started()

    async def read(self) -> PreflightReading:
        """Return the state of its sidecar at this moment."""
        pod = self._pod()
        if pod is None or pod.sidecar is None:
            return PreflightReading(exit_message="the throw-away pod was deleted", external_cause=True)
        if pod.sidecar.started is None and pod.sidecar.last_exit:
            errors = await sidecar_log.read_errors(self._cluster.client, pod, previous=False)
            return PreflightReading(exit_message=errors[-1] if errors else pod.sidecar.last_exit, errors=errors)
        return PreflightReading((await self._cluster.reader.read(pod)).status)

    async def finish(self, reading: PreflightReading) -> PreflightReading:
        """Return the last reading with the errors in the sidecar's log."""
        pod = self._pod()
        if pod is None or pod.sidecar is None or reading.exit_message is not None:
            return reading
        errors = await sidecar_log.read_errors(self._cluster.client, pod, previous=False)
        return msgspec.structs.replace(reading, errors=errors)

    def _prepared(self, copy: Manifest) -> Manifest:
        return with_denied(with_marker(copy), self._denied) if copy["kind"] == "Configuration" else copy

    async def _create_job(self, job: Object) -> Object:
        """Create the Job and return what its objects refer to: its metadata."""
        self._job = ref_of(job)
        await self._cluster.permit_write()
        try:
            created = await self._cluster.client.create(JOBS, job, manager=MANAGER)
        except GovernorError as error:
            if error.kind is Kind.DENIED and _NO_PERMISSION in error.message:
                raise NotPermittedError from error
            if error.kind in (Kind.DENIED, Kind.INVALID):
                raise impossible(f"{error}; change what denies the Job, or set apply.preflight: off") from error
            raise
        self._uid = created["metadata"]["uid"]
        return dict(created["metadata"])

    async def _create_all(self, objects: Sequence[tuple[ApiResource, Object]]) -> None:
        """Create objects of the Job; all requests have ended afterwards, so that nothing appears after the removal."""
        client = self._cluster.client
        self._created += [(resource, ref_of(manifest)) for resource, manifest in objects]
        requests = (client.create(resource, manifest, manager=MANAGER) for resource, manifest in objects)
        for error in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(error, GovernorError) and error.kind in (Kind.DENIED, Kind.INVALID):
                raise CopyRefusedError(str(error)) from error
            if isinstance(error, BaseException):
                raise error

    async def _resource(self, copy: Manifest) -> ApiResource:
        return await self._cluster.client.discovery.find(GROUP, copy["kind"], copy["apiVersion"].rpartition("/")[2])

    def _pod(self) -> Pod | None:
        return self._cluster.observer.throw_away(self._job, self._uid) if self._job and self._uid else None

    async def _until_started(self) -> None:
        """Wait until the sidecar runs or has ended; UNAVAILABLE, with the reason, if there will be none."""
        clock = self._cluster.clock
        end = clock.monotonic() + _START_S
        while not self._superseded():
            pod = self._pod()
            if pod is not None and pod.sidecar is None:
                raise impossible(f"Dapr's injector added no sidecar to pod {pod.name}: check dapr-sidecar-injector")
            if pod is not None and pod.sidecar and (pod.sidecar.started or pod.sidecar.last_exit):
                return
            if clock.monotonic() > end:
                raise impossible(self._why_not_started(pod))
            await clock.sleep(_POLL_S)

    def _why_not_started(self, pod: Pod | None) -> str:
        assert self._job is not None  # noqa: S101 - it is created
        if pod is None:
            where = f"kubectl --namespace {self._job.namespace} get events --field-selector involvedObject.name="
            return (
                f"no pod was created for Job {self._job.name} within {_START_S:.0f} s, for example because of a "
                f"ResourceQuota; `{where}{self._job.name}` says why"
            )
        if pod.unscheduled:
            return f"no node was found for pod {pod.name} within {_START_S:.0f} s: {pod.unscheduled}"
        sidecar = pod.sidecar
        waiting = f"{sidecar.waiting}: {sidecar.waiting_message}" if sidecar and sidecar.waiting else pod.phase
        return f"the sidecar of pod {pod.name} did not start within {_START_S:.0f} s: {waiting}"

    async def _remove(self) -> None:
        """Remove all that was created, and wait until the sidecar has stopped."""
        if self._job is None:
            return
        client, clock = self._cluster.client, self._cluster.clock
        await gather_bounded(self._created, lambda each: _delete(client, *each), _AT_ONCE)
        self._created.clear()
        await _delete(client, JOBS, self._job)
        end = clock.monotonic() + _STOP_S
        while (pod := self._pod()) is not None and not pod.finished:
            if clock.monotonic() > end:
                _log.warning("a throw-away pod still runs", pod=pod.name, namespace=pod.namespace)
                return
            await clock.sleep(_POLL_S)


def _owned(manifest: Manifest, owner: Object) -> Object:
    """Return a manifest that Kubernetes removes with the Job."""
    reference = {"apiVersion": "batch/v1", "kind": JOBS.kind, "name": owner["name"], "uid": owner["uid"]}
    metadata = {
        "name": manifest["metadata"]["name"],
        "namespace": owner["namespace"],
        "labels": {PREFLIGHT: owner["labels"][PREFLIGHT]},
        "ownerReferences": [reference],
    }
    return {**manifest, "metadata": metadata}


async def _delete(client: Client, resource: ApiResource, ref: ObjectRef) -> None:
    try:
        await client.delete(resource, ref.name, ref.namespace)
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
