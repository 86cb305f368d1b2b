"""The agent program: opens its state, assembles the parts and runs them. The only module that imports every part.

With leader election it opens its state whenever it leads, and closes it when the lease is lost: opening it earlier
would depose the leader. A process that does not lead is ready, since it takes over.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import governor
from governor.agent.connection import Connection
from governor.agent.enrolment import check_token, load_or_create_key
from governor.agent.home import Home, Identity
from governor.agent.inbox import Inbox
from governor.agent.ledger import Ledger
from governor.agent.loop import KEY, Loop
from governor.agent.outbox import Outbox
from governor.agent.platform import Platform
from governor.agent.settings import Settings
from governor.agent.state.agent_state import AgentState
from governor.agent.state.records import FIRST_KEY, Membership
from governor.domain.documents import Platform as PlatformName
from governor.process import supervise
from governor.process.address import listen
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Outcome, ReconcileMetrics, Reconciler
from governor.process.reconcile.resync import Resync
from governor.process.supervise import Component, Lifecycle
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import LoopLag, program_registry
from governor.wire.credentials import JoinToken

_GRACE_S: Final = 15.0
"""Sidecars that stop with the agent take up to ten seconds."""
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=60.0)


class Agent(NamedTuple):
    """The assembled parts of an agent."""

    state: AgentState
    home: Home
    inbox: Inbox
    outbox: Outbox
    ledger: Ledger
    platform: Platform
    reconciler: Reconciler[str]
    resync: Resync[str]
    connection: Connection


def main(settings: Settings) -> int:
    """Run the agent until it stops and return the exit code."""
    logging.configure("agent", level=settings.log_level)
    return supervise.main(lambda: run(settings))


async def run(settings: Settings) -> int:
    """Run the agent's components until a signal arrives and return the exit code."""
    program = _Program(settings)
    if settings.observe:
        from governor.agent.platforms.kubernetes.observation.observation import open_observation  # noqa: PLC0415

        async with open_observation(settings, program.clock, program.registry, program.checks) as components:
            return await program.run(components)
    if settings.leader_election:
        from governor.agent.platforms.kubernetes.home import open_elector  # noqa: PLC0415

        async with open_elector(settings, program.clock, program.registry) as elector:
            program.checks.ready("leader-election", lambda: elector.failure)
            return await program.run([Component("agent", lambda: elector.run(program.lead))])
    async with program.opened() as components:
        return await program.run(components)


class _Program:
    """What outlives a term of leadership: the health server with its checks and metrics."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lifecycle = Lifecycle()
        self._opening = ""
        self.clock = SystemClock()
        self.registry = program_registry("agent", governor.__version__)
        self.checks = Checks()
        self.checks.ready("lifecycle", self._lifecycle.not_ready)
        self.checks.ready("agent", lambda: self._opening)

    async def run(self, components: Sequence[Component]) -> int:
        """Run the program with the components of the agent and return the exit code."""
        health = HealthServer(listen(self._settings.health_listen), self.checks, self.registry)
        always = (Component("health", health.run), Component("loop-lag", LoopLag(self.registry, self.clock).run))
        return await supervise.run_program((*always, *components), grace_s=_GRACE_S, lifecycle=self._lifecycle)

    async def lead(self) -> None:
        """Run the agent for one term, until cancelled; raise if a component ends."""
        self._opening = "the agent opens its state"
        try:
            async with self.opened() as components:
                self._opening = ""
                await supervise.run_group(components)
        finally:
            self._opening = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Sequence[Component]]:
        """Open the agent and yield its components; its checks and metrics are part of the program's meanwhile."""
        registry, checks = Registry(), Checks()
        async with open_agent(self._settings, self.clock, registry) as agent:
            checks.ready("identity", agent.inbox.identity_conflict)
            agent.home.add_checks(checks, registry)
            with self.registry.including(registry), self.checks.including(checks):
                yield (
                    Component("sidecars", agent.platform.run),
                    Component("loop", agent.reconciler.run),
                    Component("resync", agent.resync.run),
                    Component("connection", agent.connection.run),
                )


@asynccontextmanager
async def open_agent(
    settings: Settings,
    clock: Clock,
    registry: Registry,
    *,
    backoff: Backoff = _BACKOFF,
    on_outcome: Callable[[str, Outcome], None] | None = None,
) -> AsyncIterator[Agent]:
    """Open the agent's home, restore its state and yield the parts, not yet running.

    ``on_outcome`` receives the outcome of each reconcile.
    """

    def wake() -> None:
        reconciler.add(KEY)

    async with _home(settings, clock, registry) as home:
        state = AgentState(home.blobs)
        membership = await state.membership()
        # An unusable key is reported before anything is started.
        key = await load_or_create_key(state, membership.key if membership else FIRST_KEY)
        token = check_token(settings.join_token, membership)
        outbox, ledger = Outbox(clock), Ledger(state)
        inbox = Inbox(state, clock, wake, outbox.watch_opened)
        await inbox.restore(membership)
        await ledger.restore(membership)
        async with home.open(Identity(_runtime(membership, token), key.private_bytes_raw()), wake) as platform:
            reconciler = Reconciler[str](
                Loop(inbox, outbox, platform, ledger, clock).reconcile,
                name="agent",
                metrics=ReconcileMetrics(registry),
                clock=clock,
                backoff=backoff,
                on_outcome=on_outcome,
            )
            wake()
            name = PlatformName(settings.platform)
            connection = Connection(
                membership, token, state, inbox, outbox, clock, name, epoch=lambda: home.epoch, inventory=home.inventory
            )
            # A hanging sidecar causes no event.
            resync = Resync(lambda: [KEY], reconciler.add, settings.resync_interval, clock=clock)
            yield Agent(state, home, inbox, outbox, ledger, platform, reconciler, resync, connection)


@asynccontextmanager
async def _home(settings: Settings, clock: Clock, registry: Registry) -> AsyncIterator[Home]:
    """Open the home of the platform; the modules of the other one are not loaded."""
    if settings.platform == "kubernetes":
        from governor.agent.platforms.kubernetes.home import kubernetes_home  # noqa: PLC0415

        async with kubernetes_home(settings, clock, registry) as home:
            yield home
    else:
        from governor.agent.platforms.local.home import local_home  # noqa: PLC0415

        with local_home(settings, clock) as home:
            yield home


def _runtime(membership: Membership | None, token: JoinToken | None) -> str:
    if membership is not None:
        return membership.enrolment.runtime
    assert token is not None  # noqa: S101 - ``check_token`` requires a token without a membership
    return token.runtime
