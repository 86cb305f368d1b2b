"""An announcer on a real API server: with a real Component, a Deployment, and what kubectl prints of them."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

import yaml

from governor.agent.platforms.kubernetes.resources.applied import AppliedResources
from governor.agent.platforms.kubernetes.resources.manifests import manifests_of
from governor.agent.platforms.kubernetes.visibility.announcer import Announcer
from governor.agent.platforms.kubernetes.visibility.runtime_status import RUNTIME_STATUSES
from governor.agent.platforms.kubernetes.visibility.status_objects import DEFINITION, StatusObjects
from governor.agent.platforms.kubernetes.workloads.workload import Update, Workload
from governor.agent.redaction import Redactor
from governor.agent.verification.findings import Findings, InstanceFindings, combine
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, resource_ref
from governor.domain.reports import Evidence, Finding, State, WorkloadRef
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Request
from governor.kube.controller.events import EventRecorder
from governor.kube.objects import Object
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from governor.values.trees import Manifest
from testbed.waiting import until
from tests.contract.agent.apply.bed import KEY
from tests.contract.kube.applyset.bed import DEFINITIONS, DEPLOYMENTS, deployment
from tests.contract.kube.controller.bed import events_of
from tests.contract.kube.reflector.bed import running
from toolchain.repository import REPOSITORY
from tools.generate_crds import VISIBILITY

DIGEST = f"sha256:{'a1' * 32}"
_CLOCK = SystemClock()


def delivery(*resources: Manifest, sequence: int = 1, digest: str = DIGEST) -> Delivery:
    return Delivery("r1", sequence, 1, 1, digest, resources, (), ApplyPolicy())


async def install_definition(client: Client) -> None:
    """Apply the definition that the package ships, and wait until the kind is served."""
    manifest = yaml.safe_load((REPOSITORY / VISIBILITY / DEFINITION).read_text())
    await client.apply(DEFINITIONS, manifest, manager="administrator")

    async def served() -> bool:
        with suppress(GovernorError):
            return not [each async for each in client.list(RUNTIME_STATUSES, "default")]
        return False

    await until(served)


async def remove_definition(client: Client) -> None:
    """Delete the definition, and wait until the kind is not served any more."""
    name = f"{RUNTIME_STATUSES.plural}.{RUNTIME_STATUSES.group}"
    with suppress(GovernorError):
        await client.delete(DEFINITIONS, name)

    async def gone() -> bool:
        try:
            await client.send(Request("GET", f"/apis/{RUNTIME_STATUSES.group}"))
        except GovernorError as error:
            return "404" in str(error)
        return False

    await until(gone)


class AnnouncerBed:
    """An announcer of one runtime; ``admin`` prepares and reads, the announcer uses its own client."""

    def __init__(self, admin: Client, client: Client, namespace: str, *more: str, runtime: str = "r1") -> None:
        self.admin = admin
        self.namespace = namespace
        self.runtime = runtime
        self.redactor = Redactor()
        self.registry = Registry()
        self.workload: Workload | None = None
        self._applied = AppliedResources(admin, runtime, namespace, [namespace], self.redactor)
        statuses = StatusObjects(
            client, runtime, namespace, [namespace, *more], _CLOCK, self._permit, interval_s=0.01, retry_s=0.05
        )
        self.deposed = ""
        """Why this process may not write any more."""
        recorder = EventRecorder(client, "governor-agent", _CLOCK, self.registry)
        self.announcer = Announcer(
            recorder, statuses, self.redactor, _CLOCK, uids=lambda: self._applied.uids, workloads=self._workloads
        )

    async def _permit(self) -> None:
        if self.deposed:
            raise GovernorError(Kind.PRECONDITION, "claim-lost", self.deposed)

    def _workloads(self) -> Iterable[Workload]:
        return [self.workload] if self.workload else []

    @asynccontextmanager
    async def announcing(self) -> AsyncIterator[None]:
        """Write announcements for the duration of the block."""
        async with running(self.announcer.run()):
            yield

    async def create_workload(self, name: str = "orders") -> WorkloadRef:
        """Create a Deployment and return its reference."""
        manifest = deployment(name)
        manifest["metadata"]["namespace"] = self.namespace
        created = await self.admin.create(DEPLOYMENTS, manifest, manager="user")
        ref = WorkloadRef(self.namespace, "Deployment", name)
        self.workload = Workload(ref, "apps/v1", Update.ROLLING, uid=created["metadata"]["uid"])
        return ref

    async def apply(self, delivered: Delivery) -> None:
        """Apply a delivery, so that its resources exist."""
        self.redactor.add(delivered.resources)
        manifests = manifests_of(delivered, [self.namespace], KEY)
        assert (await self._applied.converge(manifests)).ok
        await self._applied.read(manifests)

    def found(self, delivered: Delivery, *states: State, text: str = "") -> Findings:
        """Return findings with a state for each instance of the workload, which loads everything."""
        refs = [resource_ref(each, self.namespace) for each in delivered.resources]
        instances = [
            InstanceFindings(f"orders-{number}", {each: _finding(state, text) for each in refs})
            for number, state in enumerate(states)
        ]
        ref = self.workload.ref if self.workload else WorkloadRef(self.namespace, "Deployment", "orders")
        return combine(refs, {ref: instances}, _CLOCK.now())

    def report(self, delivered: Delivery, *states: State, text: str = "") -> None:
        """Announce such findings."""
        self.announcer.report(delivered, self.found(delivered, *states, text=text))

    async def events(self, name: str) -> dict[str, int]:
        """Return the counts of the Events about an object, by reason."""
        return {each["reason"]: each["count"] for each in await events_of(self.admin, name, self.namespace)}

    async def shows_events(self, name: str, expected: dict[str, int]) -> None:
        async def shown() -> bool:
            return await self.events(name) == expected

        await until(shown)

    async def status(self, namespace: str = "") -> dict[str, Any]:
        """Return the status of the runtime's object, empty while there is none."""
        with suppress(GovernorError):
            found = await self.admin.get(RUNTIME_STATUSES, self.runtime, namespace or self.namespace)
            return dict(found.get("status", {}))
        return {}

    async def shows_instances(self, expected: str, namespace: str = "") -> dict[str, Any]:
        """Wait until the status object has these counts, and return its status."""

        async def shown() -> dict[str, Any]:
            status = await self.status(namespace)
            return status if status.get("instances") == expected else {}

        return await until(shown)


def condition(status: Object, name: str = "Verified") -> Object:
    return next(each for each in status["conditions"] if each["type"] == name)


def _finding(state: State, text: str) -> Finding:
    return Finding(state=state, evidence=(Evidence("pod", _CLOCK.now(), text or f"it is {state}"),))
