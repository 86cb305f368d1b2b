"""The clusters that modules are installed in, each connected once and watched from then on.

A cluster that does not answer delays no other: its ModuleInstances wait, and are queued when it is connected.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request
from governor.kube.controller import NamespacedName
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff, Retries
from governor.process.tasks import Tasks
from governor.process.telemetry import logging
from governor.reconciler.core_kinds import NAMESPACES
from governor.reconciler.kinds.cluster import Cluster, KubeconfigSecret
from governor.reconciler.kinds.module_instance import instance_name
from governor.reconciler.release.objects import SETTINGS, Place
from governor.reconciler.steps.step import Target
from governor.reconciler.targets import Targets
from governor.reconciler.watch import ClusterWatch

BACKOFF: Final = Backoff(initial_s=0.5, max_s=30.0)
_SYSTEM: Final = "kube-system"

_log = logging.get_logger(__name__)


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


class _Access(msgspec.Struct, frozen=True):
    """What the access of a cluster is made of; if one of these changes, it is connected again."""

    uid: str
    secret: KubeconfigSecret | None
    secret_version: str


class _Session:
    """One connected cluster, or one that is being connected."""

    def __init__(self, access: _Access, task: asyncio.Task[None]) -> None:
        self.access = access
        self.task = task
        self.target: Target | None = None
        self.waiting: set[NamespacedName] = set()


class TargetWatches:
    """All clusters of one hub; ``run`` is the source of the controller of ModuleInstances."""

    def __init__(self, targets: Targets, hub: Client, namespace: str, clock: Clock) -> None:
        self._targets = targets
        self._hub = hub
        self._namespace = namespace
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._tasks = Tasks()
        self._add: Callable[[NamespacedName], None] = lambda _: None

    async def run(self, add: Callable[[NamespacedName], None]) -> None:
        """Connect and watch clusters on demand, until cancelled."""
        self._sessions.clear()
        self._add = add
        await self._tasks.run()

    def target(self, cluster: Cluster, secret_version: str, key: NamespacedName) -> Target | None:
        """Return a connected cluster; otherwise None, and ``key`` is queued when it is connected."""
        name = cluster.metadata.name
        access = _Access(cluster.metadata.uid, cluster.spec.access.kubeconfig_secret, secret_version)
        session = self._sessions.get(name)
        if session is None or session.access != access:
            session = self._connect(cluster, access)
        if session is None:
            return None
        if session.target is None:
            session.waiting.add(key)
            return None
        version = cluster.status.version or session.target.version
        return msgspec.structs.replace(session.target, version=version)

    def forget(self, name: str) -> None:
        """Stop watching a cluster."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.task.cancel()

    def _connect(self, cluster: Cluster, access: _Access) -> _Session | None:
        self.forget(cluster.metadata.name)
        if not self._tasks.is_running:
            return None
        task = self._tasks.start(self._run_session(cluster, access))
        session = self._sessions[cluster.metadata.name] = _Session(access, task)
        return session

    async def _run_session(self, cluster: Cluster, access: _Access) -> None:
        name, retries = cluster.metadata.name, Retries(BACKOFF, random.Random())  # noqa: S311 - jitter
        while True:
            try:
                target = await self._ask(cluster, access.secret_version)
                break
            except (GovernorError, msgspec.MsgspecError) as error:
                _log.warning("cluster cannot be connected yet", cluster=name, error=str(error))
                await self._clock.sleep(retries.next_delay_s())
        async with asyncio.TaskGroup() as group:
            group.create_task(target.watch.run())
            await target.watch.synced()
            session = self._sessions[name]
            session.target = target
            for key in session.waiting:
                self._add(key)
            session.waiting.clear()

    async def _ask(self, cluster: Cluster, secret_version: str) -> Target:
        client = await self._targets.client(cluster, secret_version)
        uid, hub_uid = await _uid_of(client), await _uid_of(self._hub)
        version = msgspec.json.decode(await client.send(Request("GET", "/version")), type=_Version).git_version
        name = cluster.metadata.name

        def on_change(module: str) -> None:
            self._add(NamespacedName(self._namespace, instance_name(module, name)))

        holder = f"{hub_uid}/{self._namespace}"
        place = Place(client, self._namespace, holder, uid, self._clock, is_remote=uid != hub_uid)
        return Target(place, ClusterWatch(client, SETTINGS, self._namespace, self._clock, on_change), version)


async def _uid_of(client: Client) -> str:
    """Return the identity of a cluster."""
    found = await client.get(NAMESPACES, _SYSTEM, metadata_only=True)
    uid = found["metadata"].get("uid")
    if not uid:
        raise GovernorError(Kind.UNAVAILABLE, "cluster-uid", f"the namespace {_SYSTEM} has no uid: check the address")
    return str(uid)
