"""Clients of the clusters that modules are installed in, and whether their API servers answer.

A client is kept while its access is the same. Probes run beside the reconciliations, so that a cluster that does not
answer delays no other.
"""

import asyncio
import base64
from typing import Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config import kubeconfig
from governor.kube.config.access import Access
from governor.process.clock import Clock
from governor.process.tasks import Tasks
from governor.process.telemetry import logging
from governor.reconciler.core_kinds import NAMESPACES, SECRETS
from governor.reconciler.kinds.cluster import Cluster, KubeconfigSecret
from governor.reconciler.kinds.state import Problem
from governor.reconciler.states.cluster_state import UNREACHABLE, Reach
from governor.values.printing import one_line

PROBE_TIMEOUT_S: Final = 10.0
PROBE_INTERVAL_S: Final = 60.0
RETRY_INTERVAL_S: Final = 15.0
"""Between two probes of a cluster that did not answer."""

_SYSTEM: Final = "kube-system"
_MAX_TEXT: Final = 64
"""Length of what a cluster says about itself."""
_REASONS: Final = {
    Kind.UNAUTHENTICATED: "AccessDenied",
    Kind.DENIED: "AccessDenied",
    Kind.INVALID: "AccessInvalid",
    Kind.NOT_FOUND: "AccessMissing",
}

_log = logging.get_logger(__name__)


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


class _Known(msgspec.Struct, frozen=True):
    """The client of a cluster, and the access that it was made for."""

    uid: str
    secret: KubeconfigSecret | None
    secret_version: str
    access: Access
    client: Client


class Targets:
    """The clients of all clusters of one hub."""

    def __init__(self, transport: Transport, hub: Client, own: Access, limits: Limits) -> None:
        self._transport = transport
        self._hub = hub
        self._own = own
        self._limits = limits
        self._known: dict[str, _Known] = {}

    async def client(self, cluster: Cluster, secret_version: str) -> Client:
        """Return the client of a cluster; ``secret_version`` is the resourceVersion of its kubeconfig Secret.

        NOT_FOUND if the Secret or its key is missing, INVALID or DENIED if the kubeconfig cannot be used.
        """
        name, secret = cluster.metadata.name, cluster.spec.access.kubeconfig_secret
        known = self._known.get(name)
        now = (cluster.metadata.uid, secret, secret_version)
        if known and (known.uid, known.secret, known.secret_version) == now:
            return known.client
        access = await self._read(cluster.metadata.namespace, secret) if secret else self._own
        client = self._client(known, access)
        self._known[name] = _Known(*now, access, client)
        return client

    def forget(self, name: str) -> None:
        """Drop the client of a cluster."""
        self._known.pop(name, None)

    def _client(self, known: _Known | None, access: Access) -> Client:
        """Return the present client with the new credential if it is one of the same server, otherwise a new one."""
        if known and known.access.server == access.server:
            known.client.update_access(access)
            return known.client
        return Client(self._transport, access, self._limits)

    async def _read(self, namespace: str, secret: KubeconfigSecret) -> Access:
        try:
            found = await self._hub.get(SECRETS, secret.name, namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            raise _missing(f"there is no Secret {secret.name} with a kubeconfig in namespace {namespace}") from error
        encoded = (found.get("data") or {}).get(secret.key)
        if encoded is None:
            raise _missing(f"the Secret {secret.name} has no key {secret.key} with a kubeconfig")
        return kubeconfig.from_secret(base64.b64decode(encoded), source=f"the kubeconfig in Secret {secret.name}")


def _missing(message: str) -> GovernorError:
    return GovernorError(Kind.NOT_FOUND, "kubeconfig-missing", message)


class _AccessVersion(msgspec.Struct, frozen=True):
    """What the access of a cluster is made of; if one of these changes, it is probed again."""

    uid: str
    generation: int
    secret_version: str


def _access_version(cluster: Cluster, secret_version: str) -> _AccessVersion:
    return _AccessVersion(cluster.metadata.uid, cluster.metadata.generation, secret_version)


class _Probe(msgspec.Struct, frozen=True):
    """The last result for a cluster, for which access, and when it was there."""

    access: _AccessVersion
    reach: Reach
    time_s: float


class Reachability:
    """Probes clusters on demand; ``run`` is the component that the probes run in."""

    def __init__(self, targets: Targets, clock: Clock) -> None:
        self._targets = targets
        self._clock = clock
        self._results: dict[str, _Probe] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._probes = Tasks()

    async def run(self) -> None:
        """Run probes until cancelled."""
        await self._probes.run()

    def observe(self, cluster: Cluster, secret_version: str) -> Reach | None:
        """Return the last result for a cluster, None before the first; start a probe if one is due."""
        name, last = cluster.metadata.name, self._results.get(cluster.metadata.name)
        is_free = self._probes.is_running and name not in self._running
        if is_free and self._is_due(last, _access_version(cluster, secret_version)):
            task = self._running[name] = self._probes.start(self._probe(cluster, secret_version))
            task.add_done_callback(lambda _: self._running.pop(name, None))
        return last.reach if last and last.access.uid == cluster.metadata.uid else None

    def is_probing(self, name: str) -> bool:
        """Return whether a newer result is expected soon."""
        return name in self._running

    def forget(self, name: str) -> None:
        """Drop what is known of a deleted cluster."""
        self._results.pop(name, None)
        self._targets.forget(name)

    def _is_due(self, last: _Probe | None, access: _AccessVersion) -> bool:
        if last is None or last.access != access:
            return True
        return self._clock.monotonic() >= last.time_s + due_after_s(last.reach)

    async def _probe(self, cluster: Cluster, secret_version: str) -> None:
        name, access = cluster.metadata.name, _access_version(cluster, secret_version)
        reach = await self._ask(cluster, secret_version)
        last = self._results.get(name)
        if last and last.access == access and _is_same_problem(last.reach, reach):
            reach = last.reach  # the text may differ in details, and each difference would be a write of the status
        elif reach.problem:
            _log.warning("cluster cannot be reached", cluster=name, error=reach.problem.message)
        self._results[name] = _Probe(access, reach, self._clock.monotonic())

    async def _ask(self, cluster: Cluster, secret_version: str) -> Reach:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                client = await self._targets.client(cluster, secret_version)
                system = await client.get(NAMESPACES, _SYSTEM, metadata_only=True)
                version = msgspec.json.decode(await client.send(Request("GET", "/version")), type=_Version)
        except (GovernorError, TimeoutError, msgspec.MsgspecError) as error:
            return Reach(problem_of(cluster.metadata.name, error))
        uid = str(system["metadata"].get("uid", ""))
        return Reach(None, one_line(uid[:_MAX_TEXT]), one_line(version.git_version[:_MAX_TEXT]))


def due_after_s(reach: Reach) -> float:
    """Return after how long a cluster is probed again."""
    return RETRY_INTERVAL_S if reach.problem else PROBE_INTERVAL_S


def _is_same_problem(last: Reach, now: Reach) -> bool:
    return last.problem is not None and now.problem is not None and last.problem.reason == now.problem.reason


def problem_of(name: str, error: Exception) -> Problem:
    """Return why a cluster cannot be used."""
    reason = _REASONS.get(error.kind, UNREACHABLE) if isinstance(error, GovernorError) else UNREACHABLE
    text = str(error) or f"no answer within {PROBE_TIMEOUT_S:g} s"
    return Problem(reason, f"cluster {name} cannot be reached: {text}", Actor.OPERATOR)
