"""Deliveries on their way to agents: unsealed, encoded and signed."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
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

    def events(self, deliveries: Sequence[Delivery], newest_format: int) -> "SignedEvents":
        """Return the events of some deliveries, which have one signature, unless the format is 1."""
        if newest_format == 1:
            return SignedEvents(deliveries, lambda number: self._event_1(deliveries[number]))
        batch = SignedBatch(deliveries, [self._body(each) for each in deliveries], self._key)
        return SignedEvents(deliveries, lambda number: self._event(batch, number, deliveries[number]))

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


class SignedEvents:
    """The events of some deliveries, each in parts; runtimes share the parts that are equal."""

    def __init__(self, deliveries: Sequence[Delivery], encode_event: Callable[[int], tuple[bytes, ...]]) -> None:
        self.deliveries = deliveries
        self._encode_event = encode_event

    def __len__(self) -> int:
        return len(self.deliveries)

    def __getitem__(self, number: int) -> tuple[bytes, ...]:
        """Return the event of a delivery; it is encoded when it is needed."""
        return self._encode_event(number)


def _notice(delivery: Delivery, number: str) -> bytes:
    return encode(Event(NOTICE, msgspec.json.encode(DeliveryNotice(delivery.sequence)).decode(), number))
