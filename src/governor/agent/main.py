"""The agent put together: the only module that knows all its parts."""

from typing import Final

import aiohttp

import governor
from governor.agent.connection import Connection
from governor.agent.enrolment import check_token, load_or_make_key
from governor.agent.inbox import Inbox
from governor.agent.ledger import Ledger
from governor.agent.loop import KEY, Loop
from governor.agent.outbox import Outbox
from governor.agent.platforms.local import daprd
from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.external import ExternalSidecar
from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.platforms.local.prover import AnySidecar
from governor.agent.platforms.local.sidecar import STOP_GRACE_S, Sidecar
from governor.agent.platforms.local.throwaway import ThrowAway
from governor.agent.settings import Settings
from governor.agent.storage import Storage
from governor.process import supervise
from governor.process.address import listen
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import ReconcileMetrics, Reconciler
from governor.process.supervise import Component, Lifecycle
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Gauge, Registry
from governor.process.telemetry.metrics import LoopLag, program_registry

_GRACE_S: Final = STOP_GRACE_S + 5.0
_BACKOFF: Final = Backoff(initial_s=0.5, max_s=60.0)


def main(settings: Settings) -> int:
    """Run the agent to its end; the exit code."""
    logging.configure("agent", level=settings.log_level)
    storage = Storage(settings.state_dir.absolute())
    storage.prepare()
    with storage.locked():
        return supervise.main(lambda: run(settings, storage))


async def run(settings: Settings, storage: Storage) -> int:
    """Make the parts and run them until a signal arrives."""
    clock, lifecycle = SystemClock(), Lifecycle()
    async with aiohttp.ClientSession() as session:
        components = await _components(settings, storage, session, clock, lifecycle)
        return await supervise.run_program(components, grace_s=_GRACE_S, lifecycle=lifecycle)


async def _components(
    settings: Settings, storage: Storage, session: aiohttp.ClientSession, clock: Clock, lifecycle: Lifecycle
) -> list[Component]:
    key = load_or_make_key(storage.key_file)
    membership = storage.membership()
    token = check_token(settings.join_token, membership)
    directory = ResourceDirectory(settings.resources.absolute(), storage)
    directory.prepare()
    launch = daprd.Launch(
        daprd.find_program(settings.daprd),
        directory.resources,
        settings.namespace,
        storage.directory,
        ends_with_agent=settings.stop_sidecars_on_exit,
    )

    def wake() -> None:
        reconciler.add(KEY)

    inbox, outbox = Inbox(storage, clock, wake), Outbox(clock)
    inbox.restore(membership)
    ledger = Ledger(storage)
    ledger.restore(membership)
    sidecars: list[AnySidecar] = [
        ExternalSidecar(each, directory.resources, session, clock, on_change=wake)
        if each.external
        else Sidecar(each, launch, storage, session, clock, on_change=wake)
        for each in settings.sidecars
    ]
    throw_away = ThrowAway(launch, storage.directory / "preflight", session, clock)
    platform = LocalPlatform(settings.namespace, directory, sidecars, throw_away, clock)
    await platform.take_over(storage.directory)
    loop = Loop(inbox, outbox, platform, ledger, clock)
    registry = program_registry("agent", governor.__version__)
    reconciler = Reconciler[str](
        loop.reconcile, name="agent", metrics=ReconcileMetrics(registry), clock=clock, backoff=_BACKOFF
    )
    wake()
    health = HealthServer(listen(settings.health_listen), _checks(inbox, sidecars, lifecycle, registry), registry)
    return [
        Component("health", health.run),
        Component("loop-lag", LoopLag(registry, clock).run),
        Component("sidecars", platform.run),
        Component("loop", reconciler.run),
        Component("connection", Connection(membership, token, key, storage, inbox, outbox, clock).run),
    ]


def _checks(inbox: Inbox, sidecars: list[AnySidecar], lifecycle: Lifecycle, registry: Registry) -> Checks:
    """Ready when every sidecar runs; the server need not be there, because the applications do not need it."""
    checks = Checks()
    checks.ready("lifecycle", lifecycle.not_ready)
    checks.ready("identity", inbox.not_alone)
    up = Gauge("governor_agent_sidecar_up", "Whether the sidecar's process runs.", ["app_id"], registry=registry)
    for each in sidecars:
        checks.ready(f"sidecar {each.app_id}", each.not_ready)
        up.labels(each.app_id).set_function(each.is_up)
    return checks
