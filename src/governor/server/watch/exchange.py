"""The exchange with an agent: deliveries are signed on the way out, reports are checked on the way in."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import Delivery, refs
from governor.domain.documents import ApplyPolicy
from governor.domain.reports import Report, State, acknowledged, overall, supersedes
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.server.store.bundles import Contents
from governor.server.store.deliveries import StoredReport, find_delivery, find_report, put_report, verified_state
from governor.server.store.runtime_states import RuntimeState, find_state, put_states
from governor.server.store.sealer import Sealer
from governor.values.trees import Manifest
from governor.wire.deliveries import (
    Body,
    SignedBatch,
    SignedDelivery,
    body_key,
    encode_body,
    format_for,
    sign_delivery,
)
from governor.wire.events import DELIVERY, NOTICE, Event, encode
from governor.wire.rest import DeliveryNotice

MAX_INLINE_BYTES: Final = 64 * 1024
"""A larger delivery is only announced on the watch; the agent fetches it."""
_MAX_KEPT_CHARS: Final = 4 * 1024 * 1024
"""The length of all encoded bodies that are kept."""
FOREIGN_REPORT: Final = "report-foreign"
"""Code of the error on a report about content that was not delivered under its sequence."""


class DeliverySigner:
    """Unseals and signs stored deliveries. Its results may be sent only to the delivery's runtime."""

    def __init__(self, sealer: Sealer, key: Ed25519PrivateKey) -> None:
        self._sealer = sealer
        self._key = key
        self._bodies: dict[tuple[str, ApplyPolicy, int], Body] = {}
        self._kept_chars = 0

    def sign(self, delivery: Delivery, newest_format: int) -> SignedDelivery:
        """Return a stored delivery as it is sent: unsealed, in a format of the agent, and signed."""
        if format_for(delivery, newest_format) == 1:
            return sign_delivery(self._unsealed(delivery), self._key, newest_format)
        return SignedBatch((delivery,), (self._body(delivery),), self._key).signed(0)

    def events(self, deliveries: Sequence[Delivery], newest_format: int) -> list[tuple[bytes, ...]]:
        """Return the events of some deliveries, each in parts; runtimes share the parts that are equal.

        All of them have one signature, unless the format is 1.
        """
        if newest_format == 1:
            return [self._event_1(each) for each in deliveries]
        batch = SignedBatch(deliveries, [self._body(each) for each in deliveries], self._key)
        return [self._event(batch, number, each) for number, each in enumerate(deliveries)]

    def _event(self, batch: SignedBatch, number: int, delivery: Delivery) -> tuple[bytes, ...]:
        if batch.size(number) > MAX_INLINE_BYTES:
            return (_notice(delivery, str(delivery.position)),)
        return (f"event: {DELIVERY}\nid: {delivery.position}\ndata: ".encode(), *batch.parts(number), b"\n\n")

    def _event_1(self, delivery: Delivery) -> tuple[bytes, ...]:
        signed = self.sign(delivery, 1)
        if len(signed.payload.encode()) > MAX_INLINE_BYTES:
            return (_notice(delivery, str(delivery.sequence)),)
        return (encode(Event(DELIVERY, msgspec.json.encode(signed).decode(), str(delivery.sequence))),)

    def _body(self, delivery: Delivery) -> Body:
        """Return the body of a delivery, encoded once for all runtimes that get it at about the same time."""
        key = body_key(delivery)
        body = self._bodies.pop(key, None)
        if body is None:
            body = encode_body(self._unsealed(delivery))
            self._kept_chars += len(body.text)
        self._bodies[key] = body
        while self._kept_chars > _MAX_KEPT_CHARS and len(self._bodies) > 1:
            self._kept_chars -= len(self._bodies.pop(next(iter(self._bodies))).text)
        return body

    def _unsealed(self, delivery: Delivery) -> Delivery:
        return msgspec.structs.replace(delivery, resources=self.unseal(delivery))

    def unseal(self, delivery: Delivery) -> tuple[Manifest, ...]:
        """Return the resources of a stored delivery with their sensitive values in plain text."""
        return tuple(self._sealer.open_tree(manifest) for manifest in delivery.resources)


def _notice(delivery: Delivery, number: str) -> bytes:
    return encode(Event(NOTICE, msgspec.json.encode(DeliveryNotice(delivery.sequence)).decode(), number))


def accept_report(connection: sa.Connection, contents: Contents, report: Report, now: datetime) -> bool:
    """Store a report unless the stored one about the same delivery is newer; return whether it was stored."""
    delivery = find_delivery(connection, contents, report.runtime, report.sequence)
    if delivery is None:
        message = f"runtime {report.runtime!r} was never sent a delivery {report.sequence}"
        raise GovernorError(Kind.NOT_FOUND, "delivery-unknown", message)
    _check_matches(report, delivery)
    old = find_report(connection, report.runtime, report.sequence)
    if old is not None and (_is_repeated(report, old.report) or not supersedes(report, old.report)):
        return False
    is_acknowledged = acknowledged(report)
    first_verified = old.verified if old else None
    verified = first_verified or (now if is_acknowledged else None)
    put_report(connection, StoredReport(now, is_acknowledged, verified, report))
    state = find_state(connection, report.runtime)
    if state is not None:
        put_states(connection, [_state_after(connection, contents, report, state, is_acknowledged=is_acknowledged)])
    return True


def _state_after(
    connection: sa.Connection, contents: Contents, report: Report, state: RuntimeState, *, is_acknowledged: bool
) -> RuntimeState:
    """Return the state of a runtime after a report was stored."""
    if overall(report) is State.FAILED:
        return state.with_attempt(report.digest, report.attempt)
    if not is_acknowledged or report.sequence <= state.verified:
        return state
    return verified_state(connection, contents, state, report.sequence)


def _is_repeated(report: Report, old: Report) -> bool:
    """Return whether an agent sent the stored report again in a new session, as all do when the server restarts."""
    return msgspec.structs.replace(report, session=old.session) == old


def _check_matches(report: Report, delivery: Delivery) -> None:
    """Raise if the report is about other content, or if an acknowledgement does not cover the whole delivery."""
    if (report.attempt, report.digest) != (delivery.attempt, delivery.digest):
        message = (
            f"delivery {delivery.sequence} is attempt {delivery.attempt} at {delivery.digest}, "
            f"the report is for attempt {report.attempt} at {report.digest}"
        )
        raise invalid(FOREIGN_REPORT, message)
    if not acknowledged(report):
        return
    missing = {*refs(delivery.resources), *delivery.removals} - {part.resource for part in report.resources}
    if missing:
        details = [
            Detail(reason=f"{ref} is applied or removed by the delivery, but is not in the report")
            for ref in sorted(missing)
        ]
        raise invalid("report-incomplete", "an acknowledgement must cover every resource of its delivery", details)
