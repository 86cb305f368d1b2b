"""What the platform contract needs of a platform's test bed, and the agent that its cases run: the port alone."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import msgspec

from governor.agent.home import Home
from governor.agent.platform import Platform, Superseded
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, Preflight, ResourceRef, resource_ref
from governor.domain.reports import Evidence, WorkloadRef
from governor.process.telemetry.health import Checks
from governor.process.telemetry.instruments import Registry
from governor.values.digest import digest
from governor.values.trees import Manifest
from testbed.waiting import until
from tests.contract.kube.reflector.bed import running

RUNTIME = "r1"
_WINDOW_S = 120
_sequences = count(1)


class Bed(Protocol):
    """Real sidecars of a platform: two workloads, ``alpha`` and ``beta``, whose app ids no other test uses."""

    namespace: str
    alpha: str
    beta: str
    replicas: dict[str, int]
    """The number of instances by app id."""

    def open(self, on_change: Callable[[], None]) -> AbstractAsyncContextManager[tuple[Home, Platform]]:
        """Open the home and the platform of the agent, as its program does; again after it was closed."""
        ...

    def workload(self, app_id: str) -> WorkloadRef:
        """Return the workload with this app id."""
        ...

    async def settled(self) -> None:
        """Wait until no sidecar is starting or ending."""
        ...

    async def live_spec(self, name: str) -> Manifest | None:
        """Return the spec of a Component as it is in place, or None."""
        ...

    async def versions(self) -> Mapping[str, str]:
        """Return, by object that an agent may write, what changes with each write."""
        ...

    async def tamper(self, name: str, value: str) -> None:
        """Set the first metadata value of a Component behind the agent's back."""
        ...


class Agent:
    """One process of an agent without its loop. All progress is recorded."""

    def __init__(self, home: Home, platform: Platform, wakes: list[None]) -> None:
        self.home = home
        self._wakes = wakes
        self.platform = platform
        self.progress: list[Findings] = []

    @property
    def wakes(self) -> int:
        """How often the platform has said that the loop must reconcile."""
        return len(self._wakes)

    async def is_ready(self) -> bool:
        """Return whether all health checks of the platform pass."""
        checks = Checks()
        self.home.add_checks(checks, Registry())
        return checks.readiness().ok

    async def converge(self, delivery: Delivery, superseded: Superseded = lambda: False) -> Findings:
        """Converge to a delivery; what progress claims must be true at the end too."""
        self.progress.clear()
        received = Evidence("agent", datetime.now(UTC), "received")
        found = await self.platform.converge(delivery, received, self.progress.append, superseded)
        assert not any(each.verified for each in self.progress), "progress is not the result"
        if found.verified:
            reported = [_verified(each) for each in (*self.progress, found)]
            assert reported == sorted(reported), "the counts grow"
        return found


def _verified(found: Findings) -> int:
    return sum(each.instances.verified for each in found.workloads)


@asynccontextmanager
async def running_agent(bed: Bed) -> AsyncIterator[Agent]:
    """Run a platform until the block ends; the sidecars and all that was stored outlive it."""
    wakes: list[None] = []
    async with bed.open(lambda: wakes.append(None)) as (home, platform), running(platform.run()):
        yield Agent(home, platform, wakes)


class Deliveries:
    """The deliveries of one case, each in place of the one before it."""

    def __init__(self) -> None:
        self._resources: tuple[Manifest, ...] = ()

    def next(self, *resources: Manifest, **policy: Any) -> Delivery:
        """Return the next delivery; ``policy`` are fields of its ApplyPolicy."""
        removed = {resource_ref(each, "") for each in self._resources} - {resource_ref(each, "") for each in resources}
        self._resources = resources
        number = next(_sequences)
        apply = ApplyPolicy(**{"preflight": Preflight.OFF, "verify_window_seconds": _WINDOW_S, **policy})
        content = digest(list(resources))
        return Delivery(RUNTIME, number, 1, number, content, resources, tuple(sorted(removed)), apply)


def processes(app_id: str) -> frozenset[tuple[int, int]]:
    """Return pid and start time of each daprd with an app id: those of a pod are processes of this machine too."""
    found = ((int(entry.name), _arguments(entry)) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return frozenset((pid, _start_time(pid)) for pid, arguments in found if _app_id(arguments) == app_id)


def _arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _app_id(arguments: Sequence[str]) -> str:
    """Return the app id of a command line of daprd, which the injector and the local agent write differently."""
    if not arguments or not arguments[0].endswith("daprd"):
        return ""
    joined = " ".join(arguments).replace("--app-id=", "--app-id ").split()
    return joined[joined.index("--app-id") + 1] if "--app-id" in joined else ""


def _start_time(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0


async def replaced(app_id: str, before: frozenset[tuple[int, int]], number: int) -> None:
    """Wait until none of the processes from before is left; those of replaced pods end a little later."""

    async def is_replaced() -> bool:
        now = processes(app_id)
        return len(now) == number and not now & before

    await until(is_replaced)


def store(name: str, value: str, namespace: str, *scopes: str) -> Manifest:
    """Return a state store that needs no server, with a value that it ignores."""
    return component(name, "state.in-memory", namespace, scopes, label=value)


def component(name: str, kind: str, namespace: str, scopes: Sequence[str], **metadata: str) -> Manifest:
    """Return a Component."""
    items = [{"name": key, "value": value} for key, value in metadata.items()]
    spec = {"type": kind, "version": "v1", "metadata": items}
    return {**resource("Component", name, namespace, spec), **({"scopes": list(scopes)} if scopes else {})}


def resiliency(seconds: int, namespace: str, *scopes: str) -> Manifest:
    """Return a resource that is proven only by a sidecar which starts after it was written."""
    spec = {"policies": {"timeouts": {"short": f"{seconds}s"}}, "targets": {}}
    return {**resource("Resiliency", "limits", namespace, spec), "scopes": list(scopes)}


def resource(kind: str, name: str, namespace: str, spec: Manifest) -> Manifest:
    """Return a resource of any kind."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def ref(manifest: Manifest) -> ResourceRef:
    """Return the reference to a resource."""
    return resource_ref(manifest, "")


def texts(found: Findings) -> str:
    """Return all findings as text."""
    return msgspec.json.encode(found).decode()
