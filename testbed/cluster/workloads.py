"""Workloads that tests run in the cluster: Redis, and the order application with its injected sidecar."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from testbed import images
from testbed.cluster.cluster import ROLLOUT_TIMEOUT_S, Cluster
from testbed.redis import Reply, execute
from toolchain.errors import TestbedError
from toolchain.oci import LOCAL

Manifest = dict[str, Any]
_REDIS_PORT = 6379
_APP_PORT = 3000
_SIDECAR = "daprd"
_PUBLIC_PORT = 3501
_ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True)
class RedisInCluster:
    """A Redis with a password, behind a Service of the same name."""

    cluster: Cluster
    namespace: str
    name: str
    password: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    @property
    def address(self) -> str:
        """Host and port, as pods reach it."""
        return f"{self.name}.{self.namespace}.svc.cluster.local:{_REDIS_PORT}"

    @property
    def manifests(self) -> list[Manifest]:
        """The Secret, Deployment and Service."""
        arguments = ["--protected-mode", "no", "--save", "", "--requirepass", "$(PASSWORD)"]
        secret = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": self.name, "key": "password"}}}
        container = {
            "image": f"{LOCAL}/redis:1",
            "args": arguments,
            "env": [secret],
            "ports": [{"containerPort": _REDIS_PORT}],
            "readinessProbe": {"tcpSocket": {"port": _REDIS_PORT}, "periodSeconds": 1},
        }
        password = manifest("v1", "Secret", self.name, stringData={"password": self.password})
        return [password, _deployment(self.name, container), _service(self.name, _REDIS_PORT)]

    async def start(self) -> "RedisInCluster":
        """Apply the manifests, and return when Redis is ready."""
        await self.cluster.import_image(images.redis().file)
        await apply(self.cluster, self.namespace, *self.manifests)
        await wait_rollout(self.cluster, self.namespace, self.name)
        return self

    async def execute(self, *command: str) -> Reply:
        """Send a command from this machine and return its reply."""
        return await execute(
            _REDIS_PORT, self.password, *command, host=await _address(self.cluster, self.namespace, self.name)
        )


@dataclass
class IdleApp:
    """A Deployment that does nothing, into whose pods Dapr injects a sidecar; its app id is its name."""

    cluster: Cluster
    namespace: str
    name: str = "idle-app"
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Added to the pods' annotations; these win over the defaults."""
    replicas: int = 1

    @property
    def manifests(self) -> list[Manifest]:
        """The Deployment; Dapr adds the sidecar."""
        return [self._with_sidecar({"image": f"{LOCAL}/pause:1"})]

    def _with_sidecar(self, container: Manifest, **annotations: str) -> Manifest:
        dapr = {
            "dapr.io/enabled": "true",
            "dapr.io/app-id": self.name,
            "dapr.io/sidecar-readiness-probe-delay-seconds": "1",
            "dapr.io/sidecar-readiness-probe-period-seconds": "1",
            **annotations,
            **self.annotations,
        }
        return _deployment(self.name, container, dapr, self.replicas)

    async def start(self) -> Self:
        """Apply the manifests, and return when the application and its sidecar are ready."""
        await apply(self.cluster, self.namespace, *self.manifests)
        await self.wait_ready()
        return self

    async def restart(self) -> None:
        """Replace all pods."""
        where = (f"deployment/{self.name}", f"--namespace={self.namespace}")
        await self.cluster.kubectl("rollout", "restart", *where)
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Return when all pods are ready; raise if one has no sidecar, since Dapr's webhook fails open."""
        await wait_rollout(self.cluster, self.namespace, self.name)
        missing = [pod["metadata"]["name"] for pod in await self.pods() if not sidecar_image(pod)]
        if missing:
            names = ", ".join(missing)
            raise TestbedError(f"Dapr injected no sidecar into {names}; check that the API server reaches its injector")

    async def pods(self) -> list[Manifest]:
        """Return the pods that are not terminating."""
        where = ("pods", f"--namespace={self.namespace}", f"--selector=app={self.name}", "--output=json")
        found: list[Manifest] = json.loads(await self.cluster.kubectl("get", *where))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


@dataclass
class OrderApp(IdleApp):
    """The order application behind a Service, with an injected sidecar."""

    name: str = "order-app"
    url: str = ""
    """The Service's URL, set by ``deploy``."""
    drain_s: int = 0
    """How long a pod that is deleted continues to serve: kube-proxy may forward to it for a while."""

    @property
    def manifests(self) -> list[Manifest]:
        """The Deployment and Service; Dapr adds the sidecar."""
        container: Manifest = {
            "image": f"{LOCAL}/order-app:1",
            "args": [f"--port={_APP_PORT}", "--host=0.0.0.0", "--dapr-port=3500"],
            "ports": [{"containerPort": _APP_PORT}],
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": _APP_PORT}, "periodSeconds": 1},
        }
        annotations = {"dapr.io/app-port": str(_APP_PORT)}
        if self.drain_s:
            container["lifecycle"] = {"preStop": {"sleep": {"seconds": self.drain_s}}}
            annotations["dapr.io/block-shutdown-duration"] = f"{self.drain_s}s"
        deployment = self._with_sidecar(container, **annotations)
        deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] += 2 * self.drain_s
        return [deployment, _service(self.name, _APP_PORT)]

    async def start(self) -> Self:
        """Apply the manifests, and return when the application and its sidecar are ready."""
        await self.deploy()
        await self.wait_ready()
        return self

    async def deploy(self) -> None:
        """Apply the manifests, and return when the application is ready, with or without a sidecar."""
        await self.cluster.import_image(images.order_app().file)
        await apply(self.cluster, self.namespace, *self.manifests)
        self.url = f"http://{await _address(self.cluster, self.namespace, self.name)}:{_APP_PORT}"
        await wait_rollout(self.cluster, self.namespace, self.name)

    async def place_order(self, number: str) -> None:
        """Post a new order to the first pod, without the Service (see ``orders``)."""
        order = {"data": {"orderId": number}}
        url = _pod_url((await self.pods())[0], "neworder")
        async with _session() as session, session.post(url, json=order) as response:
            if response.status != 200:
                raise TestbedError(f"{self.name} answered a new order with {response.status}: {await response.text()}")

    async def orders(self) -> list[str]:
        """Return the order that each pod returns, without the Service.

        kube-proxy may forward to a replaced pod for a second: it writes its rules at most that often. The connection
        is refused, because the application stops listening as soon as its pod is deleted.
        """
        found = []
        for pod in await self.pods():
            async with _session() as session, session.get(_pod_url(pod, "order")) as response:
                response.raise_for_status()
                found.append((await response.json())["orderId"])
        return found

    async def has_order(self, number: str) -> bool:
        """Return whether this is the stored order in each pod; False while one of them does not respond."""
        try:
            return set(await self.orders()) == {number}
        except (aiohttp.ClientError, TimeoutError):
            return False


def _pod_url(pod: Manifest, path: str) -> str:
    # A pod that has no address yet cannot be reached: aiohttp reports an invalid URL, which is a ClientError.
    return f"http://{pod['status'].get('podIP', '')}:{_APP_PORT}/{path}"


def sidecar_image(pod: Manifest) -> str:
    """Return the image of a pod's sidecar, or ``""``."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    return next((each["image"] for each in containers if each["name"] == _SIDECAR), "")


async def metadata_of(pod: Manifest) -> dict[str, Any]:
    """Return what the sidecar of a pod shows on its public port."""
    url = f"http://{pod['status']['podIP']}:{_PUBLIC_PORT}/v1.0/metadata"
    async with _session() as session, session.get(url) as response:
        response.raise_for_status()
        found: dict[str, Any] = await response.json()
        return found


def state_store(redis: RedisInCluster) -> Manifest:
    """Return the Component through which the order application stores in this Redis."""
    password = {"name": redis.name, "key": "password"}
    metadata = [{"name": "redisHost", "value": redis.address}, {"name": "redisPassword", "secretKeyRef": password}]
    spec = {"type": "state.redis", "version": "v1", "metadata": metadata}
    return manifest("dapr.io/v1alpha1", "Component", "statestore", spec=spec)


async def apply(cluster: Cluster, namespace: str, *manifests: Manifest) -> None:
    """Apply manifests with kubectl."""
    content = {"apiVersion": "v1", "kind": "List", "items": manifests}
    await cluster.kubectl("apply", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(content))


async def wait_rollout(cluster: Cluster, namespace: str, deployment: str) -> None:
    """Wait until a Deployment's rollout is complete."""
    where = (f"deployment/{deployment}", f"--namespace={namespace}")
    await cluster.kubectl("rollout", "status", *where, f"--timeout={ROLLOUT_TIMEOUT_S}s")


def manifest(api_version: str, kind: str, name: str, **content: Any) -> Manifest:
    """Return a manifest without a namespace, which is given when it is applied."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}


def _session() -> aiohttp.ClientSession:
    """Return a new session: a kept connection would stay with a pod that is replaced."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S))


async def _address(cluster: Cluster, namespace: str, service: str) -> str:
    where = ("service", service, f"--namespace={namespace}")
    return await cluster.kubectl("get", *where, "--output=jsonpath={.spec.clusterIP}")


def _deployment(
    name: str, container: Manifest, annotations: Mapping[str, str] | None = None, replicas: int = 1
) -> Manifest:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": dict(annotations or {})},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": name, **container}]},
    }
    strategy = {"rollingUpdate": {"maxSurge": "100%"}}
    spec = {"replicas": replicas, "strategy": strategy, "selector": {"matchLabels": labels}, "template": template}
    return manifest("apps/v1", "Deployment", name, spec=spec)


def _service(name: str, port: int) -> Manifest:
    return manifest("v1", "Service", name, spec={"selector": {"app": name}, "ports": [{"port": port}]})
