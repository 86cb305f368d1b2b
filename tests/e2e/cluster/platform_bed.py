"""The Kubernetes platform of an agent without its loop, in the test process, for one namespace of the real cluster."""

import asyncio
import copy
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from governor.agent.home import Home, Identity
from governor.agent.platform import Platform
from governor.agent.platforms.kubernetes.home import kubernetes_home
from governor.agent.settings import Settings
from governor.domain.reports import WorkloadRef
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from governor.values.trees import Manifest
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import IdleApp, apply, manifest
from testbed.waiting import until
from tests.contract.agent.platforms.bed import RUNTIME

Access = Literal["auto", "direct", "proxy"]
_TOKEN = manifest("v1", "Secret", "api-token", stringData={"token": "correct-horse"})
_NATIVE = {"dapr.io/enable-native-sidecar": "true", "dapr.io/api-token-secret": "api-token"}
OWNED = f"--selector=runtime-governor.dev/owner={RUNTIME}"


class ClusterBed:
    """A namespace with two Deployments, which all cases share.

    The sidecar of ``beta`` is a native one and has an API token.
    """

    def __init__(self, cluster: Cluster, namespace: str, adopted_managers: tuple[str, ...] = ()) -> None:
        self._cluster = cluster
        self._adopted_managers = adopted_managers
        self.namespace = namespace
        suffix = secrets.token_hex(4)
        self.alpha, self.beta = f"alpha-{suffix}", f"beta-{suffix}"
        self.replicas = {self.alpha: 2, self.beta: 1}
        self._sidecar_access: Access = "auto"
        self._identity = Identity(RUNTIME, secrets.token_bytes(32))

    async def start(self) -> None:
        """Start the Deployments."""
        await apply(self._cluster, self.namespace, _TOKEN)
        alpha = self.app(self.alpha, replicas=self.replicas[self.alpha])
        await asyncio.gather(alpha.start(), self.app(self.beta, _NATIVE).start())

    def app(self, app_id: str, annotations: Mapping[str, str] | None = None, replicas: int = 1) -> IdleApp:
        """Return a Deployment of the namespace."""
        return IdleApp(self._cluster, self.namespace, app_id, annotations or {}, replicas)

    def with_access(self, access: Access) -> "ClusterBed":
        """Return the same bed for agents that reach sidecars only this way."""
        bed = copy.copy(self)
        bed._sidecar_access = access
        return bed

    @asynccontextmanager
    async def open(self, on_change: Callable[[], None]) -> AsyncIterator[tuple[Home, Platform]]:
        """Open the home and the platform, as the cluster's administrator."""
        settings = Settings(
            platform="kubernetes",
            kubeconfig=self._cluster.kubeconfig,
            state_namespace=self.namespace,
            namespaces=(self.namespace,),
            adopted_managers=self._adopted_managers,
            sidecar_access=self._sidecar_access,
        )
        async with (
            kubernetes_home(settings, SystemClock(), Registry()) as home,
            home.open(self._identity, on_change) as platform,
        ):
            yield home, platform

    def workload(self, app_id: str) -> WorkloadRef:
        """Return the Deployment with this app id."""
        return WorkloadRef(self.namespace, "Deployment", app_id)

    async def settled(self) -> None:
        """Wait until there are as many pods as there should be: those that were replaced are gone."""

        async def is_settled() -> bool:
            return len(await self._list("pods")) == sum(self.replicas.values())

        await until(is_settled, every_s=0.2)

    async def live_spec(self, name: str) -> Manifest | None:
        """Return the spec of a Component of the API server."""
        found = await self._kubectl("get", f"component/{name}", "--ignore-not-found", "--output=json")
        return json.loads(found)["spec"] if found else None

    async def versions(self) -> dict[str, str]:
        """Return the versions of the agent's objects, and of the Deployments without their status."""
        owned = await self._list("components,resiliencies,secrets", OWNED)
        versions = {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in owned}
        workloads = await self._list("deployments")
        return versions | {each["metadata"]["name"]: str(each["metadata"]["generation"]) for each in workloads}

    async def tamper(self, name: str, value: str) -> None:
        """Patch a Component."""
        patch = [{"op": "replace", "path": "/spec/metadata/0/value", "value": value}]
        await self._kubectl("patch", f"component/{name}", "--type=json", f"--patch={json.dumps(patch)}")

    async def _list(self, kinds: str, *options: str) -> list[Manifest]:
        found: list[Manifest] = json.loads(await self._kubectl("get", kinds, *options, "--output=json"))["items"]
        return found

    async def _kubectl(self, *arguments: str) -> str:
        return await self._cluster.kubectl(f"--namespace={self.namespace}", *arguments)
