"""The home of an agent for a cluster: Secrets in its namespace, and the workloads of the runtime's namespaces."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

from governor.agent.home import Identity
from governor.agent.platforms.kubernetes.hold import NamespaceHold
from governor.agent.platforms.kubernetes.platform import KubernetesPlatform, Parts
from governor.agent.platforms.kubernetes.preflight.preflight import ClusterPreflight
from governor.agent.platforms.kubernetes.preflight.throw_away import Cluster
from governor.agent.platforms.kubernetes.proof.probes import Probes
from governor.agent.platforms.kubernetes.proof.proofs import ProofBook
from governor.agent.platforms.kubernetes.proof.sidecar_reader import PROXY_LIMITS, Route, SidecarReader, open_session
from governor.agent.platforms.kubernetes.resources.applied import MANAGER, AppliedResources
from governor.agent.platforms.kubernetes.resources.inventory import NamespaceInventory
from governor.agent.platforms.kubernetes.resources.manifests import naming_key
from governor.agent.platforms.kubernetes.restarts.restarter import Restarter
from governor.agent.platforms.kubernetes.visibility.announcer import AnnouncedPlatform, Announcer
from governor.agent.platforms.kubernetes.visibility.status_objects import StatusObjects
from governor.agent.platforms.kubernetes.workloads.observer import Observer
from governor.agent.redaction import Redactor
from governor.agent.settings import Settings
from governor.agent.state.secret_blobs import SecretBlobs
from governor.errors import GovernorError
from governor.kube.client import Client, Transport
from governor.kube.config.access import Access, in_cluster
from governor.kube.config.kubeconfig import load
from governor.kube.controller.events import LIMITS as EVENT_LIMITS
from governor.kube.controller.events import EventRecorder
from governor.kube.lease import LIMITS as LEASE_LIMITS
from governor.kube.lease import LeaderElector, Timing, master_status_gauge
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks
from governor.process.telemetry.instruments import Registry

_log = logging.get_logger(__name__)


class KubernetesHome:
    """The state of an agent in Secrets, and the cluster that it manages."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        access: Access,
        blobs: SecretBlobs,
        clock: Clock,
        registry: Registry,
    ) -> None:
        self._settings = settings
        self._client = Client(transport, access)
        self._proxy = Client(transport, access, PROXY_LIMITS)
        self._clock = clock
        self._visibility = Client(transport, access, EVENT_LIMITS)
        self._recorder = EventRecorder(self._visibility, MANAGER, clock, registry)
        self.blobs = blobs
        self._observer: Observer | None = None
        self._applied: AppliedResources | None = None
        self.inventory: NamespaceInventory | None = None

    @property
    def epoch(self) -> int:
        """The epoch of this process."""
        return self.blobs.epoch

    @contextlib.asynccontextmanager
    async def open(self, identity: Identity, on_change: Callable[[], None]) -> AsyncIterator[AnnouncedPlatform]:
        """Restore the proofs, claim the runtime's resources and yield the platform."""
        settings, client, redactor, proofs = self._settings, self._client, Redactor(), ProofBook(self.blobs)
        await proofs.restore()
        hold = NamespaceHold(client, settings.state_namespace, self._clock, on_change=on_change)
        await hold.read()
        async with open_session() as session:
            reader = SidecarReader(session, self._proxy, Route(settings.sidecar_access))
            self._observer = Observer(client, settings.namespaces, clock=self._clock, on_change=on_change)
            applied = self._applied = AppliedResources(
                client,
                identity.runtime,
                settings.state_namespace,
                settings.namespaces,
                redactor,
                adopt=settings.adopted_managers,
                clock=self._clock,
                claimant=self.blobs,
            )
            probes = Probes(client, reader, redactor, self._clock)
            self.inventory = NamespaceInventory(
                client, settings.namespaces, self._observer, applied.owner_label, probes.ask_once
            )
            await _claim(applied)
            announcer = self._announcer(identity.runtime, applied, self._observer, redactor)
            parts = Parts(
                settings.namespaces,
                naming_key(identity.key),
                applied,
                applied.watch(self._clock, on_change),
                self._observer,
                probes,
                Restarter(client, self._clock, applied.permit_write),
                proofs,
                announcer,
                redactor,
                hold,
                ClusterPreflight(self._cluster(identity.runtime, applied, self._observer, reader), redactor),
            )
            yield AnnouncedPlatform(KubernetesPlatform(parts, self._clock), announcer)

    def _cluster(self, runtime: str, applied: AppliedResources, observer: Observer, reader: SidecarReader) -> Cluster:
        """Return what throw-away pods need."""
        namespaces = self._settings.namespaces
        return Cluster(self._client, observer, reader, applied.permit_write, self._clock, runtime, namespaces)

    def _announcer(self, runtime: str, applied: AppliedResources, observer: Observer, redactor: Redactor) -> Announcer:
        """Return what writes Events and the status objects."""
        settings = self._settings
        statuses = StatusObjects(
            self._visibility,
            runtime,
            settings.state_namespace,
            settings.namespaces,
            self._clock,
            applied.permit_write,
        )
        return Announcer(
            self._recorder, statuses, redactor, self._clock, uids=lambda: applied.uids, workloads=observer.workloads
        )

    def add_checks(self, checks: Checks, registry: Registry) -> None:
        """Add checks of the cluster: the agent is ready while it sees the workloads and may write."""
        observer, applied = self._observer, self._applied
        if observer is not None and applied is not None:
            checks.ready("cluster", lambda: "; ".join(observer.failures()))
            checks.ready("claim", lambda: applied.deposed)


async def _claim(applied: AppliedResources) -> None:
    """Claim the runtime's resources, so that the wait is over when a change arrives; if that fails, it is done then."""
    try:
        await applied.take_claim()
    except GovernorError as error:
        _log.warning("cannot claim the runtime's resources yet", error=str(error))


@contextlib.asynccontextmanager
async def kubernetes_home(settings: Settings, clock: Clock, registry: Registry) -> AsyncIterator[KubernetesHome]:
    """Take over the agent's state in the cluster and yield the home."""
    access = await open_access(settings)
    async with Transport(clock, registry=registry) as transport:
        blobs = await SecretBlobs.open(Client(transport, access), settings.state_namespace, settings.agent_name)
        yield KubernetesHome(settings, transport, access, blobs, clock, registry)


@contextlib.asynccontextmanager
async def open_elector(
    settings: Settings,
    clock: Clock,
    registry: Registry,
    timing: Timing = Timing(),  # noqa: B008 - frozen
) -> AsyncIterator[LeaderElector]:
    """Yield the candidate of this process for the agent's Lease, with connections of its own."""
    access = await open_access(settings)
    async with Transport(clock) as transport:
        yield LeaderElector(
            Client(transport, access, LEASE_LIMITS),
            settings.state_namespace,
            settings.agent_name,
            socket.gethostname(),
            clock=clock,
            status=master_status_gauge(registry),
            timing=timing,
        )


async def open_access(settings: Settings) -> Access:
    """Return the access to the cluster: by a kubeconfig, or by the service account of this pod."""
    return await asyncio.to_thread(load, settings.kubeconfig) if settings.kubeconfig else in_cluster()
