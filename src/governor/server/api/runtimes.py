"""Handlers for runtimes: status and explanation for users; watch, bundles and reports for agents."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import sqlalchemy as sa

from governor.domain.bundles import Delivery, DeliveryPosition, compile_bundle
from governor.domain.conditions import RUNTIME_STATES
from governor.domain.documents import ApplyPolicy, DocumentRef, Platform
from governor.domain.layering import Origin
from governor.domain.reports import Check, Report
from governor.domain.windows import active
from governor.errors import GovernorError, Kind, invalid
from governor.server.api.endpoints import Call, Events, Produced, Response, not_found, parse_integer
from governor.server.changes.catalogue import Catalogues
from governor.server.changes.compiler import read_layer
from governor.server.changes.redelivery import REISSUED
from governor.server.identity.principals import check_platform
from governor.server.services import Services
from governor.server.store.deliveries import Offer, find_delivery, find_offer
from governor.server.store.documents import versions_of
from governor.server.watch.hub import Watcher
from governor.server.watch.reporting import FOREIGN_REPORT
from governor.server.watch.status import RuntimeQuery, read_page, read_runtimes, runtime_view
from governor.values.paths import Path, render
from governor.values.selectors import parse
from governor.values.suggestions import suggestion
from governor.values.trees import Tree, leaf_at, masked
from governor.wire import deliveries, reports
from governor.wire.deliveries import format_for, read_position, required_format, unsupported
from governor.wire.formats import DELIVERY_FORMATS, EPOCH, PLATFORM, REPORT_FORMAT, REPORT_FORMATS, negotiate
from governor.wire.reports import Report1, from_format_1
from governor.wire.rest import PREFIX, FieldExplanation, ResourceExplanation, RuntimeExplanation

DEFAULT_PAGE: Final = 500
MAX_PAGE: Final = 1000
_MAX_WATCHER_CHARS: Final = 253
_OTHER_ID: Final = "?"
"""An id that no delivery has."""


async def list_runtimes(call: Call) -> Response:
    """Return one page of runtimes with their status; the header Link has the address of the next one."""
    limit = DEFAULT_PAGE if (requested := call.number("limit")) is None else requested
    if not 0 < limit <= MAX_PAGE:
        raise invalid("limit", f"limit must be from 1 to {MAX_PAGE}")
    state = call.query.get("state")
    if state is not None and state not in RUNTIME_STATES:
        raise invalid("state-unknown", f"unknown state {state!r}; {suggestion(state, RUNTIME_STATES, 'known states')}")
    query = RuntimeQuery(call.query.get("name", ""), parse(call.query.get("selector", "")), state)
    services, after, full = call.services, call.query.get("after", ""), call.flag("full")
    catalogue, presence_of, now = services.catalogues.committed, services.hub.presence, services.clock.now()
    found = await services.store.read(
        lambda connection: read_page(
            connection, catalogue, query, presence_of, now, after=after, limit=limit, full=full
        )
    )
    headers = _next_page(call, found[limit - 1].name) if len(found) > limit else ()
    return Response(found[:limit], headers=headers)


def _next_page(call: Call, last: str) -> tuple[tuple[str, str], ...]:
    query = urlencode({**call.query, "after": last})
    return (("Link", f'<{PREFIX}/runtimes?{query}>; rel="next"'),)


async def get_runtime(call: Call) -> Response:
    """Return one runtime with its status."""
    services = call.services
    runtime = services.catalogues.committed.runtimes.get(call.path["runtime"])
    if runtime is None:
        raise not_found(f"runtime {call.path['runtime']!r}")
    (record,) = await services.store.read(lambda connection: read_runtimes(connection, [runtime], full=True))
    return Response(runtime_view(record, services.hub.presence, services.clock.now()))


async def explain(call: Call) -> Response:
    """Return each field of a runtime's configuration with the profile that set it."""
    name, catalogues = call.path["runtime"], call.services.catalogues
    found = await call.services.store.read(lambda connection: _read_explanation(connection, catalogues, name))
    if found is None:
        raise not_found(f"runtime {name!r}")
    return Response(found)


def _read_explanation(connection: sa.Connection, catalogues: Catalogues, runtime: str) -> RuntimeExplanation | None:
    """Compile the current documents of a runtime and return the origin of each field; None if it does not exist."""
    catalogue = catalogues.at(connection)
    found = catalogue.runtimes.get(runtime)
    if found is None:
        return None
    stored = versions_of(connection, [DocumentRef("Profile", name) for name in catalogue.profiles_of(found)])
    bundle, folded = compile_bundle(found, [read_layer(each.tree) for each in stored.values() if each.tree is not None])
    versions = {ref.name: each.version for ref, each in stored.items()}
    resources = tuple(
        ResourceExplanation(ref, tuple(_explain_fields(manifest, folded.origins[ref], versions)))
        for ref, manifest in zip(folded.resources, bundle.resources, strict=True)
    )
    policy = tuple(_explain_policy(bundle.apply, folded.apply_origins, versions))
    return RuntimeExplanation(runtime, bundle.digest, resources, policy)


def _explain_fields(
    tree: Tree, origins: Mapping[Path, Origin], versions: Mapping[str, int]
) -> Iterator[FieldExplanation]:
    for path, origin in sorted(origins.items(), key=lambda item: render(item[0])):
        value = masked(leaf_at(tree, path))
        yield FieldExplanation(render(path), value, origin.profile, versions[origin.profile], origin.rank[1])


def _explain_policy(
    policy: ApplyPolicy, origins: Mapping[Path, Origin], versions: Mapping[str, int]
) -> Iterator[FieldExplanation]:
    """Yield every field of the apply policy; a default has no profile."""
    whole: dict[str, Any] = msgspec.to_builtins(policy)
    explained = {each.path: each for each in _explain_fields(whole, origins, versions)}
    for name, value in whole.items():
        found = explained.get(name)
        yield found if found is not None and found.value is not None else FieldExplanation(name, value)


async def retry(call: Call) -> Response:
    """Deliver the newest delivery again under the next attempt; return the runtime."""
    await call.services.redelivery.retry(call.path["runtime"], call.principal.name)
    return await get_runtime(call)


async def revoke(call: Call) -> Response:
    """Revoke the key of a runtime's agent; return the runtime."""
    await call.services.identity.revoke_runtime(call.path["runtime"])
    return await get_runtime(call)


async def watch(call: Call) -> Events:
    """Stream the newest delivery, unless the agent has it, and every newer one."""
    runtime, held = call.path["runtime"], read_position(call.headers.get("last-event-id", ""))
    delivery_format = negotiate(call.headers, DELIVERY_FORMATS, deliveries.FORMATS)
    report_format = negotiate(call.headers, REPORT_FORMATS, reports.FORMATS)
    platform = call.headers.get(PLATFORM, Platform.LOCAL)
    _require_platform(call.services, runtime, platform)
    announcements = call.services.hub.announcements
    offer = await call.services.store.read(lambda connection: find_offer(connection, runtime, held))
    _require_format(call.services, runtime, offer, delivery_format)
    is_known, boot = offer.is_known, _watcher_text(call, "boot")
    # What this store did not issue does not count as held, whatever its sequence is. A sequence alone does not show
    # which delivery it is: a replaced database may have issued the same one.
    is_shown = is_known and (bool(held.id) or call.services.hub.is_confirmed(runtime, boot, held.sequence))
    epoch = parse_integer(call.headers.get(EPOCH, "0"), f"header {EPOCH}")
    watcher = Watcher(boot, _watcher_text(call, "host"), held.sequence if is_shown else 0, epoch)
    feed = _DeliveryFeed(call.services, runtime, platform, held, delivery_format, offer, announcements)
    headers = ((REPORT_FORMAT, str(report_format)),)
    return Events(runtime, feed.produce, watcher=watcher, headers=headers, feed=feed)


def _require_platform(services: Services, runtime: str, platform: str) -> None:
    """Raise if the agent is of another platform than its runtime."""
    document = services.catalogues.committed.runtimes.get(runtime)
    if document is not None:
        check_platform(document, platform)


def _require_format(services: Services, runtime: str, offer: Offer, newest_format: int) -> None:
    """Raise, and show it with the runtime, if its agent could not obey the newest delivery."""
    if newest_format < required_format(offer.windows, active(offer.hold, services.clock.now())):
        error = unsupported(runtime, newest_format)
        services.hub.note_refusal(runtime, error.message)
        raise error


def _watcher_text(call: Call, name: str) -> str:
    """Return a query parameter that is shown to users and other agents, so it must be short and printable."""
    text = call.query.get(name, "")
    if len(text) > _MAX_WATCHER_CHARS or not text.isprintable():
        raise invalid("word", f"query parameter {name} must be printable and at most {_MAX_WATCHER_CHARS} characters")
    return text


class _DeliveryFeed:
    """Source of one watch's events; skips the delivery that the agent has."""

    def __init__(
        self,
        services: Services,
        runtime: str,
        platform: str,
        held: DeliveryPosition,
        delivery_format: int,
        offer: Offer,
        announcements: int,
    ) -> None:
        self._services = services
        self._runtime = runtime
        self._platform = platform
        self._held = held
        self._format = delivery_format
        self._is_known = offer.is_known
        # Without an announcement since the offer was read, an agent that has the newest delivery needs no second read.
        self._is_current_at = announcements if offer.is_known and offer.is_held and delivery_format > 1 else None

    async def produce(self) -> Produced:
        is_current, self._is_current_at = self._is_current_at == self._services.hub.announcements, None
        if is_current:
            return Produced()
        if not self._is_known:
            # Only here, because by now the agent is accepted as the only one of its runtime.
            await self._services.redelivery.supersede_unknown(self._runtime, self._held)
            self._is_known = True
        elif self._format == 1 and not self._is_empty_or_sent():
            await self._services.redelivery.reissue_newest(self._runtime, self._held.sequence)
        delivery = await self._services.store.read(self._newest)
        if delivery is None or delivery.sequence == self._held.sequence:
            return Produced()
        delivery = delivery.in_force(self._services.clock.now())
        if self._format < required_format(delivery.windows, delivery.hold):
            # The next watch of this agent is rejected, with the reason.
            return Produced(last=True)
        self.sent(delivery)
        return Produced(b"".join(self._services.signer.events((delivery,), self._format)[0]))

    def takes(self, delivery: Delivery) -> bool:
        """Return whether a delivery that was just issued can be sent as it is; otherwise it is read again."""
        runtime = self._services.catalogues.committed.runtimes.get(self._runtime)
        return (
            self._is_known
            and delivery.sequence > self._held.sequence
            and 1 < self._format >= required_format(delivery.windows, delivery.hold)
            and (runtime is None or runtime.spec.platform == self._platform)
        )

    def sent(self, delivery: Delivery) -> None:
        """Record that a delivery was sent."""
        self._held = delivery.position
        self._services.hub.note_sent(self._runtime, delivery.sequence)

    def _newest(self, connection: sa.Connection) -> Delivery | None:
        # The platform may have been changed while the watch is open.
        _require_platform(self._services, self._runtime, self._platform)
        return find_delivery(connection, self._services.contents, self._runtime)

    def _is_empty_or_sent(self) -> bool:
        return not self._held.sequence or self._services.hub.was_sent(self._runtime, self._held.sequence)


async def get_bundle(call: Call) -> Response:
    """Return one delivery by its sequence, unsealed and signed; it is immutable."""
    runtime, sequence = call.path["runtime"], parse_integer(call.path["sequence"], "the sequence")
    contents = call.services.contents
    delivery = await call.services.store.read(lambda connection: find_delivery(connection, contents, runtime, sequence))
    if delivery is None:
        raise not_found(f"delivery {sequence} of this runtime")
    delivery_format = negotiate(call.headers, DELIVERY_FORMATS, deliveries.FORMATS)
    delivery = delivery.in_force(call.services.clock.now())
    tag = f'"{delivery.position}-{format_for(delivery, delivery_format)}"'
    # It contains unsealed secrets, which no cache may store.
    headers = (("ETag", tag), ("Cache-Control", "no-store"))
    if call.headers.get("if-none-match") == tag:
        return Response(status=304, headers=headers)
    return Response(call.services.signer.sign(delivery, delivery_format), headers=headers)


async def report(call: Call) -> Response:
    """Accept a report; a repeated or outdated one changes nothing."""
    services, body = call.services, call.body
    assert isinstance(body, Report | Report1)  # noqa: S101 - guaranteed by the endpoint's body type
    if body.runtime != call.path["runtime"]:
        raise invalid(FOREIGN_REPORT, "the report is for another runtime than the path")
    current = _in_session(services, body)
    try:
        await services.reports.accept(current)
    except GovernorError as error:
        if error.code == FOREIGN_REPORT:
            # An agent that got the delivery in format 1 resumes its watch by sequence only, so the watch cannot tell.
            await _supersede(services, current)
        raise
    return Response(status=204)


async def _supersede(services: Services, report: Report) -> None:
    """Re-issue the current state above what a report is about, unless that was done a moment ago."""
    try:
        await services.redelivery.supersede_unknown(report.runtime, DeliveryPosition("", report.sequence, _OTHER_ID))
    except GovernorError as error:
        if error.code != REISSUED:
            raise


def check(call: Call) -> Response:
    """Record that a runtime's agent found its last report to be still true."""
    assert isinstance(call.body, Check)  # noqa: S101 - guaranteed by the endpoint's body type
    call.services.hub.note_check(call.path["runtime"], call.body)
    return Response(status=204)


def _in_session(services: Services, report: Report | Report1) -> Report:
    """Return a report in its session; raise if this server has not accepted a watch of the process that sent it.

    Sessions order reports, so a session that was assigned before a restore must not be stored.
    """
    if isinstance(report, Report1):
        session = services.hub.session_of(report.runtime, report.boot)
        current = None if session is None else from_format_1(report, session)
    else:
        current = report if services.hub.is_session(report.runtime, report.session) else None
    if current is None:
        message = "this agent process has no watch on this server yet; open one, then send the report again"
        raise GovernorError(Kind.UNAVAILABLE, "watch-missing", message)
    return current
