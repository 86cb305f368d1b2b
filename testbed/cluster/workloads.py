"""What runs in the cluster for tests: Redis, and the order application with its injected sidecar."""

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from testbed import images
from testbed.cluster.cluster import Cluster
from testbed.redis import Reply, ask

Manifest = dict[str, Any]
_REDIS_PORT = 6379
_APP_PORT = 3000


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

    async def start(self) -> "RedisInCluster":
        """Run it, and return when it answers."""
        await self.cluster.import_image(images.redis().file)
        arguments = ["--protected-mode", "no", "--save", "", "--requirepass", "$(PASSWORD)"]
        secret = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": self.name, "key": "password"}}}
        container = {
            "image": "local.test/redis:1",
            "args": arguments,
            "env": [secret],
            "ports": [{"containerPort": _REDIS_PORT}],
            "readinessProbe": {"tcpSocket": {"port": _REDIS_PORT}, "periodSeconds": 1},
        }
        password = _manifest("v1", "Secret", self.name, stringData={"password": self.password})
        workload = [password, _deployment(self.name, container), _service(self.name, _REDIS_PORT)]
        await apply(self.cluster, self.namespace, *workload)
        await ready(self.cluster, self.namespace, self.name)
        return self

    async def ask(self, *command: str) -> Reply:
        """The reply to one command, asked from this machine."""
        return await ask(_REDIS_PORT, self.password, *command, host=await self._cluster_ip())

    async def _cluster_ip(self) -> str:
        where = ("service", self.name, f"--namespace={self.namespace}")
        return await self.cluster.kubectl("get", *where, "--output=jsonpath={.spec.clusterIP}")


@dataclass(frozen=True)
class OrderApp:
    """The order application, which Dapr gives a sidecar."""

    cluster: Cluster
    namespace: str
    name: str = "order-app"
    annotations: tuple[tuple[str, str], ...] = ()

    async def start(self) -> "OrderApp":
        """Run it, and return when it and its sidecar are ready."""
        await self.cluster.import_image(images.order_app().file)
        annotations = {
            "dapr.io/enabled": "true",
            "dapr.io/app-id": self.name,
            "dapr.io/app-port": str(_APP_PORT),
            **dict(self.annotations),
        }
        container = {"image": "local.test/order-app:1", "ports": [{"containerPort": _APP_PORT}]}
        workload = [_deployment(self.name, container, annotations), _service(self.name, _APP_PORT)]
        await apply(self.cluster, self.namespace, *workload)
        await ready(self.cluster, self.namespace, self.name)
        return self

    async def url(self) -> str:
        """Where this machine reaches it."""
        where = ("service", self.name, f"--namespace={self.namespace}")
        return f"http://{await self.cluster.kubectl('get', *where, '--output=jsonpath={.spec.clusterIP}')}:{_APP_PORT}"

    async def pods(self) -> list[Manifest]:
        """Its pods as they are now."""
        where = ("pods", f"--namespace={self.namespace}", f"--selector=app={self.name}", "--output=json")
        found: list[Manifest] = json.loads(await self.cluster.kubectl("get", *where))["items"]
        return found


def state_store(redis: RedisInCluster) -> Manifest:
    """The Component by which the order application stores in that Redis."""
    password = {"name": redis.name, "key": "password"}
    metadata = [{"name": "redisHost", "value": redis.address}, {"name": "redisPassword", "secretKeyRef": password}]
    spec = {"type": "state.redis", "version": "v1", "metadata": metadata}
    return _manifest("dapr.io/v1alpha1", "Component", "statestore", spec=spec)


async def apply(cluster: Cluster, namespace: str, *manifests: Manifest) -> None:
    """Apply manifests as a person would."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    await cluster.kubectl("apply", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(listed))


async def ready(cluster: Cluster, namespace: str, deployment: str) -> None:
    """Return when all pods of a deployment are ready."""
    await cluster.kubectl("rollout", "status", f"deployment/{deployment}", f"--namespace={namespace}", "--timeout=120s")


def _manifest(api_version: str, kind: str, name: str, **content: Any) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}


def _deployment(name: str, container: Manifest, annotations: dict[str, str] | None = None) -> Manifest:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels, "annotations": annotations or {}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": name, **container}]},
    }
    return _manifest("apps/v1", "Deployment", name, spec={"selector": {"matchLabels": labels}, "template": template})


def _service(name: str, port: int) -> Manifest:
    return _manifest("v1", "Service", name, spec={"selector": {"app": name}, "ports": [{"port": port}]})
