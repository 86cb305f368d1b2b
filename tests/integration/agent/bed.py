"""An agent without a server: its real parts, a real daprd, and deliveries signed by a test key."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demo.programs import GovernorServer
from governor.agent.main import Agent, open_agent
from governor.agent.platforms.local.home import LocalHome
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.settings import Settings, SidecarSettings
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.records import Membership
from governor.domain.bundles import Delivery
from governor.domain.documents import (
    ApplyPolicy,
    Drift,
    Preflight,
    ResourceRef,
    Retry,
    Strategy,
    Unproven,
    WindowScope,
    resource_ref,
)
from governor.domain.reports import Report, ResourceReport, State, overall
from governor.domain.windows import Hold, Window
from governor.process.clock import SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Outcome
from governor.process.telemetry.instruments import Registry
from governor.values.digest import digest
from governor.values.secret import Secret
from governor.wire.credentials import encode_public_key, key_id
from governor.wire.deliveries import SignedDelivery, sign_delivery
from governor.wire.rest import Enrolment, TokenRequest
from testbed.waiting import until
from tests.integration.server.bed import ServerBed

RUNTIME = "r1"
FINAL = (State.VERIFIED, State.FAILED, State.UNPROVEN)
WINDOW_S = 120
"""More than twice what a proof takes on a busy machine: a live proof and a preflight each get half of it."""
_TIMEOUT_S = 240


def is_final(report: Report) -> bool:
    """Return whether the agent has finished with a delivery, including a rollback."""
    return overall(report) in FINAL and "not verified yet" not in repr(report.workloads)


def component(name: str, kind: str, *, scopes: Sequence[str] = (), **metadata: str) -> dict[str, Any]:
    """Return a Component of version v1."""
    items = [{"name": key, "value": value} for key, value in metadata.items()]
    scoped = {"scopes": list(scopes)} if scopes else {}
    return {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": kind, "version": "v1", "metadata": items},
        **scoped,
    }


def fingerprint(file: Path) -> tuple[int, ...]:
    """Return what changes whenever a file is written, and not when it is read."""
    found = file.stat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def resource(kind: str, name: str, spec: dict[str, Any], version: str = "dapr.io/v1alpha1") -> dict[str, Any]:
    """Return a resource of any kind."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


class JumpingClock(SystemClock):
    """The system clock; tests can set its wall clock and advance it."""

    def __init__(self) -> None:
        self._offset = timedelta()
        self._passed_s = 0.0

    def now(self) -> datetime:
        return super().now() + self._offset

    def monotonic(self) -> float:
        return super().monotonic() + self._passed_s

    def jump(self, seconds: float) -> None:
        """Move the wall clock forward or back."""
        self._offset += timedelta(seconds=seconds)

    def advance(self, seconds: float) -> None:
        """Advance both clocks; sleeping tasks are not woken."""
        self._passed_s += seconds
        self.jump(seconds)


class AgentBed:
    """One agent; ``deliver`` gives it a bundle and waits for the final report."""

    def __init__(
        self,
        agent: Agent,
        signer: Ed25519PrivateKey,
        membership: Membership,
        resources: Path,
        clock: JumpingClock,
        outcomes: asyncio.Queue[Outcome],
        session: aiohttp.ClientSession,
    ) -> None:
        self.preflight = Preflight.OFF
        self.membership = membership
        self.state = agent.state
        assert isinstance(agent.home, LocalHome)
        self.storage = agent.home.storage
        self.inbox = agent.inbox
        self.outbox = agent.outbox
        self.ledger = agent.ledger
        self.sidecars = agent.home.sidecars
        self.reconciler = agent.reconciler
        self.resources = resources
        self.clock = clock
        self._signer = signer
        self.outcomes = outcomes
        self._session = session
        self._sequence = 0
        self._resources: tuple[dict[str, Any], ...] = ()

    @property
    def sidecar(self) -> Sidecar:
        """The first sidecar."""
        first = self.sidecars[0]
        assert isinstance(first, Sidecar)
        return first

    async def deliver(self, *resources: dict[str, Any], attempt: int = 1, **policy: Any) -> Report:
        """Deliver these resources in place of the previous ones and return the final report."""
        await self.inbox.accept(self.sign(resources, attempt=attempt, **policy), self.membership)
        return await self.final_report(self._sequence)

    def sign(
        self,
        resources: Iterable[dict[str, Any]],
        window_s: int = WINDOW_S,
        unproven: Unproven = Unproven.RESTART,
        strategy: Strategy = Strategy.RELOAD,
        attempt: int = 1,
        drift: Drift = Drift.ENFORCE,
        retry: Retry = Retry.NEVER,
        windows: tuple[Window, ...] = (),
        scope: WindowScope = WindowScope.RESTARTS,
        hold: Hold | None = None,
    ) -> SignedDelivery:
        """Return the next delivery, signed."""
        delivered = tuple(resources)
        removed = {resource_ref(each, "") for each in self._resources} - {resource_ref(each, "") for each in delivered}
        self._sequence += 1
        self._resources = delivered
        policy = ApplyPolicy(self.preflight, strategy, unproven, window_s, retry, drift, scope)
        content = digest(list(delivered))
        delivery = Delivery(RUNTIME, self._sequence, attempt, 1, content, delivered, tuple(sorted(removed)), policy)
        return sign_delivery(msgspec.structs.replace(delivery, windows=windows, hold=hold), self._signer)

    async def send(self, *resources: dict[str, Any], **policy: Any) -> int:
        """Deliver these resources in place of the previous ones, without waiting, and return the sequence."""
        await self.inbox.accept(self.sign(resources, **policy), self.membership)
        return self._sequence

    async def waiting_report(self, sequence: int) -> Report:
        """Wait until the agent reports that a delivery waits, and return the report."""
        return await self.wait_for_report(lambda report: report.sequence == sequence and report.waits_for is not None)

    async def final_report(self, sequence: int) -> Report:
        """Wait for the final report on a delivery and return it."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                await self.outcomes.get()
                report = self.outbox.newest
                if report is not None and report.sequence == sequence and is_final(report):
                    return report

    async def wait_for_report(self, predicate: Callable[[Report], bool]) -> Report:
        """Wait until the newest report satisfies ``predicate`` and return it."""

        async def matching() -> Report | None:
            return self.outbox.newest if self.outbox.newest and predicate(self.outbox.newest) else None

        report = await until(matching, within_s=_TIMEOUT_S)
        assert report is not None
        return report

    async def get(self, path: str) -> tuple[int, str]:
        """Send a GET to the sidecar, as its application does; return status and body."""
        async with self._session.get(f"http://127.0.0.1:{self.sidecar.ports.http}{path}") as response:
            return response.status, await response.text()


@asynccontextmanager
async def running_agent(
    directory: Path,
    program: Path,
    *,
    sidecars: Sequence[SidecarSettings] = (SidecarSettings(app_id="app"),),
    detach_sidecars: bool = False,
    resync_s: float = 3600,
) -> AsyncIterator[AgentBed]:
    """Run an agent with one sidecar, ``app``, until the block ends; a second one in ``directory`` restores the state.

    With ``detach_sidecars`` the sidecars outlive the agent.
    """
    settings = Settings(
        state_dir=directory / "state",
        resources_dir=directory / "resources",
        daprd=program,
        sidecars=tuple(sidecars),
        stop_sidecars_on_exit=not detach_sidecars,
        resync_interval=resync_s,
    )
    signer, clock, outcomes = Ed25519PrivateKey.generate(), JumpingClock(), asyncio.Queue[Outcome]()
    membership = await _joined(settings.state, signer)
    opened = open_agent(
        settings,
        clock,
        Registry(),
        backoff=Backoff(0.1, 1.0),
        on_outcome=lambda _key, outcome: outcomes.put_nowait(outcome),
    )
    async with aiohttp.ClientSession() as session, opened as agent:
        parts = (agent.platform.run, agent.reconciler.run, agent.resync.run)
        tasks = [asyncio.create_task(each()) for each in parts]
        try:
            yield AgentBed(agent, signer, membership, settings.resources, clock, outcomes, session)
        finally:
            for task in reversed(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def connected_agent(
    directory: Path, daprd: Path, clock: JumpingClock, bed: ServerBed | GovernorServer | None = None
) -> AsyncIterator[Agent]:
    """Run an agent that joins the server of ``bed``, or that has joined before, in this process."""
    token: Secret | None = None
    if bed is not None:
        async with bed.client() as admin:
            token = Secret((await admin.create_token(TokenRequest(runtime="r1"))).text)
    settings = Settings(
        state_dir=directory / "state",
        resources_dir=directory / "resources",
        daprd=daprd,
        sidecars=(SidecarSettings(app_id="app"),),
        join_token=token,
        stop_sidecars_on_exit=True,
    )
    async with open_agent(settings, clock, Registry(), backoff=Backoff(0.1, 1.0)) as agent:
        parts = (agent.platform.run, agent.reconciler.run, agent.connection.run)
        tasks = [asyncio.create_task(run()) for run in parts]
        try:
            yield agent
        finally:
            for task in reversed(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def loaded(agent: Agent) -> list[str]:
    """Return the components that the sidecar uses."""
    assert isinstance(agent.home, LocalHome)
    (sidecar,) = agent.home.sidecars
    assert isinstance(sidecar, Sidecar)
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{sidecar.ports.http}/v1.0/metadata") as response,
    ):
        return [each["name"] for each in msgspec.json.decode(await response.read())["components"]]


async def _joined(state_dir: Path, signer: Ed25519PrivateKey) -> Membership:
    """Return the stored membership; on the first start, store one whose server signs with ``signer``."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = AgentState(FileBlobs(state_dir))
    stored = await state.membership()
    if stored is not None:
        return stored
    public = signer.public_key()
    membership = Membership("http://127.0.0.1:1", "", Enrolment(RUNTIME, key_id(public), encode_public_key(public)))
    await state.save_membership(membership)
    return membership


def resource_report(report: Report, name: str) -> ResourceReport:
    """Return the part of a report on the resource of this name."""
    return next(each for each in report.resources if each.resource.name == name)


def ref(kind: str, name: str) -> ResourceRef:
    """Return a reference in the bed's namespace."""
    return ResourceRef(kind, "default", name)
