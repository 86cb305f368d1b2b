"""The two ways to point an application to another store: a change at the server, and ``kubectl apply`` alone."""

from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from bench.kubernetes.agent import profile
from demo.world import World
from governor.wire.rest import ChangeRequest
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import RedisInCluster, apply, state_store

GOVERNOR: Final = "governor"
KUBECTL: Final = "kubectl"


class Times(msgspec.Struct, frozen=True):
    """When a change began and when its method was done with it, in seconds since the epoch."""

    began: float
    done: float


class Method(Protocol):
    """A way to change the store of the application in a namespace of its own."""

    namespace: str

    async def change(self, redis: RedisInCluster) -> Times:
        """Point the application to a Redis."""
        ...


class GovernorMethod:
    """A change at the server: from its acceptance until the server has the agent's proof."""

    namespace: str = "by-governor"

    def __init__(self, world: World, preflight: str = "off") -> None:
        self._world = world
        self._preflight = preflight

    async def change(self, redis: RedisInCluster) -> Times:
        """Change the profile; the password is in it, so the agent also writes a Secret and removes the old one."""
        accepted = await self._world.api.change(
            ChangeRequest((profile(_with_password(redis), preflight=self._preflight),))
        )
        if accepted.revision is None:
            raise RuntimeError("the change had no effect")
        (progress,) = (await self._world.verified(accepted.revision)).runtimes
        if not progress.done:
            raise RuntimeError(f"the change was not verified: {progress}")
        began = accepted.time.timestamp()
        return Times(began, began + progress.seconds)


class KubectlMethod:
    """``kubectl apply`` of the component, whose password is in a Secret that exists: from its start until its exit."""

    namespace: str = "by-kubectl"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def change(self, redis: RedisInCluster) -> Times:
        """Apply the component."""
        began = datetime.now(UTC).timestamp()
        await apply(self._cluster, self.namespace, state_store(redis))
        return Times(began, datetime.now(UTC).timestamp())


def _with_password(redis: RedisInCluster) -> dict[str, Any]:
    component = state_store(redis)
    items = {"redisHost": redis.address, "redisPassword": redis.password}
    metadata = [{"name": name, "value": value} for name, value in items.items()]
    return {**component, "spec": {**component["spec"], "metadata": metadata}}
