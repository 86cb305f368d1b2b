"""Our reconciler under test: Modules that share one chart, one Installation of each, and a restart."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.concurrency import run_bounded
from bench.kube.with_governor import UNLIMITED
from bench.reconciler import requests
from bench.reconciler.background import in_background
from bench.reconciler.metrics import HUB, is_caught_up, reconciled, waiting
from bench.reconciler.processes import CpuTime, cpu_time
from bench.reconciler.rollouts import WRITERS, require_running
from bench.reconciler.watched import CHART, NAMESPACE, SYNCED_WITHIN_S, Tally, watched
from governor.kube.client import Client, Transport
from governor.kube.config.kubeconfig import load
from governor.kube.controller.views import readable
from governor.kube.lease import LEASES
from governor.kube.lease.candidate import RELEASED_DURATION_S
from governor.kube.objects import Object
from governor.kube.reflector import Reflector
from governor.process.clock import SystemClock
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.controllers.demand import DEPLOYMENTS
from governor.reconciler.core_kinds import NAMESPACES
from governor.reconciler.kinds.cluster import LOCAL
from governor.reconciler.kinds.definition import Definition
from governor.reconciler.kinds.installation import INSTALLATION
from governor.reconciler.kinds.module import MODULE, module_object_name
from governor.reconciler.kinds.module_instance import MODULE_INSTANCE, ModuleInstance
from governor.reconciler.kinds.state import State
from governor.reconciler.main import NAME as LEASE
from testbed.kube.control_plane import ControlPlane
from testbed.reconciler import Reconciler
from testbed.waiting import until
from toolchain.errors import TestbedError, tail

MANAGER: Final = "bench"
VERSION: Final = "1.0.0"
WORKERS: Final = "workers"
CAUGHT_UP_WITHIN_S: Final = 300.0
LATE_S: Final = 5.0
"""How long writes are counted after the restarted reconciler has caught up: some are delayed on purpose."""
_POLL_S: Final = 0.05


class Restart(msgspec.Struct, frozen=True):
    """A start after a kill, with all modules unchanged."""

    seconds: float
    """From the start of the process until it has caught up."""
    cpu: CpuTime
    writes: dict[str, int]
    """Write requests by verb, resource and error, without those of Leases."""
    lists: dict[str, int]
    """List requests by resource; a list of several pages has several."""


def module_name(number: int) -> str:
    """Return the name of a module, which is also that of its release."""
    return f"module-{number:04d}"


def module(number: int, digest: str) -> Object:
    """Return the manifest of a Module; all have the same chart."""
    name = module_name(number)
    chart = {"directory": str(CHART), "digest": digest}
    spec = {"module": name, "version": VERSION, "namespace": NAMESPACE, "chart": chart}
    return _manifest(MODULE, module_object_name(name, VERSION), spec)


def installation(number: int, revision: str) -> Object:
    """Return the manifest of an Installation; no two have the same values."""
    name = module_name(number)
    values = {"number": number, "revision": revision}
    return _manifest(INSTALLATION, name, {"module": name, "version": VERSION, "cluster": LOCAL, "values": values})


def _manifest(definition: Definition, name: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": HUB}
    return {
        "apiVersion": definition.resource.api_version,
        "kind": definition.kind,
        "metadata": metadata,
        "spec": spec,
    }


def is_applied(instance: ModuleInstance, revision: str) -> bool:
    """Return whether the status of a ModuleInstance shows that a revision is applied and ready."""
    status, spec = instance.status, instance.spec
    return (
        spec.values.get("revision") == revision
        and status.observed_generation == instance.metadata.generation
        and status.state is State.READY
        and status.last_applied is not None
        and status.last_applied.version == spec.version
    )


def _workers() -> Object:
    """Return the Deployment of workers; no controller runs its pods."""
    labels = {"app": WORKERS}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "worker", "image": "worker"}]}}
    metadata = {"name": WORKERS, "namespace": HUB}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


class Hub:
    """The subject: our reconciler and its hub."""

    writes_per_release = 1

    def __init__(self, plane: ControlPlane, client: Client, program: Reconciler, tally: Tally) -> None:
        self.client = client
        self.program = program
        self._plane = plane
        self._tally = tally
        self._instances = Reflector(
            client,
            MODULE_INSTANCE.resource,
            ModuleInstance,
            clock=SystemClock(),
            on_event=lambda _: None,
            namespace=HUB,
        )

    @property
    def pids(self) -> Sequence[int]:
        """The reconciler."""
        return [self.program.pid]

    @property
    def server_pids(self) -> Sequence[int]:
        """The API server and etcd."""
        return [each.pid for each in self._plane.servers]

    async def write(self, number: int, revision: str) -> None:
        """Write one Installation."""
        await self.client.apply(INSTALLATION.resource, installation(number, revision), manager=MANAGER)

    def progress(self, revision: str) -> tuple[int, str]:
        """Return how many modules are applied by their ModuleInstances and by their objects."""
        instances = [each for entry in self._instances.store.values() if (each := readable(entry))]
        applied = {each.spec.release_name for each in instances if is_applied(each, revision)}
        done = applied & self._tally.complete(revision)
        states = Counter(each.status.state or State.PENDING for each in instances)
        counts = ", ".join(f"{state} {count:,}" for state, count in states.most_common())
        example = next((each for each in instances if each.status.state is not State.READY), None)
        shown = f" such as {example.metadata.name}: {example.status.message}" if example else ""
        total = self._tally.total(revision)
        return len(done), f"{total:,} objects, {len(instances):,} ModuleInstances: {counts or 'none'}{shown}"

    async def prepare(self, modules: int) -> None:
        """Create all Modules."""
        digest = await asyncio.to_thread(digest_of, CHART)

        async def create(number: int) -> None:
            await self.client.create(MODULE.resource, module(number, digest), manager=MANAGER)

        await run_bounded(create, range(modules), WRITERS)

    async def restart(self, modules: int) -> Restart:
        """Kill the reconciler, release its Lease, start it again and measure until it has caught up."""
        await self.program.kill()
        await release_lease(self.client)
        before, began_s = await requests.read(self.client), time.monotonic()
        await self.program.start()
        await self._until_caught_up(modules, began_s)
        seconds, cpu = time.monotonic() - began_s, cpu_time(self.pids)
        await asyncio.sleep(LATE_S)
        require_running(self.pids)
        received = (await requests.read(self.client)).since(before)
        return Restart(seconds, cpu, received.writes, received.lists)

    async def watch_only(self) -> None:
        """Start the reconciler again as a process that only watches, with workers at zero."""
        await self.program.kill()
        await release_lease(self.client)
        await self.client.apply(DEPLOYMENTS, _workers(), manager=MANAGER)
        self.program.settings.update(ROLE="watch", WORKER_DEPLOYMENT=WORKERS, WORKER_IDLE="0")
        await self.program.start()

        async def is_scaled() -> bool:
            return "governor_reconciler_workers 0" in await self.program.metrics()

        await until(is_scaled, within_s=CAUGHT_UP_WITHIN_S, every_s=_POLL_S)

    async def _until_caught_up(self, modules: int, began_s: float) -> None:
        while not is_caught_up(metrics := await self.program.metrics(), modules):
            require_running(self.pids)
            if (elapsed_s := time.monotonic() - began_s) > CAUGHT_UP_WITHIN_S:
                seen = (
                    f"{reconciled(metrics):.0f} reconciliations of {modules:,} ModuleInstances, {waiting(metrics):.0f}"
                )
                raise TestbedError(f"not caught up after {elapsed_s:.0f} s: {seen} keys of all controllers wait")
            await asyncio.sleep(_POLL_S)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the ModuleInstances for the duration of a block."""
        async with in_background(self._instances.run()):
            async with asyncio.timeout(SYNCED_WITHIN_S):
                await self._instances.synced()
            yield


async def release_lease(client: Client) -> None:
    """Release the Lease as an orderly stop does; that of a killed reconciler lasts for 15 s."""
    change = {"spec": {"holderIdentity": None, "leaseDurationSeconds": RELEASED_DURATION_S}}
    await client.patch(LEASES, LEASE, HUB, change, manager=MANAGER)


@asynccontextmanager
async def prepared_hub(directory: Path, plane: ControlPlane, renderer: Path, modules: int) -> AsyncIterator[Hub]:
    """Start a reconciler on a control plane and create the Modules; each has one chart and no Installation yet."""
    async with Transport() as transport:
        client = Client(transport, load(plane.kubeconfig), UNLIMITED)
        for name in (HUB, NAMESPACE):
            manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await client.apply(NAMESPACES, manifest, manager=MANAGER)
        async with (
            Reconciler(directory / "reconciler", plane.kubeconfig, renderer, HUB) as program,
            watched(client, NAMESPACE) as tally,
        ):
            hub = Hub(plane, client, program, tally)
            async with hub.watching():
                await hub.prepare(modules)
                try:
                    yield hub
                except TestbedError as error:
                    raise TestbedError(f"{error}\n{tail(program.log)}") from error
