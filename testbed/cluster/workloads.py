"""What runs in the cluster for tests: Redis, and the order application with its injected sidecar."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from testbed import images
from testbed.cluster.cluster import PATIENCE_S, Cluster
from testbed.redis import Reply, ask
from toolchain.errors import TestbedError
from toolchain.oci import LOCAL

Manifest = dict[str, Any]
_REDIS_PORT = 6379
_APP_PORT = 3000
_SIDECAR = "daprd"
_ANSWER_WITHIN_S = 5.0


@dataclass(frozen=True)
class RedisInCluster:
    """One Redis with a password, behind a Service of its name."""

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
        """All that it consists of."""
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
        """Run it, and return when it answers."""
        await self.cluster.import_image(images.redis().file)
        await apply(self.cluster, self.namespace, *self.manifests)
        await ready(self.cluster, self.namespace, self.name)
        return self

    async def ask(self, *command: str) -> Reply:
        """The reply to one command, asked from this machine."""
        return await ask(
            _REDIS_PORT, self.password, *command, host=await _address(self.cluster, self.namespace, self.name)
        )


@dataclass
class OrderApp:
    """The order application, to which Dapr gives a sidecar."""

    cluster: Cluster
    namespace: str
    name: str = "order-app"
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Further ones of its pods, or others in place of those that it has."""
    replicas: int = 1
    url: str = ""
    """Where this machine reaches it, once it has been started."""

    @property
    def manifests(self) -> list[Manifest]:
        """All that it consists of; its sidecar comes by itself."""
        annotations = {
            "dapr.io/enabled": "true",
            "dapr.io/app-id": self.name,
            "dapr.io/app-port": str(_APP_PORT),
            **self.annotations,
        }
        container = {
            "image": f"{LOCAL}/order-app:1",
            "args": [f"--port={_APP_PORT}", "--host=0.0.0.0", "--dapr-port=3500"],
            "ports": [{"containerPort": _APP_PORT}],
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": _APP_PORT}, "periodSeconds": 1},
        }
        deployment = _deployment(self.name, container, annotations, self.replicas)
        return [deployment, _service(self.name, _APP_PORT)]

    async def start(self) -> "OrderApp":
        """Run it, and return when it and its sidecar are ready."""
        await self.cluster.import_image(images.order_app().file)
        await apply(self.cluster, self.namespace, *self.manifests)
        await self.settled()
        self.url = f"http://{await _address(self.cluster, self.namespace, self.name)}:{_APP_PORT}"
        return self

    async def restart(self) -> None:
        """Put new pods in place of all that it has."""
        where = (f"deployment/{self.name}", f"--namespace={self.namespace}")
        await self.cluster.kubectl("rollout", "restart", *where)
        await self.settled()

    async def settled(self) -> None:
        """Return when all its pods are ready; one without a sidecar is an error, for Dapr's webhook fails open."""
        await ready(self.cluster, self.namespace, self.name)
        bare = [pod["metadata"]["name"] for pod in await self.pods() if not sidecar_image(pod)]
        if bare:
            raise TestbedError(f"Dapr gave no sidecar to {', '.join(bare)}: could the API server reach its injector?")

    async def orders(self, number: str) -> None:
        """Order something, as a customer would."""
        order = {"data": {"orderId": number}}
        async with _customer() as customer, customer.post(f"{self.url}/neworder", json=order) as answer:
            if answer.status != 200:
                raise TestbedError(f"{self.name} answered {answer.status} to a new order: {await answer.text()}")

    async def sees(self, number: str) -> bool:
        """Whether it finds that order now; while a store is changed or a pod replaced, it may not answer at all."""
        try:
            async with _customer() as customer, customer.get(f"{self.url}/order") as answer:
                return answer.status == 200 and (await answer.json())["orderId"] == number
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def pods(self) -> list[Manifest]:
        """Its pods as they are now, without those that are ending."""
        where = ("pods", f"--namespace={self.namespace}", f"--selector=app={self.name}", "--output=json")
        found: list[Manifest] = json.loads(await self.cluster.kubectl("get", *where))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def sidecar_image(pod: Manifest) -> str:
    """The image of a pod's sidecar; empty if it has none."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    return next((each["image"] for each in containers if each["name"] == _SIDECAR), "")


def state_store(redis: RedisInCluster) -> Manifest:
    """The Component by which the order application stores in that Redis."""
    password = {"name": redis.name, "key": "password"}
    metadata = [{"name": "redisHost", "value": redis.address}, {"name": "redisPassword", "secretKeyRef": password}]
    spec = {"type": "state.redis", "version": "v1", "metadata": metadata}
    return manifest("dapr.io/v1alpha1", "Component", "statestore", spec=spec)


async def apply(cluster: Cluster, namespace: str, *manifests: Manifest) -> None:
    """Apply manifests as a person would."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    await cluster.kubectl("apply", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(listed))


async def ready(cluster: Cluster, namespace: str, deployment: str) -> None:
    """Return when all pods of a deployment are ready."""
    where = (f"deployment/{deployment}", f"--namespace={namespace}")
    await cluster.kubectl("rollout", "status", *where, f"--timeout={PATIENCE_S}s")


def manifest(api_version: str, kind: str, name: str, **content: Any) -> Manifest:
    """An object of that name; where it lives is said when it is applied."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}


def _customer() -> aiohttp.ClientSession:
    """One on a connection of its own: a kept one would stay with a pod that is replaced."""
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
    at_once = {"rollingUpdate": {"maxSurge": "100%"}}
    spec = {"replicas": replicas, "strategy": at_once, "selector": {"matchLabels": labels}, "template": template}
    return manifest("apps/v1", "Deployment", name, spec=spec)


def _service(name: str, port: int) -> Manifest:
    return manifest("v1", "Service", name, spec={"selector": {"app": name}, "ports": [{"port": port}]})
