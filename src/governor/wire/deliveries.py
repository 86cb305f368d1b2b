"""Deliveries as texts: their formats, their signatures, and the id of the event that carries one. Pure.

Format 1 signs the whole delivery. Format 2 has a small head for each runtime and a body that runtimes may share: the
head names the digest of the body, and the signature is over the root of a hash tree whose leaves are heads. A body is
encoded once for all its runtimes, and a batch of deliveries is signed once. Format 3 is format 2 with the runtime's
maintenance windows and hold in the head; it is used only for deliveries that have one of them.
"""

import base64
import enum
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.windows import Hold, Window
from governor.errors import GovernorError, Kind, invalid
from governor.wire.credentials import key_id
from governor.wire.formats import UNSUPPORTED

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

FORMATS: Final = (1, 2, 3)
_CONTEXT: Final = b"runtime-governor delivery 2\0"
"""Signed before the root, so that the signature is valid for nothing else."""
_LEAF: Final = b"\0"
_NODE: Final = b"\1"
_POSITION: Final = re.compile(r"([0-9]{1,18})|([^.]*)\.([0-9]{1,18})\.([^.]*)")
_FORMAT_1_POLICY: Final = ("preflight", "strategy", "unproven", "verifyWindowSeconds")
"""The fields of the apply policy in format 1, whose readers reject others."""
_FORMAT_2_POLICY: Final = (*_FORMAT_1_POLICY, "retry", "drift")
_FORMAT_3_POLICY: Final = (*_FORMAT_2_POLICY, "windows")
_LATER_POLICY: Final = ("preflightLabels",)
"""Fields that older readers of formats 2 and 3 reject; they are there only if they are set."""


class Side(enum.StrEnum):
    """On which side of a node its sibling is."""

    LEFT = "left"
    RIGHT = "right"


class Sibling(msgspec.Struct, frozen=True):
    """The sibling of one node on the path from a leaf to the root; ``hash`` is in base64."""

    side: Side
    hash: str


class SignedDelivery(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A delivery as its exact texts, so that the signature can be verified before anything is decoded.

    ``payload`` is the whole delivery in format 1 and the head in format 2. Only format 2 has a ``body``, and a ``path``
    from the head to the signed root, which is empty in a batch of one.
    """

    payload: str
    key_id: str
    signature: str
    format: int = 1
    body: str = ""
    path: tuple[Sibling, ...] = ()


class _Format1(msgspec.Struct, frozen=True, rename="camel"):
    """The payload of format 1."""

    runtime: str
    sequence: int
    attempt: int
    revision: int
    digest: str
    resources: tuple[dict[str, Any], ...]
    removals: tuple[ResourceRef, ...]
    apply: dict[str, Any]
    format: Literal[1] = 1


class _HeadFields(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The fields of every head; ``body`` is the SHA-256 of the body's text."""

    runtime: str
    incarnation: str
    sequence: int
    id: str
    attempt: int
    revision: int
    removals: tuple[ResourceRef, ...]
    documents: dict[str, int]
    body: str


_HEAD_FIELDS: Final = tuple(name for name in _HeadFields.__struct_fields__ if name != "body")


class _Head2(_HeadFields, frozen=True, kw_only=True):
    """The head of format 2."""

    format: Literal[2] = 2


class _Head3(_HeadFields, frozen=True, kw_only=True):
    """The head of format 3."""

    windows: tuple[dict[str, Any], ...]
    hold: dict[str, Any] | None
    format: Literal[3] = 3


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    """The body of formats 2 and 3: everything that is equal for all runtimes with the same bundle."""

    digest: str
    resources: tuple[dict[str, Any], ...]
    apply: dict[str, Any]


def required_format(windows: Sequence[Window], hold: Hold | None) -> int:
    """Return the oldest format in which an agent gets everything that it must obey."""
    return 3 if windows or hold is not None else 1


def unsupported(runtime: str, newest_format: int) -> GovernorError:
    """Return the error on an agent that cannot obey the windows or the hold of its runtime."""
    message = (
        f"runtime {runtime!r} has maintenance windows or a hold, which need delivery format 3; "
        f"its agent has only formats up to {newest_format}: upgrade the agent"
    )
    return GovernorError(Kind.UNIMPLEMENTED, UNSUPPORTED, message)


def format_for(delivery: Delivery, newest_format: int) -> int:
    """Return the format in which a delivery is sent to an agent with this newest one; raise if there is none."""
    required = _required_format(delivery)
    if newest_format < required:
        raise unsupported(delivery.runtime, newest_format)
    return min(newest_format, max(required, 2))


def sign_delivery(delivery: Delivery, key: Ed25519PrivateKey, newest_format: int = FORMATS[-1]) -> SignedDelivery:
    """Return a delivery, signed, for an agent with this newest format."""
    if format_for(delivery, newest_format) == 1:
        payload = _text(_format_1(delivery))
        return SignedDelivery(payload, key_id(key.public_key()), _base64(key.sign(payload.encode())))
    return sign_batch((delivery,), key)[0]


def sign_batch(deliveries: Sequence[Delivery], key: Ed25519PrivateKey) -> tuple[SignedDelivery, ...]:
    """Return deliveries in format 2, or 3 where they need it, with one signature for all of them."""
    texts = {body_key(each): each for each in deliveries}
    bodies = {name: encode_body(each) for name, each in texts.items()}
    batch = SignedBatch(deliveries, [bodies[body_key(each)] for each in deliveries], key)
    return tuple(map(batch.signed, range(len(deliveries))))


class Body(NamedTuple):
    """The body of a delivery: its text, the text as a JSON string, and its digest."""

    text: str
    json: bytes
    digest: str


class SignedBatch:
    """Deliveries whose bodies are encoded already, in format 2 or 3, with one signature for all of them."""

    def __init__(self, deliveries: Sequence[Delivery], bodies: Sequence[Body], key: Ed25519PrivateKey) -> None:
        self._heads = [_head(each, body.digest) for each, body in zip(deliveries, bodies, strict=True)]
        self._texts = list(map(_text, self._heads))
        self._bodies = bodies
        self._tree = HashTree(list(map(_leaf, self._texts)))
        self._key_id = key_id(key.public_key())
        self._signature = _base64(key.sign(_CONTEXT + self._tree.root))

    def signed(self, number: int) -> SignedDelivery:
        """Return one delivery."""
        head, text, body = self._heads[number], self._texts[number], self._bodies[number]
        return SignedDelivery(text, self._key_id, self._signature, head.format, body.text, self._tree.path(number))

    def parts(self, number: int) -> tuple[bytes, bytes, bytes]:
        """Return the JSON of one delivery in parts, of which the second one is the same object for equal bodies."""
        fields = f',"keyId":"{self._key_id}","signature":"{self._signature}","format":{self._heads[number].format}'
        path = self._tree.encoded_path(number)
        return (
            b'{"payload":' + msgspec.json.encode(self._texts[number]) + fields.encode() + b',"body":',
            self._bodies[number].json,
            b',"path":[' + path + b"]}" if path else b"}",
        )

    def size(self, number: int) -> int:
        """Return about how many bytes one delivery has."""
        return len(self._texts[number]) + len(self._bodies[number].json)


def encode_body(delivery: Delivery) -> Body:
    """Return the body of a delivery in format 2, or 3 if it needs that."""
    policy = msgspec.to_builtins(delivery.apply)
    names = _FORMAT_2_POLICY if _required_format(delivery) < 3 else _FORMAT_3_POLICY
    policy = {name: policy[name] for name in (*names, *(each for each in _LATER_POLICY if policy[each]))}
    text = _text(_Body(delivery.digest, delivery.resources, policy))
    return Body(text, msgspec.json.encode(text), _digest(text))


def body_key(delivery: Delivery) -> tuple[str, ApplyPolicy, int]:
    """Return what is equal for deliveries with equal bodies; the digest covers sensitive values too."""
    return delivery.digest, delivery.apply, _required_format(delivery)


def open_delivery(signed: SignedDelivery, key: Ed25519PublicKey) -> Delivery:
    """Verify the signature, then decode; a delivery signed by another key is rejected."""
    if signed.format not in FORMATS:
        older = "server" if signed.format < min(FORMATS) else "agent"
        message = f"this version cannot decode deliveries of format {signed.format}; upgrade the {older}"
        raise GovernorError(Kind.UNIMPLEMENTED, "delivery-unreadable", message)
    if signed.key_id != key_id(key) or not _is_signed(signed, key):
        message = f"the delivery is not signed by the pinned key {key_id(key)}; it claims key {signed.key_id!r}"
        raise GovernorError(Kind.DENIED, "delivery-signature", message)
    if signed.format == 1:
        return _read_format_1(signed)
    return _read_head_and_body(signed, _Head2 if signed.format == 2 else _Head3)


def read_position(text: str) -> DeliveryPosition:
    """Parse a Last-Event-ID: ``incarnation.sequence.id``, only the sequence, or nothing."""
    found = _POSITION.fullmatch(text or "0")
    if found is None:
        raise invalid("last-event-id", f"{text!r} is not the id of a delivery event")
    bare, incarnation, sequence, name = found.groups("")
    return DeliveryPosition(incarnation, int(bare or sequence), name)


def _required_format(delivery: Delivery) -> int:
    return required_format(delivery.windows, delivery.hold)


def _format_1(delivery: Delivery) -> _Format1:
    policy = msgspec.to_builtins(delivery.apply)
    return _Format1(
        delivery.runtime,
        delivery.sequence,
        delivery.attempt,
        delivery.revision,
        delivery.digest,
        delivery.resources,
        delivery.removals,
        {name: policy[name] for name in _FORMAT_1_POLICY},
    )


def _head(delivery: Delivery, body: str) -> _Head2 | _Head3:
    """Return the head of a delivery whose body has this digest."""
    fields = {name: getattr(delivery, name) for name in _HEAD_FIELDS}
    if _required_format(delivery) < 3:
        return _Head2(**fields, body=body)
    hold = None if delivery.hold is None else msgspec.to_builtins(delivery.hold)
    return _Head3(**fields, body=body, windows=msgspec.to_builtins(delivery.windows), hold=hold)


def _read_format_1(signed: SignedDelivery) -> Delivery:
    found = _decode(signed.payload, _Format1)
    return Delivery(
        found.runtime,
        found.sequence,
        found.attempt,
        found.revision,
        found.digest,
        found.resources,
        found.removals,
        _convert(found.apply, ApplyPolicy),
    )


def _read_head_and_body(signed: SignedDelivery, kind: type[_Head2] | type[_Head3]) -> Delivery:
    head = _decode(signed.payload, kind)
    if head.body != _digest(signed.body):
        message = f"the body of delivery {head.sequence} is not the one that its signed head names"
        raise GovernorError(Kind.DENIED, "delivery-signature", message)
    body = _decode(signed.body, _Body)
    delivery = Delivery(
        head.runtime,
        head.sequence,
        head.attempt,
        head.revision,
        body.digest,
        body.resources,
        head.removals,
        _convert(body.apply, ApplyPolicy),
        head.incarnation,
        head.id,
        head.documents,
    )
    if isinstance(head, _Head2):
        return delivery
    windows = tuple(_convert(each, Window) for each in head.windows)
    return msgspec.structs.replace(delivery, windows=windows, hold=_convert(head.hold, Hold) if head.hold else None)


def _convert(fields: dict[str, Any], kind: type[S]) -> S:
    """Return a struct without the fields that this version does not have: those that matter raise the format."""
    known = set(kind.__struct_encode_fields__)
    try:
        return msgspec.convert({name: value for name, value in fields.items() if name in known}, kind)
    except msgspec.ValidationError as error:
        raise _unreadable(error) from error


def _decode(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> GovernorError:
    message = f"this version cannot decode the delivery ({error}); upgrade the agent"
    return GovernorError(Kind.UNIMPLEMENTED, "delivery-unreadable", message)


def _is_signed(signed: SignedDelivery, key: Ed25519PublicKey) -> bool:
    try:
        text = signed.payload.encode() if signed.format == 1 else _CONTEXT + _root(signed)
        key.verify(base64.b64decode(signed.signature, validate=True), text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _root(signed: SignedDelivery) -> bytes:
    node = _leaf(signed.payload)
    for sibling in signed.path:
        other = base64.b64decode(sibling.hash, validate=True)
        node = _join(other, node) if sibling.side is Side.LEFT else _join(node, other)
    return node


class HashTree:
    """A hash tree over leaves; a node without a sibling moves up unchanged."""

    def __init__(self, leaves: list[bytes]) -> None:
        self._levels = [leaves]
        while len(level := self._levels[-1]) > 1:
            joined = [_join(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
            self._levels.append(joined + level[len(joined) * 2 :])
        self.root = self._levels[-1][0]
        self._encoded: dict[tuple[int, int], bytes] = {}

    def path(self, leaf: int) -> tuple[Sibling, ...]:
        """Return the siblings on the way from a leaf to the root."""
        return tuple(self._sibling(level, index) for level, index in self._siblings(leaf))

    def encoded_path(self, leaf: int) -> bytes:
        """Return the items of ``path`` as JSON; each node is encoded once."""
        return b",".join([self._encode(place) for place in self._siblings(leaf)])

    def _siblings(self, leaf: int) -> Iterator[tuple[int, int]]:
        for level, nodes in enumerate(self._levels):
            index = (leaf >> level) ^ 1
            if index < len(nodes):
                yield level, index

    def _sibling(self, level: int, index: int) -> Sibling:
        return Sibling(Side.RIGHT if index % 2 else Side.LEFT, _base64(self._levels[level][index]))

    def _encode(self, place: tuple[int, int]) -> bytes:
        found = self._encoded.get(place)
        if found is None:
            found = self._encoded[place] = msgspec.json.encode(self._sibling(*place))
        return found


def _leaf(head: str) -> bytes:
    return hashlib.sha256(_LEAF + head.encode()).digest()


def _join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"


def _text(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
