"""Writes and reads of restarts: the annotation of a pod template, evictions, disruption budgets, Dapr's control plane.

The annotation is a patch of an object that belongs to others, not a desired object of the agent: an apply set would
claim the workload, list it in its inventory and prune it. The patch has its own field manager, touches only the agent's
two annotations, and fails if the workload was changed or re-created since it was read.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec

from governor.agent.platforms.kubernetes.restarts.control_plane import (
    APP_LABEL,
    PLACEMENT,
    SERVICES,
    Component,
    ControlPlane,
    component_of,
    service_of,
)
from governor.agent.platforms.kubernetes.restarts.decision import Budget, budget_of
from governor.agent.platforms.kubernetes.restarts.records import (
    ANSWERS,
    RECORD,
    Record,
    Template,
    deferral,
    failed_record,
    next_record,
    revert_warning,
)
from governor.agent.platforms.kubernetes.workloads.observer import (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from governor.agent.platforms.kubernetes.workloads.views import RESTART
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.domain.reports import WorkloadRef
from governor.errors import GovernorError, Kind
from governor.kube.applyset.live import other_managers
from governor.kube.client import Client, Request
from governor.kube.errors import DECODE_ERRORS, ApiError
from governor.kube.objects import ApiResource, Object
from governor.process.clock import Clock

MANAGER: Final = "governor-agent-restart"

_TEMPLATE: Final = ("spec", "template")
_ATTEMPTS: Final = 5
_KINDS: Final = {each.kind: each for each in (DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS, REPLICA_SETS)}
_BUDGETS: Final = ApiResource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
_COMPONENTS: Final = ApiResource("dapr.io", "v1alpha1", "Component", "components", namespaced=True)
_SECRETS: Final = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
_BUDGET_CAUSE: Final = "DisruptionBudget"
_EVICTIONS: Final = ApiResource("", "v1", "Pod", "pods/eviction", namespaced=True)

T = TypeVar("T")


class Restarted(msgspec.Struct, frozen=True):
    """The result of a restart: whether the annotation was written, or why it is no longer, or not yet again."""

    written: bool
    warning: str = ""
    deferral: str = ""


class _SecretKeys(msgspec.Struct, frozen=True):
    """The keys of a Secret; its values stay undecoded and are dropped with the response."""

    data: dict[str, msgspec.Raw] | None = None


_secret_keys: Final = msgspec.json.Decoder(_SecretKeys)


class Restarter:
    """Restarts workloads of one cluster. ``dapr_namespace`` limits the search for Dapr's control plane.

    ``permit`` is awaited before each write; it raises if another process does this agent's work now.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        permit: Callable[[], Awaitable[None]],
        *,
        dapr_namespace: str = "",
        answers: int = ANSWERS,
    ) -> None:
        self._client = client
        self._clock = clock
        self._permit = permit
        self._dapr_namespace = dapr_namespace
        self._answers = answers

    async def restart(self, workload: WorkloadRef, digest: str, control_plane: str = "") -> Restarted:
        """Annotate the template with the digest, unless it already is, or that failed lately, or others revert it.

        ``control_plane`` is the revision of Dapr's, whose change may make another try worthwhile.
        """

        def change(template: Template) -> Restarted | Object:
            if template.digest == digest:
                return Restarted(written=False)
            if warning := revert_warning(template, digest, self._answers):
                return Restarted(written=False, warning=warning)
            if text := deferral(template, digest, self._clock.now(), control_plane):
                return Restarted(written=False, deferral=text)
            return _annotations(digest, next_record(template, digest))

        return await self._patch(workload, change) or Restarted(written=True)

    async def take_back(
        self, workload: WorkloadRef, digest: str, reason: str, control_plane: str = ""
    ) -> Record | None:
        """Set the annotation to its value before the restart for a digest; None if it is another restart's now.

        A Deployment then returns to its old ReplicaSet. If another manager removed the record, so is the annotation.
        The returned record, which stays on the workload, says why and defers the next try.
        """
        written: list[Record] = []

        def change(template: Template) -> bool | Object:
            if template.digest != digest:
                return False
            written[:] = [failed_record(template, digest, reason, self._clock.now(), control_plane)]
            return _annotations(written[0].previous or None, written[0])

        try:
            return written[0] if await self._patch(workload, change) is None else None
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None

    async def evict(self, pod: Pod) -> str:
        """Evict a pod; return why a disruption budget does not allow it now, or ``""`` if the pod is going or gone."""
        await self._permit()
        try:
            with _permission("create", _EVICTIONS, pod.namespace):
                await self._client.evict(pod.name, pod.namespace, uid=pod.uid)
        except ApiError as error:
            if error.kind in (Kind.NOT_FOUND, Kind.CONFLICT):
                return ""
            budgets = [each for each in error.causes if each.reason == _BUDGET_CAUSE]
            # A server that is busy rejects with the same status, and without such a cause.
            if not budgets:
                raise
            return "; ".join([each.message for each in budgets if each.message]) or error.message
        return ""

    async def budgets(self, namespace: str) -> tuple[Budget, ...]:
        """Return the disruption budgets of a namespace."""
        return tuple([budget_of(each) async for each in self._list(_BUDGETS, namespace)])

    async def dapr_control_plane(self) -> ControlPlane:
        """Return Dapr's control plane."""
        deployments = f"{APP_LABEL} in ({','.join(SERVICES)})"
        found = [
            each
            for kind, labels in ((DEPLOYMENTS, deployments), (STATEFUL_SETS, f"{APP_LABEL}={PLACEMENT}"))
            async for each in self._list(kind, self._dapr_namespace, labels)
        ]
        return ControlPlane(tuple(map(service_of, found)))

    async def components(self, namespace: str) -> tuple[Component, ...]:
        """Return what the Components of a namespace need of Secrets."""
        return tuple([component_of(each) async for each in self._list(_COMPONENTS, namespace)])

    async def secret_keys(self, namespace: str, components: Iterable[Component]) -> Mapping[str, frozenset[str]]:
        """Return the keys of the Secrets that the components refer to, by name; a missing Secret is left out."""
        names = sorted({secret.name for component in components for secret in component.secrets})
        found = {name: await self._keys_of(namespace, name) for name in names}
        return {name: keys for name, keys in found.items() if keys is not None}

    async def _keys_of(self, namespace: str, name: str) -> frozenset[str] | None:
        request = Request("GET", _SECRETS.path(namespace, name))
        try:
            with _permission("get", _SECRETS, namespace):
                body = await self._client.send(request)
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None
        try:
            return frozenset(_secret_keys.decode(body).data or ())
        except DECODE_ERRORS:
            # The decoder's message could quote the Secret.
            message = f"{request}: the response is not a Secret; check the server address"
            raise GovernorError(Kind.INTERNAL, "kube-answer", message) from None

    async def _list(self, resource: ApiResource, namespace: str, labels: str = "") -> AsyncIterator[Object]:
        with _permission("list", resource, namespace):
            async for each in self._client.list(resource, namespace, labels=labels):
                yield each

    async def _get(self, workload: WorkloadRef) -> Object:
        resource = _KINDS[workload.kind]
        with _permission("get", resource, workload.namespace):
            return await self._client.get(resource, workload.name, workload.namespace)

    async def _patch(self, workload: WorkloadRef, change: Callable[[Template], T | Object]) -> T | None:
        """Patch the workload with what ``change`` makes of its template; None, or what it returns instead of a patch.

        After a conflict the workload is read and decided on again.
        """
        resource = _KINDS[workload.kind]
        for attempt in range(1, _ATTEMPTS + 1):
            live = await self._get(workload)
            patch = change(template_of(live))
            if not isinstance(patch, dict):
                return patch
            await self._permit()
            # A re-created object has another resourceVersion too.
            patch["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
            try:
                with _permission("patch", resource, workload.namespace):
                    await self._client.patch(resource, workload.name, workload.namespace, patch, manager=MANAGER)
            except ApiError as error:
                if error.kind is not Kind.CONFLICT or attempt == _ATTEMPTS:
                    raise
            else:
                break
        return None


def template_of(manifest: Object) -> Template:
    """Return what the agent reads of a workload's manifest."""
    metadata = manifest["spec"]["template"].get("metadata") or {}
    annotation = (*_TEMPLATE, "metadata", "annotations", RESTART)
    return Template(
        digest=(metadata.get("annotations") or {}).get(RESTART, ""),
        record=_record_of(manifest),
        managers=other_managers(manifest, annotation, MANAGER) or other_managers(manifest, _TEMPLATE, MANAGER),
    )


def _record_of(manifest: Object) -> Record | None:
    """Return the agent's record; None if there is none, or if another program wrote something else there."""
    text = (manifest["metadata"].get("annotations") or {}).get(RECORD, "")
    try:
        return msgspec.json.decode(text, type=Record)
    except DECODE_ERRORS:
        return None


def _annotations(digest: str | None, record: Record) -> Object:
    text = msgspec.json.encode(record).decode()
    template = {"metadata": {"annotations": {RESTART: digest}}}
    return {"metadata": {"annotations": {RECORD: text}}, "spec": {"template": template}}


@contextmanager
def _permission(verb: str, resource: ApiResource, namespace: str) -> Iterator[None]:
    """Name the permission that a rejected request needs."""
    try:
        yield
    except ApiError as error:
        if error.kind is not Kind.DENIED:
            raise
        kind = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        message = f"the agent may not {verb} {kind} {where}; grant its ServiceAccount this verb: {error.message}"
        raise GovernorError(Kind.DENIED, "restart-denied", message) from error
