"""The services available to request handlers; ``main`` builds them."""

from typing import Final, NamedTuple

from governor.process.clock import Clock
from governor.process.flowcontrol.byte_budget import ByteBudget
from governor.process.flowcontrol.limiter import Limiter
from governor.process.flowcontrol.worker import Worker
from governor.process.telemetry.health import Checks
from governor.server.changes.catalogue import Catalogues
from governor.server.changes.issuer import Issuer
from governor.server.changes.ownership import Ownership
from governor.server.changes.pipeline import Changes
from governor.server.changes.redelivery import Redelivery
from governor.server.identity.certificates import Certificate
from governor.server.identity.principals import Identity
from governor.server.metrics import Metrics
from governor.server.store.bundles import Contents
from governor.server.store.sqlite import Store
from governor.server.watch.hub import Hub
from governor.server.watch.progress import ProgressReader
from governor.server.watch.reporting import Reports
from governor.server.watch.signer import DeliverySigner


class Site(NamedTuple):
    """Address, CA fingerprint and delivery key of this server, as agents need them."""

    url: str
    ca: str
    delivery_key: str
    delivery_key_id: str


class Timing(NamedTuple):
    """Timeouts and intervals of requests and streams."""

    keepalive_s: float = 15.0
    stall_s: float = 30.0
    dead_s: float = 30.0
    body_s: float = 30.0
    response_s: float = 60.0
    change_s: float = 10.0
    progress_pause_s: float = 0.25


DEFAULT_TIMING: Final = Timing()


class Services(NamedTuple):
    """All services that a handler may use."""

    store: Store
    hub: Hub
    catalogues: Catalogues
    contents: Contents
    changes: Changes
    issuer: Issuer
    redelivery: Redelivery
    identity: Identity
    signer: DeliverySigner
    reports: Reports
    progress: ProgressReader
    clock: Clock
    checks: Checks
    metrics: Metrics
    site: Site
    timing: Timing
    enrolment_limiter: Limiter
    worker: Worker
    held_bodies: ByteBudget
    ownership: Ownership
    legacy_open: bool
    certificate: Certificate | None
