"""Reads what ``doctor`` must know of a cluster: versions, Dapr, namespaces, and the permissions of the user.

Nothing is written. What the user may not read is a fact too. Judging it is ``cluster_diagnosis``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from governor.agent.platforms.kubernetes.permissions import PERMISSIONS, Scope
from governor.agent.platforms.kubernetes.resources.namespace_marks import Mark, read_mark
from governor.agent.platforms.kubernetes.restarts.control_plane import (
    APP_LABEL,
    PLACEMENT,
    SERVICES,
    Service,
    service_of,
)
from governor.errors import GovernorError, Kind
from governor.kube.applyset.order import gather_bounded
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access
from governor.kube.errors import DECODE_ERRORS, ApiError
from governor.kube.objects import ApiResource, Object
from governor.process.flowcontrol.limiter import Rate

RBAC: Final = "rbac.authorization.k8s.io"
DEFINITIONS: Final = "apiextensions.k8s.io"
ESCALATE: Final = "escalate"
"""The verb with which a user may grant what the user does not have."""

_LIMITS: Final = Limits(rate=Rate(per_s=200.0, burst=400), attempts=2)
_CONCURRENCY: Final = 16
_VERSION_LABEL: Final = "app.kubernetes.io/version"
_HOT_RELOAD: Final = "HotReload"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_DEPLOYMENTS: Final = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)
_STATEFUL_SETS: Final = ApiResource("apps", "v1", "StatefulSet", "statefulsets", namespaced=True)
_NAMESPACES: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
_POLICIES: Final = ApiResource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", namespaced=True)
_CONFIGURATIONS: Final = ApiResource("dapr.io", "v1alpha1", "Configuration", "configurations", namespaced=True)

T = TypeVar("T")


class Question(msgspec.Struct, frozen=True):
    """Whether the user may do something; no namespace means in all of them, or a cluster-scoped resource."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        name, slash, subresource = self.resource.partition("/")
        kind = f"{name}.{self.group}{slash}{subresource}" if self.group else self.resource
        return f"{self.verb} {kind} {self.name}".rstrip()


class DaprService(msgspec.Struct, frozen=True):
    """A service of Dapr's control plane, with how it was installed."""

    service: Service
    version: str = ""
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}


class NamespaceFacts(msgspec.Struct, frozen=True):
    """A namespace: what restricts its traffic, and which of its Configurations switch hot reload on or off."""

    exists: bool = True
    terminating: bool = False
    ingress_policies: tuple[str, ...] = ()
    egress_policies: tuple[str, ...] = ()
    hot_reload: Mapping[str, bool] = {}
    governor: Mark | None = None
    """The agent that governs it."""


class ClusterFacts(msgspec.Struct, frozen=True):
    """Everything that was read of a cluster."""

    server: str
    version: str
    served: frozenset[tuple[str, str]]
    """The kinds with their groups."""
    services: tuple[DaprService, ...]
    managed: tuple[str, ...]
    agent_namespace: str
    namespaces: Mapping[str, NamespaceFacts]
    """Those to be managed, and the agent's own."""
    denied: frozenset[Question]
    unreadable: Mapping[str, str] = {}
    """What the user may not read, with the reason."""


async def read_cluster(access: Access, managed: Iterable[str], agent_namespace: str) -> ClusterFacts:
    """Read a cluster; raise if it cannot be reached."""
    async with Transport() as transport:
        return await _Reader(Client(transport, access, _LIMITS), access.server).read(tuple(managed), agent_namespace)


class _Reader:
    def __init__(self, client: Client, server: str) -> None:
        self._client = client
        self._server = server
        self._unreadable: dict[str, str] = {}

    async def read(self, managed: tuple[str, ...], agent_namespace: str) -> ClusterFacts:
        version = await self._send(Request("GET", "/version"), _Version)
        served = await self._client.discovery.preferred_resources()
        kinds = frozenset((each.group, each.kind) for each in served)
        names = dict.fromkeys([*managed, agent_namespace])
        return ClusterFacts(
            self._server,
            version.git_version,
            kinds,
            tuple([each async for each in self._services()]),
            managed,
            agent_namespace,
            {name: await self._namespace(name, has_dapr=("dapr.io", "Configuration") in kinds) for name in names},
            await self._denied(questions(managed, agent_namespace)),
            self._unreadable,
        )

    async def _services(self) -> AsyncIterator[DaprService]:
        deployments = f"{APP_LABEL} in ({','.join(SERVICES)})"
        for kind, labels in ((_DEPLOYMENTS, deployments), (_STATEFUL_SETS, f"{APP_LABEL}={PLACEMENT}")):
            for each in await self._list(kind, "", labels=labels):
                yield dapr_service(each)

    async def _namespace(self, name: str, *, has_dapr: bool) -> NamespaceFacts:
        found = await self._readable(f"namespace {name}", self._get_namespace, name, None)
        if found == {}:
            return NamespaceFacts(exists=False)
        policies = await self._list(_POLICIES, name)
        configurations = await self._list(_CONFIGURATIONS, name) if has_dapr else []
        return NamespaceFacts(
            terminating=bool(found and "deletionTimestamp" in found["metadata"]),
            ingress_policies=_restricting("Ingress", policies),
            egress_policies=_restricting("Egress", policies),
            hot_reload=dict(filter(None, map(_hot_reload, configurations))),
            governor=await self._readable(f"configmaps in namespace {name}", self._read_mark, name, None),
        )

    async def _read_mark(self, namespace: str) -> Mark | None:
        return await read_mark(self._client, namespace)

    async def _get_namespace(self, name: str) -> Object | None:
        """Return a namespace, or ``{}`` if it does not exist."""
        try:
            return await self._client.get(_NAMESPACES, name)
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return {}

    async def _list(self, resource: ApiResource, namespace: str, labels: str = "") -> list[Object]:
        async def listed(_: str) -> list[Object]:
            return [each async for each in self._client.list(resource, namespace, labels=labels)]

        place = f" in namespace {namespace}" if namespace else ""
        return await self._readable(f"{resource.plural}{place}", listed, namespace, [])

    async def _readable(self, what: str, read: Callable[[str], Awaitable[T]], name: str, default: T) -> T:
        """Return what is read; ``default`` if the user may not read it."""
        try:
            return await read(name)
        except GovernorError as error:
            if error.kind is not Kind.DENIED:
                raise
            self._unreadable[what] = error.message
            return default

    async def _denied(self, asked: tuple[Question, ...]) -> frozenset[Question]:
        if await self._is_allowed(Question("*", "*", "*")):
            return frozenset()
        answers = await gather_bounded(asked, self._is_allowed, _CONCURRENCY)
        return frozenset(each for each, is_allowed in zip(asked, answers, strict=True) if not is_allowed)

    async def _is_allowed(self, question: Question) -> bool:
        resource, _, subresource = question.resource.partition("/")
        attributes = {
            "verb": question.verb,
            "group": question.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": question.namespace,
            "name": question.name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self._send(Request("POST", _REVIEWS, body=msgspec.json.encode(review)), _Review)
        return answer.status.allowed

    async def _send(self, request: Request, expected: type[T]) -> T:
        body = await self._client.send(request)
        try:
            return msgspec.json.decode(body, type=expected)
        except DECODE_ERRORS as error:
            message = f"{request}: the response is not from a Kubernetes API: {error}; check the server address"
            raise GovernorError(Kind.INTERNAL, "kube-answer", message) from error


def questions(managed: tuple[str, ...], agent_namespace: str) -> tuple[Question, ...]:
    """Return what a user needs who installs the agent's chart: to create its objects, and what its roles grant."""
    return (
        *(Question("create", "", name, agent_namespace) for name in ("configmaps", "secrets", "serviceaccounts")),
        Question("create", "apps", "deployments", agent_namespace),
        *(
            Question(verb, RBAC, kind, namespace)
            for namespace in dict.fromkeys((agent_namespace, *managed))
            for kind, verbs in (("roles", ("create", ESCALATE)), ("rolebindings", ("create",)))
            for verb in verbs
        ),
        Question("create", RBAC, "clusterroles"),
        Question(ESCALATE, RBAC, "clusterroles"),
        Question("create", RBAC, "clusterrolebindings"),
        Question("create", "", "namespaces"),
        # The chart reads the definition of RuntimeStatus, and creates it unless it is there.
        *(Question(verb, DEFINITIONS, "customresourcedefinitions") for verb in ("get", "create")),
        *agent_questions(managed, agent_namespace),
    )


def agent_questions(managed: tuple[str, ...], agent_namespace: str) -> tuple[Question, ...]:
    """Return what the agent itself needs."""
    places = {Scope.MANAGED: managed, Scope.STATE: (agent_namespace,), Scope.CLUSTER: ("",)}
    return tuple(
        Question(verb, each.group, resource, namespace, each.name)
        for each in PERMISSIONS
        for namespace in places[each.scope]
        for resource, verb in each.pairs()
    )


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class _Container(msgspec.Struct, frozen=True):
    image: str = ""
    args: tuple[str, ...] = ()
    env: tuple[_Variable, ...] = ()


class _PodSpec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...]


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec


class _Spec(msgspec.Struct, frozen=True):
    template: _Template


class _Workload(msgspec.Struct, frozen=True):
    spec: _Spec


def dapr_service(manifest: Object) -> DaprService:
    """Return a service of Dapr's control plane; its version is in a label of Dapr's chart, or the tag of its image."""
    containers = msgspec.convert(manifest, _Workload).spec.template.spec.containers
    image = containers[0].image if containers else ""
    return DaprService(
        service_of(manifest),
        manifest["metadata"]["labels"].get(_VERSION_LABEL) or image.rpartition("/")[2].partition(":")[2],
        tuple(argument for each in containers for argument in each.args),
        {variable.name: variable.value for each in containers for variable in each.env},
    )


def _restricting(direction: str, policies: Iterable[Object]) -> tuple[str, ...]:
    """Return the names of the policies that restrict a direction; without types a policy restricts ingress."""
    return tuple(
        each["metadata"]["name"] for each in policies if direction in (each["spec"].get("policyTypes") or ("Ingress",))
    )


def _hot_reload(configuration: Object) -> tuple[str, bool] | None:
    features = (configuration.get("spec") or {}).get("features") or ()
    states = [bool(each.get("enabled")) for each in features if each.get("name") == _HOT_RELOAD]
    return (configuration["metadata"]["name"], states[-1]) if states else None
