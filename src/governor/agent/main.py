"""The agent program: opens its state, assembles the parts and runs them. The only module that imports every part."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import aiohttp

import governor
from governor.agent.connection import Connection
from governor.agent.enrolment import check_token, load_or_create_key
from governor.agent.inbox import Inbox
from governor.agent.ledger import Ledger
from governor.agent.loop import KEY, Loop
from governor.agent.outbox import Outbox
from governor.agent.platforms.local import daprd
from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.external import ExternalSidecar
from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.platforms.local.preflight_runner import PreflightRunner
from governor.agent.platforms.local.sidecar import STOP_GRACE_S, Sidecar
from governor.agent.platforms.local.verifier import AnySidecar
from governor.agent.settings import Settings
from governor.agent.storage import FIRST_KEY, Storage
from governor.process import supervise
from governor.process.address import listen
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Outcome, ReconcileMetrics, Reconciler
from governor.process.reconcile.resync import Resync
from governor.process.supervise import Component, Lifecycle
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Gauge, Registry
from governor.process.telemetry.metrics import LoopLag, program_registry

_GRACE_S: Final = STOP_GRACE_S + 5.0
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=60.0)


class Agent(NamedTuple):
    """The assembled parts of an agent."""

    storage: Storage
    inbox: Inbox
    outbox: Outbox
    ledger: Ledger
    sidecars: tuple[AnySidecar, ...]
    platform: LocalPlatform
    reconciler: Reconciler[str]
    resync: Resync[str]
    connection: Connection


def main(settings: Settings) -> int:
    """Run the agent until it stops and return the exit code."""
    logging.configure("agent", level=settings.log_level)
    return supervise.main(lambda: run(settings))


async def run(settings: Settings) -> int:
    """Run the agent's components until a signal arrives and return the exit code."""
    clock, lifecycle = SystemClock(), Lifecycle()
    registry = program_registry("agent", governor.__version__)
    async with open_agent(settings, clock, registry) as agent:
        health = HealthServer(listen(settings.health_listen), _checks(agent, lifecycle, registry), registry)
        components = [
            Component("health", health.run),
            Component("loop-lag", LoopLag(registry, clock).run),
            Component("sidecars", agent.platform.run),
            Component("loop", agent.reconciler.run),
            Component("resync", agent.resync.run),
            Component("connection", agent.connection.run),
        ]
        return await supervise.run_program(components, grace_s=_GRACE_S, lifecycle=lifecycle)


@asynccontextmanager
async def open_agent(
    settings: Settings,
    clock: Clock,
    registry: Registry,
    *,
    backoff: Backoff = _BACKOFF,
    on_outcome: Callable[[str, Outcome], None] | None = None,
) -> AsyncIterator[Agent]:
    """Lock the state directory, restore the agent's state, adopt running sidecars and yield the parts, not yet running.

    ``on_outcome`` receives the outcome of each reconcile.
    """
    storage = Storage(settings.state_dir.absolute())
    storage.prepare()
    with storage.locked():
        membership = storage.membership()
        # An unusable key is reported before anything is started.
        load_or_create_key(storage.key_file(membership.key if membership else FIRST_KEY))
        token = check_token(settings.join_token, membership)

        def wake() -> None:
            reconciler.add(KEY)

        outbox, ledger = Outbox(clock), Ledger(storage)
        inbox = Inbox(storage, clock, wake, outbox.watch_opened)
        inbox.restore(membership)
        ledger.restore(membership)
        async with aiohttp.ClientSession() as session:
            sidecars, platform = _local_platform(settings, storage, session, clock, wake)
            await platform.adopt(storage.directory)
            reconciler = Reconciler[str](
                Loop(inbox, outbox, platform, ledger, clock).reconcile,
                name="agent",
                metrics=ReconcileMetrics(registry),
                clock=clock,
                backoff=backoff,
                on_outcome=on_outcome,
            )
            wake()
            connection = Connection(membership, token, storage, inbox, outbox, clock)
            # A hanging sidecar causes no event.
            resync = Resync(lambda: [KEY], reconciler.add, settings.resync_interval, clock=clock)
            yield Agent(storage, inbox, outbox, ledger, sidecars, platform, reconciler, resync, connection)


def _local_platform(
    settings: Settings, storage: Storage, session: aiohttp.ClientSession, clock: Clock, on_change: Callable[[], None]
) -> tuple[tuple[AnySidecar, ...], LocalPlatform]:
    directory = ResourceDirectory(settings.resources.absolute(), storage)
    directory.prepare()
    launch = daprd.Launch(
        daprd.find_program(settings.daprd),
        directory.resources,
        settings.namespace,
        storage.directory,
        stop_with_agent=settings.stop_sidecars_on_exit,
    )
    sidecars: tuple[AnySidecar, ...] = tuple(
        ExternalSidecar(each, directory.resources, session, clock, on_change=on_change)
        if each.external
        else Sidecar(each, launch, storage, session, clock, on_change=on_change)
        for each in settings.sidecars
    )
    preflight = PreflightRunner(launch, storage.directory / "preflight", session, clock)
    return sidecars, LocalPlatform(settings.namespace, directory, sidecars, preflight, clock, on_change=on_change)


def _checks(agent: Agent, lifecycle: Lifecycle, registry: Registry) -> Checks:
    """Return the health checks: ready when every sidecar runs, with or without a server."""
    checks = Checks()
    checks.ready("lifecycle", lifecycle.not_ready)
    checks.ready("identity", agent.inbox.identity_conflict)
    up = Gauge("governor_agent_sidecar_up", "Whether the sidecar's process is running.", ["app_id"], registry=registry)
    for each in agent.sidecars:
        checks.ready(f"sidecar {each.app_id}", each.not_ready)
        up.labels(each.app_id).set_function(each.is_up)
    return checks
