"""A cluster without kubelets for tests of the whole platform: real controllers, an injector, replayed sidecars.

``Kubelet`` reports pods as running, or as failing, and gives each of them the address of a replayed sidecar, which has
loaded what the API server holds at that moment. ``Bed.agent`` assembles the platform as the agent's home does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sized
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec

from governor.agent.platform import Progress, Superseded
from governor.agent.platforms.kubernetes.hold import NamespaceHold
from governor.agent.platforms.kubernetes.platform import KubernetesPlatform, Parts
from governor.agent.platforms.kubernetes.preflight.preflight import ClusterPreflight
from governor.agent.platforms.kubernetes.preflight.throw_away import Cluster
from governor.agent.platforms.kubernetes.proof.probes import Probes
from governor.agent.platforms.kubernetes.proof.proofs import ProofBook
from governor.agent.platforms.kubernetes.proof.sidecar_reader import Route, SidecarReader, open_session
from governor.agent.platforms.kubernetes.resources.applied import AppliedResources
from governor.agent.platforms.kubernetes.restarts.control_plane import PLACEMENT, SERVICES
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.visibility.announcer import Announcer
from governor.agent.platforms.kubernetes.visibility.status_objects import StatusObjects
from governor.agent.platforms.kubernetes.workloads.observer import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Observer,
)
from governor.agent.platforms.kubernetes.workloads.views import PREFLIGHT, RESTART
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.redaction import Redactor
from governor.agent.state.agent_state import Blobs
from governor.agent.state.secret_blobs import SecretBlobs
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Evidence, Instances, ResourceReport, WorkloadRef, WorkloadReport
from governor.errors import GovernorError
from governor.kube.client import Client
from governor.kube.controller.events import EventRecorder
from governor.kube.objects import ApiResource, Object
from governor.kube.reflector import Reflector, View
from governor.process.clock import SystemClock
from governor.process.telemetry.metrics import program_registry
from governor.values.trees import Manifest
from testbed.sidecar_replay import ReplayedSidecar, SidecarReplay, address
from testbed.waiting import until
from tests.contract.agent.apply.bed import COMPONENTS, CONFIGURATIONS, KEY, NAMESPACES
from tests.contract.agent.bed import permitted, write_status
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.reflector.bed import FAST, running

ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
BUDGETS = ApiResource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)
RESILIENCIES = ApiResource("dapr.io", "v1alpha1", "Resiliency", "resiliencies", namespaced=True)
DAPR_NAMESPACE = "dapr-system"
IMAGE = "daprd:1.18.3"
CONFIGURATION = "dapr.io/config"
STARTED = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
"""A node whose clock is wrong: no proof may depend on it."""
_POLL_S = 0.02
_numbers = count(1)


class FastClock(SystemClock):
    """A clock that moves only while its users sleep, which takes a moment only."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0
        self.is_stopped = False
        """Whether only ``elapse`` moves it."""

    def monotonic(self) -> float:
        """Return how long was slept."""
        return self._elapsed_s

    def elapse(self, seconds: float) -> None:
        """Move the clock."""
        self._elapsed_s += seconds

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run."""
        self._elapsed_s += 0.0 if self.is_stopped else seconds
        await asyncio.sleep(_POLL_S)


class Injector:
    """Adds daprd to pods that ask for it, as Dapr's injector does; it may be told not to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.skipped: set[str] = set()
        """App ids whose pods get no sidecar."""
        self.without_metrics: set[str] = set()
        self.skipped_preflights = False
        """Whether throw-away pods get no sidecar."""

    def patch(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the patch of a pod."""
        annotations = request["object"]["metadata"].get("annotations", {})
        app_id = annotations.get("dapr.io/app-id", "")
        if annotations.get("dapr.io/enabled") != "true" or app_id in self.skipped:
            return []
        if self.skipped_preflights and PREFLIGHT in request["object"]["metadata"].get("labels", {}):
            return []
        port = str(self.port)
        metrics = [] if app_id in self.without_metrics else ["--enable-metrics", "--metrics-port", port]
        named = annotations.get(CONFIGURATION)
        configuration = ["--config", named] if named else []
        arguments = ["--app-id", app_id, "--dapr-public-port", port, *metrics, *configuration]
        daprd = {"name": "daprd", "image": IMAGE, "args": arguments}
        label = {"op": "add", "path": "/metadata/labels/dapr.io~1sidecar-injected", "value": "true"}
        return [{"op": "add", "path": "/spec/containers/-", "value": daprd}, label]


class Kubelet:
    """Reports the pods of one namespace as running, each with a replayed sidecar."""

    def __init__(self, client: Client, namespace: str, replay: SidecarReplay, recorded: Mapping[str, bytes]) -> None:
        self._client = client
        self._namespace = namespace
        self._replay = replay
        self._recorded = recorded
        self._seen: set[str] = set()
        self._is_pending = False
        self._changed = asyncio.Event()
        self.sidecars: dict[str, ReplayedSidecar] = {}
        """The sidecars by the names of their pods."""
        self.exits: dict[str, str] = {}
        """App ids whose sidecars exit after a restart by the agent, with the message of the exit."""
        self.preflight: Object | None = None
        """The status of throw-away pods; None if they run."""
        self.preflight_exit = ""
        """How throw-away sidecars exit; ``{}`` stands for the name of a Component that only they load."""
        self.healthy = True
        """Whether sidecars are healthy when they start."""
        self.features = ["HotReload"]
        """What sidecars list as enabled when they start."""
        self.actors: set[str] = set()
        """App ids whose sidecars host actors."""

    @property
    def pending(self) -> bool:
        """Whether pods do not start."""
        return self._is_pending

    @pending.setter
    def pending(self, is_pending: bool) -> None:
        self._is_pending = is_pending
        self._changed.set()

    async def run(self) -> None:
        """Start pods until cancelled."""
        pods = Reflector(
            self._client,
            PODS,
            View,
            clock=SystemClock(),
            on_event=lambda _: self._changed.set(),
            namespace=self._namespace,
            metadata_only=True,
            backoff=FAST,
        )
        async with running(pods.run()):
            while await self._changed.wait():
                self._changed.clear()
                try:
                    await self._start_all()
                except GovernorError:  # the API server may be down
                    await asyncio.sleep(_POLL_S)
                    self._changed.set()

    async def _start_all(self) -> None:
        async for pod in self._client.list(PODS, self._namespace):
            metadata = pod["metadata"]
            if self.pending or metadata["uid"] in self._seen:
                continue
            await write_status(self._client, self._namespace, "Pod", metadata["name"], await self._status(pod))
            self._seen.add(metadata["uid"])

    async def _status(self, pod: Object) -> Object:
        app_id = pod["metadata"].get("annotations", {}).get("dapr.io/app-id", "")
        names = [each["name"] for each in pod["spec"]["containers"]]
        if PREFLIGHT in pod["metadata"]["labels"] and (self.preflight_exit or self.preflight):
            return self.preflight or await self._ended(app_id)
        statuses = [container(name) for name in names]
        if "daprd" not in names:
            # An application waits for its sidecar; Dapr's own services have none.
            return pod_status(statuses, ready=not app_id)
        if app_id in self.exits and annotation(pod):
            return pod_status([crashing(self.exits[app_id])], ready=False)
        ip = address(next(_numbers))
        self._replay.sidecars[ip] = self.sidecars[pod["metadata"]["name"]] = await self._sidecar(app_id)
        self.sidecars[pod["metadata"]["name"]].metadata["enabledFeatures"] += await self._features(pod)
        return pod_status(statuses, ip)

    async def _features(self, pod: Object) -> list[str]:
        """Return the features of the Configuration that a pod names."""
        name = pod["metadata"].get("annotations", {}).get(CONFIGURATION)
        if not name:
            return []
        found = await self._client.get(CONFIGURATIONS, name, self._namespace)
        return [each["name"] for each in found["spec"].get("features", ())]

    async def _ended(self, app_id: str) -> Object:
        """Return the status of a throw-away pod whose sidecar has exited."""
        found = [each async for each in self._client.list(COMPONENTS, self._namespace)]
        names = [each["metadata"]["name"] for each in found if each.get("scopes") == [app_id]]
        message = self.preflight_exit.format(*names)
        state = {"terminated": {"exitCode": 1, "reason": "Error", "message": message}}
        return {"phase": "Failed", "containerStatuses": [container("daprd", ready=False, state=state)]}

    async def _sidecar(self, app_id: str) -> ReplayedSidecar:
        sidecar = ReplayedSidecar(self._recorded, app_id)
        sidecar.healthy = self.healthy
        sidecar.metadata["enabledFeatures"] = list(self.features)
        sidecar.metadata["actors"] = [{"type": "cart", "count": 1}] if app_id in self.actors else []
        async for each in self._client.list(COMPONENTS, self._namespace):
            if app_id in each.get("scopes", [app_id]):
                sidecar.load(each["metadata"]["name"], each["spec"]["type"])
        found = [each async for each in self._client.list(RESILIENCIES, self._namespace)]
        names = [each["metadata"]["name"] for each in found if app_id in each.get("scopes", [app_id])]
        sidecar.metadata["resiliencies"] = [{"name": name} for name in names]
        return sidecar


def container(name: str, **fields: Any) -> Object:
    """Return the status of a container that runs."""
    started = {"containerID": f"test://{next(_numbers)}", "started": True, "state": STARTED}
    return {"name": name, "ready": True, "restartCount": 0, "image": IMAGE, "imageID": "", **started, **fields}


def crashing(message: str, code: int = 1, reason: str = "Error") -> Object:
    """Return the status of a sidecar that exits when it starts."""
    ended = {"exitCode": code, "reason": reason, "message": message}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    return container("daprd", ready=False, restartCount=2, state=waiting, lastState={"terminated": ended})


def pod_status(containers: list[Object], ip: str = "", *, ready: bool = True) -> Object:
    """Return the status of a pod."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    ips = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
    return {"phase": "Running", "conditions": conditions, "containerStatuses": containers, **ips}


class Agent:
    """One process of an agent: the platform with what it is made of. ``client`` records its requests."""

    def __init__(
        self,
        platform: KubernetesPlatform,
        client: RecordingClient,
        observer: Observer,
        applied: AppliedResources,
        probes: Probes,
        woken: Sized,
    ) -> None:
        self.platform = platform
        self.client = client
        self.observer = observer
        self.applied = applied
        self.probes = probes
        self.woken = woken
        """One item for each time that the watch of the runtime's resources has called for a check."""
        self.progress: list[Findings] = []

    def pods(self, name: str) -> list[Pod]:
        """Return the pod of a name as observed, if it is."""
        return [pod for each in self.observer.workloads() for pod in each.pods if pod.name == name]

    async def converge(
        self, delivery: Delivery, progress: Progress | None = None, superseded: Superseded = lambda: False
    ) -> Findings:
        """Converge; all progress is recorded."""

        def record(found: Findings) -> None:
            self.progress.append(found)
            if progress:
                progress(found)

        received = Evidence("agent", datetime.now(UTC), "received")
        return await self.platform.converge(delivery, received, record, superseded)


class Bed:
    """The cluster of one test: a namespace of its own with a kubelet."""

    def __init__(
        self, new_client: Callable[[], RecordingClient], namespace: str, kubelet: Kubelet, injector: Injector
    ) -> None:
        self.new_client = new_client
        self.client = new_client()
        self.namespace = namespace
        self.kubelet = kubelet
        self.injector = injector
        self.clock = FastClock()
        self._sequences = count(1)

    @asynccontextmanager
    async def agent(
        self,
        blobs: Blobs,
        *,
        client: RecordingClient | None = None,
        dapr_namespace: str = DAPR_NAMESPACE,
        adopt: Collection[str] = (),
        runtime: str = "",
        state_namespace: str = "",
    ) -> AsyncIterator[Agent]:
        """Run the platform, from what is stored; runtime and state namespace are named as the bed's namespace."""
        client, redactor, proofs = client or self.new_client(), Redactor(), ProofBook(blobs)
        woken: list[None] = []
        await proofs.restore()
        async with open_session() as session:
            observer = Observer(client, [self.namespace], clock=SystemClock(), on_change=lambda: None)
            reader = SidecarReader(session, client, Route.DIRECT)
            applied = AppliedResources(
                client,
                runtime or self.namespace,
                state_namespace or self.namespace,
                [self.namespace],
                redactor,
                adopt=adopt,
                clock=self.clock,
                claimant=blobs if isinstance(blobs, SecretBlobs) else None,
            )
            with suppress(GovernorError):  # it is claimed with the first change, then
                await applied.take_claim()
            parts = Parts(
                (self.namespace,),
                KEY,
                applied,
                applied.watch(SystemClock(), lambda: woken.append(None)),
                observer,
                Probes(client, reader, redactor, self.clock),
                Restarter(client, self.clock, applied.permit_write, dapr_namespace=dapr_namespace),
                proofs,
                _announcer(client, self.namespace, applied, observer, redactor),
                redactor,
                NamespaceHold(self.new_client(), self.namespace, SystemClock(), on_change=lambda: None),
                ClusterPreflight(self._cluster(client, observer, reader, applied), redactor),
            )
            platform = KubernetesPlatform(parts, self.clock)
            async with running(platform.run()):
                await observer.synced()
                yield Agent(platform, client, observer, applied, parts.probes, woken)

    def _cluster(self, client: Client, observer: Observer, reader: SidecarReader, applied: AppliedResources) -> Cluster:
        return Cluster(client, observer, reader, applied.permit_write, self.clock, self.namespace, (self.namespace,))

    def delivery(self, *resources: Manifest, removals: tuple[ResourceRef, ...] = (), **policy: Any) -> Delivery:
        """Return the next delivery, without a preflight; ``policy`` are fields of its ApplyPolicy."""
        sequence = next(self._sequences)
        apply = msgspec.convert({"preflight": "off", "verifyWindowSeconds": 120, **policy}, ApplyPolicy)
        return Delivery("r1", sequence, 1, sequence, f"sha256:{sequence}", resources, removals, apply)

    def ref(self, name: str, kind: str = "Deployment") -> WorkloadRef:
        """Return the reference to a workload."""
        return WorkloadRef(self.namespace, kind, name)

    async def deploy(self, name: str, replicas: int = 1, kind: str = "Deployment", **spec: Any) -> None:
        """Create a workload with Dapr, whose app id is its name, and wait until its pods run."""
        await self.create(name, replicas, kind, **spec)
        await self.until_pods(name, replicas)

    async def create(self, name: str, replicas: int = 1, kind: str = "Deployment", **spec: Any) -> None:
        """Create a workload with Dapr, whose app id is its name."""
        resource = {each.kind: each for each in (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS)}[kind]
        await self.client.create(resource, workload(kind, name, self.namespace, replicas, **spec), manager="tests")

    async def pods(self, name: str) -> dict[str, Object]:
        """Return the pods of a workload by name."""
        found = self.client.list(PODS, self.namespace, labels=f"app={name}")
        return {each["metadata"]["name"]: each async for each in found}

    async def until_pods(self, name: str, number: int, *, digest: str | None = None) -> dict[str, Object]:
        """Wait until a workload has exactly these many pods, all ready, and with this annotation; return them."""

        async def ready() -> dict[str, Object]:
            pods = await self.pods(name)
            is_ready = all(_is_ready(each) and digest in (None, annotation(each)) for each in pods.values())
            return pods if is_ready and len(pods) == number else {}

        return await until(ready) if number else {}

    async def until_created(self, name: str, number: int) -> dict[str, Object]:
        """Wait until a workload has these many pods, in whatever state; return them."""

        async def created() -> dict[str, Object]:
            pods = await self.pods(name)
            return pods if len(pods) == number else {}

        return await until(created)

    async def scale(self, name: str, replicas: int) -> None:
        """Change the number of replicas of a Deployment."""
        await self.client.patch(DEPLOYMENTS, name, self.namespace, {"spec": {"replicas": replicas}}, manager="tests")

    async def report(self, pod: str, status: Object) -> None:
        """Report the status of a pod in place of the kubelet."""
        await write_status(self.client, self.namespace, "Pod", pod, status)

    async def uids(self, *names: str) -> set[str]:
        """Return the uids of the pods of some workloads."""
        return {each["metadata"]["uid"] for name in names for each in (await self.pods(name)).values()}

    async def deployment(self, name: str) -> Object:
        """Return a Deployment."""
        return await self.client.get(DEPLOYMENTS, name, self.namespace)

    async def restarts(self, name: str) -> int:
        """Return how often the spec of a Deployment was changed since it was created."""
        return int((await self.deployment(name))["metadata"]["generation"]) - 1

    async def digest(self, name: str) -> str:
        """Return the agent's annotation in the template of a Deployment."""
        return annotation((await self.deployment(name))["spec"]["template"])

    def sidecars(self, *pods: str) -> list[ReplayedSidecar]:
        """Return the sidecars of some pods."""
        return [self.kubelet.sidecars[name] for name in pods]


def _announcer(
    client: Client, namespace: str, applied: AppliedResources, observer: Observer, redactor: Redactor
) -> Announcer:
    """Return an announcer that is not running: what it would write is the subject of other tests."""
    clock = SystemClock()
    recorder = EventRecorder(client, "tests", clock, program_registry("tests", "0"))
    statuses = StatusObjects(client, namespace, namespace, [namespace], clock, permitted)
    return Announcer(recorder, statuses, redactor, clock, uids=lambda: applied.uids, workloads=observer.workloads)


def workload(kind: str, name: str, namespace: str, replicas: int = 1, **spec: Any) -> Object:
    """Return a workload whose pods ask for a sidecar."""
    labels = {"app": name}
    annotations = {"dapr.io/enabled": "true", "dapr.io/app-id": name}
    pods = {"containers": [{"name": "app", "image": "app"}], "terminationGracePeriodSeconds": 0}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pods}
    described = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": described}


async def create_budget(bed: Bed, name: str, available: int, *, healthy: int | None = None) -> None:
    """Create a budget for the pods of a workload, and wait until its controller has counted the healthy ones."""
    spec = {"minAvailable": available, "selector": {"matchLabels": {"app": name}}}
    metadata = {"name": name, "namespace": bed.namespace}
    manifest = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}
    await bed.client.create(BUDGETS, manifest, manager="tests")

    async def is_computed() -> bool:
        status = (await bed.client.get(BUDGETS, name, bed.namespace))["status"]
        is_counted = bool(status.get("observedGeneration")) and status["desiredHealthy"] == available
        return is_counted and bool(status["currentHealthy"] >= (available if healthy is None else healthy))

    await until(is_computed)


def annotation(manifest: Object) -> str:
    """Return the agent's annotation of a pod or a template."""
    return str(manifest["metadata"].get("annotations", {}).get(RESTART, ""))


def _is_ready(pod: Object) -> bool:
    found = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found)


def resiliency(seconds: int, *scopes: str) -> Manifest:
    """Return a resource that a sidecar loads only when it starts."""
    spec = {"policies": {"timeouts": {"short": f"{seconds}s"}}, "targets": {}}
    scoped = {"scopes": list(scopes)} if scopes else {}
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Resiliency",
        "metadata": {"name": "limits"},
        "spec": spec,
        **scoped,
    }


async def next_second() -> None:
    """Wait until the clock of the API server shows another second: it stores no fractions."""
    now = datetime.now(UTC).replace(microsecond=0)

    async def is_later() -> bool:
        return datetime.now(UTC).replace(microsecond=0) > now

    await until(is_later)


def counts(found: Findings) -> dict[str, Instances]:
    """Return the counts of the instances by workload."""
    return {each.workload.name: each.instances for each in found.workloads}


def texts(found: Findings) -> str:
    """Return all evidence."""
    return texts_of(*found.resources, *found.workloads)


def texts_of(*reports: ResourceReport | WorkloadReport) -> str:
    """Return the evidence in some reports."""
    return "\n".join(item.text for each in reports for item in each.all_evidence)


def each_step(*steps: Callable[[], None]) -> Progress:
    """Return a progress that does the next of some steps each time."""
    left = iter(steps)

    def progress(_: Findings) -> None:
        next(left, lambda: None)()

    return progress


async def create_namespace(client: Client, name: str = "") -> str:
    """Create a namespace, wait until pods can be created in it, and return its name."""
    metadata = {"name": name} if name else {"generateName": "team-", "name": ""}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    created = str((await client.create(NAMESPACES, manifest, manager="tests"))["metadata"]["name"])
    await until_usable(client, created)
    return created


async def until_usable(client: Client, namespace: str) -> None:
    """Wait for the service account without which no pod can be created."""

    async def has_account() -> bool:
        return bool([each async for each in client.list(ACCOUNTS, namespace)])

    await until(has_account)


async def install_services(
    client: Client, namespace: str, *, image: str = IMAGE, watch_interval: str = "0", placement: bool = True
) -> None:
    """Create workloads like the services of Dapr's control plane, and wait until they are available."""
    for name in (*SERVICES, *((PLACEMENT,) if placement else ())):
        resource = STATEFUL_SETS if name == PLACEMENT else DEPLOYMENTS
        manifest = workload(resource.kind, name, namespace)
        manifest["spec"]["template"]["spec"]["containers"][0] |= {
            "args": ["--watch-interval", watch_interval],
            "env": [{"name": "SIDECAR_IMAGE", "value": image}],
        }
        manifest["spec"] |= {"serviceName": name} if name == PLACEMENT else {}
        manifest["metadata"]["labels"] = {"app": name}
        del manifest["spec"]["template"]["metadata"]["annotations"]
        await client.create(resource, manifest, manager="tests")

    async def available() -> bool:
        found = [each for kind in (DEPLOYMENTS, STATEFUL_SETS) async for each in client.list(kind, namespace)]
        return all(each.get("status", {}).get("availableReplicas") for each in found)

    await until(available)
