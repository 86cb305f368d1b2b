"""Handlers of runtimes: what people see of them, and the watch, bundles and reports of their agents."""

from typing import Final

import msgspec

from governor.domain.bundles import Delivery
from governor.domain.reports import Report
from governor.errors import invalid
from governor.server.api.endpoints import Answer, Call, Events, Produced, not_found, whole_number
from governor.server.changes.explanation import read_explanation
from governor.server.store.deliveries import find_delivery
from governor.server.watch.hub import PROGRESS, Watcher
from governor.server.watch.reports import take_report
from governor.server.watch.status import read_runtime, read_runtimes, runtime_view
from governor.wire.events import DELIVERY, NOTICE, Event, encode
from governor.wire.rest import DeliveryNotice

INLINE_BYTES: Final = 64 * 1024
"""A larger delivery is announced on the watch and fetched."""

_WORD_CHARS: Final = 253


async def list_runtimes(call: Call) -> Answer:
    """All runtimes with their states."""
    facts = await call.services.store.read(read_runtimes)
    return Answer([runtime_view(each, call.services.hub.presence) for each in facts])


async def get_runtime(call: Call) -> Answer:
    """One runtime with its state."""
    facts = await call.services.store.read(lambda connection: read_runtime(connection, call.path["runtime"]))
    if facts is None:
        raise not_found(f"runtime {call.path['runtime']!r}")
    return Answer(runtime_view(facts, call.services.hub.presence))


async def explain(call: Call) -> Answer:
    """Why a runtime has what it has."""
    name = call.path["runtime"]
    found = await call.services.store.read(lambda connection: read_explanation(connection, name))
    if found is None:
        raise not_found(f"runtime {name!r}")
    return Answer(found)


async def retry(call: Call) -> Answer:
    """Raise the attempt at the newest delivery; answers with the runtime as it is then."""
    await call.services.changes.retry(call.path["runtime"], call.principal.name)
    return await get_runtime(call)


async def revoke(call: Call) -> Answer:
    """End the key of a runtime's agent; answers with the runtime as it is then."""
    await call.services.identity.revoke_runtime(call.path["runtime"])
    call.services.hub.wake(PROGRESS)
    return await get_runtime(call)


async def watch(call: Call) -> Events:
    """The newest delivery now and each newer one as it comes, beyond the one that the agent has."""
    last = call.headers.get("last-event-id", "")
    after = whole_number(last, "Last-Event-ID") if last else 0
    watcher = Watcher(_word(call, "boot"), _word(call, "host"))
    return Events(call.path["runtime"], _Feed(call, after).produce, watcher=watcher)


def _word(call: Call, name: str) -> str:
    """A short text of an agent that other people will read."""
    text = call.query.get(name, "")
    if len(text) > _WORD_CHARS or not text.isprintable():
        raise invalid("word", f"query parameter {name} is a printable text of at most {_WORD_CHARS} characters")
    return text


class _Feed:
    """Remembers the sequence that was sent last."""

    def __init__(self, call: Call, after: int) -> None:
        self._services = call.services
        self._runtime = call.path["runtime"]
        self._after = after

    async def produce(self) -> Produced:
        delivery = await self._services.store.read(lambda connection: find_delivery(connection, self._runtime))
        if delivery is None or delivery.sequence == self._after:
            return Produced()
        self._after = delivery.sequence
        return Produced(encode(self._event(delivery)))

    def _event(self, delivery: Delivery) -> Event:
        signed, number = self._services.dispatch.signed(delivery), str(delivery.sequence)
        if len(signed.payload.encode()) <= INLINE_BYTES:
            return Event(DELIVERY, msgspec.json.encode(signed).decode(), number)
        return Event(NOTICE, msgspec.json.encode(DeliveryNotice(delivery.sequence)).decode(), number)


async def get_bundle(call: Call) -> Answer:
    """One delivery by its sequence, opened and signed; it never changes."""
    runtime, sequence = call.path["runtime"], whole_number(call.path["sequence"], "the sequence")
    delivery = await call.services.store.read(lambda connection: find_delivery(connection, runtime, sequence))
    if delivery is None:
        raise not_found(f"delivery {sequence} of this runtime")
    # It holds opened secrets: no cache may keep it.
    headers = (("ETag", f'"{sequence}"'), ("Cache-Control", "no-store"))
    if call.headers.get("if-none-match") == f'"{sequence}"':
        return Answer(status=304, headers=headers)
    return Answer(call.services.dispatch.signed(delivery), headers=headers)


async def report(call: Call) -> Answer:
    """Take a report; a repeated or late one changes nothing."""
    services, body = call.services, call.body
    assert isinstance(body, Report)  # noqa: S101 - the table says so
    if body.runtime != call.path["runtime"]:
        raise invalid("report-foreign", "the report is about another runtime than the path names")
    kept = await services.store.write(lambda connection: take_report(connection, body, services.clock.now()))
    services.metrics.reports.labels(str(kept).lower()).inc()
    if kept:
        services.hub.wake(PROGRESS)
    return Answer(status=204)
