"""The server program: opens the data directory, builds the services and runs the components until it is stopped."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import governor
from governor.process.address import Address, bound_address, listen
from governor.process.clock import Clock, SystemClock
from governor.process.flowcontrol.byte_budget import ByteBudget
from governor.process.flowcontrol.limiter import Limiter, Rate
from governor.process.flowcontrol.worker import Worker
from governor.process.reconcile.reconciler import ReconcileMetrics
from governor.process.supervise import Component, Lifecycle, run_program
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import LoopLag, program_registry
from governor.server.api.application import Application
from governor.server.api.endpoints import MAX_BODY_BYTES
from governor.server.api.routes import ENDPOINTS
from governor.server.changes.catalogue import Catalogues
from governor.server.changes.issuer import Issuer
from governor.server.changes.ownership import Ownership
from governor.server.changes.pipeline import Changes
from governor.server.changes.redelivery import Redelivery
from governor.server.data_directory import DATABASE, ensure_admin, locked, write_url
from governor.server.identity.certificates import Certificate, open_certificate
from governor.server.identity.keys import ServerKeys, open_keys
from governor.server.identity.known_credentials import KnownCredentials
from governor.server.identity.principals import Identity
from governor.server.maintenance import PendingCount, Pruner
from governor.server.metrics import Metrics
from governor.server.services import DEFAULT_TIMING, Services, Site, Timing
from governor.server.settings import Settings
from governor.server.sources.poc_file import PocFile
from governor.server.store import schema_version
from governor.server.store.bundles import Contents
from governor.server.store.identities import all_runtime_keys
from governor.server.store.incarnation import count_start
from governor.server.store.sqlite import Store
from governor.server.uvicorn_server import UvicornServer
from governor.server.watch.fanout import Fanout
from governor.server.watch.heartbeat import Heartbeat
from governor.server.watch.hub import Hub
from governor.server.watch.progress import ProgressReader
from governor.server.watch.reporting import Reports, derive_summaries
from governor.server.watch.signer import DeliverySigner
from governor.wire.credentials import encode_public_key, key_id

GRACE_S: Final = 10.0
ENROLMENT_BURST: Final = 500
WORKER_THREADS: Final = 2
"""With a second thread small requests overtake a large one; more would only compete for the interpreter lock."""
GC_THRESHOLDS: Final = (20_000, 20, 20)
"""New objects before a collection, and collections before one of the next generation."""
MAX_HELD_BODY_BYTES: Final = 2 * MAX_BODY_BYTES
"""Limit of all request bodies together, from arrival to response; a decoded body takes several times its size."""

_log = logging.get_logger(__name__)


async def serve(settings: Settings) -> int:
    """Run the server and return the exit code."""
    logging.configure("server", level=settings.log_level)
    clock, registry = SystemClock(), program_registry("server", governor.__version__)
    with listen(settings.listen) as listener, listen(settings.health_listen) as health_listener:
        async with open_services(settings, bound_address(listener), clock, registry) as services:
            lifecycle = Lifecycle()
            services.checks.ready("lifecycle", lifecycle.not_ready)
            components = [
                Component("health", HealthServer(health_listener, services.checks, registry).run),
                Component("loop-lag", LoopLag(registry, clock).run),
                Component("issuer", services.issuer.run),
                Component("heartbeat", heartbeat(services).run),
                Component("pruner", Pruner(services.store, clock, settings.keep_deliveries).run),
                Component("pending-count", PendingCount(services.store, clock, services.metrics).run),
                *sources(services, settings),
                *certificate_renewal(services),
                Component("api", api_server(services, listener).run),
            ]
            tune_collector()
            return await run_program(components, grace_s=GRACE_S, lifecycle=lifecycle)


def tune_collector() -> None:
    """Collect garbage rarely: a full collection visits the objects of every open watch.

    Everything loaded so far, which is never freed, is excluded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


@asynccontextmanager
async def open_services(
    settings: Settings, address: Address, clock: Clock, registry: Registry, timing: Timing = DEFAULT_TIMING
) -> AsyncIterator[Services]:
    """Build the services on the locked data directory; close and unlock it on exit."""
    metrics, checks, ownership = Metrics(registry), Checks(), Ownership()
    with ExitStack() as stack:
        directory = stack.enter_context(locked(settings.data_dir.absolute()))
        await asyncio.to_thread(schema_version.prepare, directory / DATABASE)
        store = Store(directory / DATABASE, metrics.commit_size.observe)
        stack.callback(store.close)
        checks.alive("store", store.not_alive)
        hub = Hub(clock, await store.write(count_start), settings.max_watches)
        metrics.observe_watches(hub.open_watches)
        worker = Worker("decoder", threads=WORKER_THREADS)
        stack.callback(worker.close)
        sealing_key = settings.sealing_key
        keys = await store.write(lambda connection: open_keys(connection, directory, clock.now(), sealing_key))
        await store.write(lambda connection: ensure_admin(connection, directory, clock))
        certificate = await asyncio.to_thread(open_certificate, settings, directory, clock)
        site = _site(settings, address, keys, certificate)
        write_url(directory, _url(settings, address))
        _log.info("server listening", url=_url(settings, address), public_url=site.url, data_dir=str(directory))
        catalogues, contents = Catalogues(), Contents()
        signer = DeliverySigner(keys.sealer, keys.delivery_key)
        catalogues.committed = await store.read(catalogues.at)
        known = KnownCredentials()
        known.put_keys(await store.read(all_runtime_keys))
        await store.write(lambda connection: derive_summaries(connection, contents))
        issuer = Issuer(store, contents, clock, metrics, ReconcileMetrics(registry), Fanout(hub, signer, metrics).send)
        changes = Changes(
            store,
            hub,
            keys.sealer,
            ownership,
            worker,
            clock,
            metrics,
            catalogues=catalogues,
            contents=contents,
            on_drafts=issuer.wake,
        )
        services = Services(
            store=store,
            hub=hub,
            catalogues=catalogues,
            contents=contents,
            changes=changes,
            issuer=issuer,
            redelivery=Redelivery(store, hub, clock, metrics, catalogues=catalogues, contents=contents),
            identity=Identity(store, hub, clock, known),
            signer=signer,
            progress=ProgressReader(store, hub, catalogues, clock),
            reports=Reports(store, contents, hub, clock, metrics),
            clock=clock,
            checks=checks,
            metrics=metrics,
            site=site,
            timing=timing,
            ownership=ownership,
            legacy_open=settings.legacy_open,
            certificate=certificate,
            enrolment_limiter=Limiter(Rate(settings.enrolments_per_minute / 60, ENROLMENT_BURST), clock),
            worker=worker,
            held_bodies=ByteBudget(MAX_HELD_BODY_BYTES),
        )
        try:
            yield services
        finally:
            await changes.close()


def sources(services: Services, settings: Settings) -> list[Component]:
    """Return the configured sources of documents."""
    if settings.poc_file is None:
        return []
    file = PocFile(settings.poc_file.absolute(), services.changes, services.store, services.ownership, services.clock)
    return [Component("poc-file", file.run)]


def certificate_renewal(services: Services) -> list[Component]:
    """Return the component that renews or reloads the certificate; none without TLS."""
    return [Component("certificate", services.certificate.run)] if services.certificate else []


def heartbeat(services: Services) -> Heartbeat:
    """Return the component that keeps open streams alive."""
    keepalive_s, stall_s = services.timing.keepalive_s, services.timing.stall_s
    return Heartbeat(services.hub, services.clock, services.metrics, interval_s=keepalive_s, stall_s=stall_s)


def api_server(services: Services, listener: socket.socket) -> UvicornServer:
    """Return the HTTP server of the API on a bound socket."""
    context = services.certificate.context if services.certificate else None
    app = Application(services, ENDPOINTS)
    return UvicornServer(app, listener, context, services.hub.close, dead_s=services.timing.dead_s)


def _site(settings: Settings, address: Address, keys: ServerKeys, certificate: Certificate | None) -> Site:
    pin = certificate.pin if certificate and settings.pin_authority else ""
    url = settings.public_url.rstrip("/") or _url(settings, address)
    public = keys.delivery_key.public_key()
    return Site(url, pin, encode_public_key(public), key_id(public))


def _url(settings: Settings, address: Address) -> str:
    return f"{'https' if settings.uses_tls else 'http'}://{address}"
