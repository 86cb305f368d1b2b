"""Signed deliveries: all formats are read back, a tampered part is rejected, and batches share a signature."""

import base64
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.bundles import Delivery, DeliveryPosition
from governor.domain.documents import ApplyPolicy, ResourceRef, WindowScope
from governor.domain.windows import Day, Hold, Window
from governor.errors import GovernorError, Kind
from governor.wire import deliveries
from governor.wire.credentials import key_id
from governor.wire.deliveries import (
    FORMATS,
    Side,
    SignedBatch,
    SignedDelivery,
    encode_body,
    open_delivery,
    read_position,
    sign_batch,
    sign_delivery,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PUBLIC = KEY.public_key()
MANIFEST = {"kind": "Component", "metadata": {"name": "store", "namespace": "default"}, "spec": {"x": [1, None, "ä"]}}
REMOVED = ResourceRef("Component", "default", "old")
DELIVERY = Delivery(
    "r1", 7, 2, 5, "sha256:5", (MANIFEST,), (REMOVED,), ApplyPolicy(), "i1", "d7", {"Runtime/r1": 1, "Profile/p": 4}
)
WITHOUT_IDS = msgspec.structs.replace(DELIVERY, incarnation="", id="", documents={})
"""What format 1 can carry of it."""
WINDOW = Window("22:00", 240, (Day.SAT, Day.SUN), "Europe/Berlin")
HOLD = Hold(datetime(2026, 1, 31, 22, tzinfo=UTC), "inventory")
RESTRAINED = msgspec.structs.replace(DELIVERY, windows=(WINDOW,), hold=HOLD, apply=ApplyPolicy(windows=WindowScope.ALL))
BY_FORMAT = {1: DELIVERY, 2: DELIVERY, 3: RESTRAINED}
"""A delivery that is sent in each format."""


def signed_in(number: int, key: Ed25519PrivateKey = KEY) -> SignedDelivery:
    """Return a delivery in one of the formats."""
    signed = sign_delivery(BY_FORMAT[number], key, number)
    assert signed.format == number
    return signed


def batch(count: int, key: Ed25519PrivateKey = KEY) -> tuple[SignedDelivery, ...]:
    return sign_batch([delivery(number) for number in range(count)], key)


def delivery(number: int) -> Delivery:
    return msgspec.structs.replace(DELIVERY, runtime=f"r{number}", sequence=number + 1, id=f"d{number}")


def rejection(signed: SignedDelivery) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        open_delivery(signed, PUBLIC)
    return caught.value


def denied(signed: SignedDelivery) -> GovernorError:
    error = rejection(signed)
    assert (error.kind, error.code) == (Kind.DENIED, "delivery-signature")
    return error


# -- all formats ---------------------------------------------------------------------------------------------------


def test_a_signed_delivery_survives_the_round_trip() -> None:
    assert open_delivery(sign_delivery(DELIVERY, KEY, 1), PUBLIC) == WITHOUT_IDS
    assert open_delivery(sign_delivery(DELIVERY, KEY, 2), PUBLIC) == DELIVERY
    assert open_delivery(sign_delivery(RESTRAINED, KEY, 3), PUBLIC) == RESTRAINED


@pytest.mark.parametrize("changes", [{"windows": (WINDOW,)}, {"hold": HOLD}])
def test_windows_and_holds_need_format_3(changes: dict[str, Any]) -> None:
    delivery = msgspec.structs.replace(DELIVERY, **changes)
    assert open_delivery(sign_delivery(delivery, KEY), PUBLIC) == delivery
    for number in (1, 2):
        with pytest.raises(GovernorError, match=f"formats up to {number}: upgrade the agent") as caught:
            sign_delivery(delivery, KEY, number)
        assert (caught.value.kind, caught.value.code) == (Kind.UNIMPLEMENTED, "format-unsupported")


def test_without_windows_and_hold_the_format_before_is_used() -> None:
    policy = msgspec.structs.replace(DELIVERY, apply=ApplyPolicy(windows=WindowScope.ALL))
    assert sign_delivery(DELIVERY, KEY) == sign_delivery(DELIVERY, KEY, 2) == sign_delivery(policy, KEY)


@pytest.mark.parametrize("number", FORMATS)
def test_a_delivery_signed_by_another_key_is_rejected(number: int) -> None:
    error = denied(signed_in(number, OTHER))
    assert key_id(PUBLIC) in error.message
    assert key_id(OTHER.public_key()) in error.message


TAMPERED: dict[str, Any] = {
    "runtime": "r2",
    "incarnation": "i2",
    "sequence": 8,
    "id": "d8",
    "attempt": 3,
    "revision": 6,
    "digest": "sha256:6",
    "resources": [],
    "removals": [],
    "documents": {},
    "body": "sha256:0",
    "apply": {**msgspec.to_builtins(ApplyPolicy()), "strategy": "rolling"},
    "windows": [],
    "hold": None,
    "format": 4,
}
FIELDS = [
    (number, place, field)
    for number in FORMATS
    for place in ("payload", "body")
    for field in json.loads(getattr(signed_in(number), place) or "{}")
]


def test_the_tampering_table_covers_every_field() -> None:
    assert {field for _, _, field in FIELDS} == set(TAMPERED)


@pytest.mark.parametrize(("number", "place", "field"), FIELDS)
def test_a_tampered_field_is_rejected(number: int, place: str, field: str) -> None:
    signed = signed_in(number)
    content = {**json.loads(getattr(signed, place)), field: TAMPERED[field]}
    denied(msgspec.structs.replace(signed, **{place: json.dumps(content)}))


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize(
    "changes",
    [
        {"payload": " "},
        {"payload": ""},
        {"payload": "\ud800"},
        {"key_id": "0000000000000000"},
        {"key_id": ""},
        {"signature": ""},
        {"signature": "AAAA"},
        {"signature": "not base64!"},
        {"signature": sign_delivery(DELIVERY, OTHER).signature},
        {"signature": sign_delivery(msgspec.structs.replace(DELIVERY, sequence=8), KEY).signature},
        {"signature": sign_delivery(msgspec.structs.replace(DELIVERY, sequence=8), KEY, 1).signature},
    ],
)
def test_a_tampered_envelope_is_rejected(number: int, changes: dict[str, str]) -> None:
    denied(msgspec.structs.replace(signed_in(number), **changes))


@pytest.mark.parametrize("body", ["", "{}", "\ud800", sign_delivery(DELIVERY, KEY).body + " "])
def test_another_body_is_rejected(body: str) -> None:
    assert "body" in denied(msgspec.structs.replace(sign_delivery(DELIVERY, KEY), body=body)).message


def test_the_signature_of_one_format_is_not_valid_in_the_other() -> None:
    one, two, three = map(signed_in, FORMATS)
    for signed, other in ((one, 2), (one, 3), (two, 1), (three, 1)):
        denied(msgspec.structs.replace(signed, format=other))


@pytest.mark.parametrize(("number", "other"), [(2, 3), (3, 2)])
def test_a_head_is_not_read_in_another_format_than_its_own(number: int, other: int) -> None:
    """Otherwise a network could make an agent ignore a hold, although the signature is valid."""
    assert rejection(msgspec.structs.replace(signed_in(number), format=other)).code == "delivery-unreadable"


@pytest.mark.parametrize("payload", ["", "{}", "[]", '{"format": 2}'])
def test_a_signed_delivery_of_another_version_is_rejected_with_advice(payload: str) -> None:
    signature = base64.b64encode(KEY.sign(payload.encode())).decode()
    error = rejection(SignedDelivery(payload, key_id(PUBLIC), signature))
    assert (error.kind, error.code) == (Kind.UNIMPLEMENTED, "delivery-unreadable")
    assert "upgrade the agent" in error.message


@pytest.mark.parametrize(("number", "older"), [(0, "server"), (4, "agent")])
def test_an_unknown_format_is_rejected_and_the_error_names_the_older_program(number: int, older: str) -> None:
    error = rejection(msgspec.structs.replace(sign_delivery(DELIVERY, KEY), format=number))
    assert (error.kind, error.code) == (Kind.UNIMPLEMENTED, "delivery-unreadable")
    assert f"upgrade the {older}" in error.message


def with_unknown_fields(text: str) -> str:
    content = json.loads(text)
    if "apply" in content:
        content["apply"]["later"] = {"x": 1}
    for part in (*content.get("removals", ()), *content.get("windows", ()), content.get("hold") or {}):
        part["later"] = 1
    return json.dumps({**content, "later": [1]})


def test_unknown_fields_of_format_1_are_ignored() -> None:
    payload = with_unknown_fields(sign_delivery(DELIVERY, KEY, 1).payload)
    signature = base64.b64encode(KEY.sign(payload.encode())).decode()
    assert open_delivery(SignedDelivery(payload, key_id(PUBLIC), signature), PUBLIC) == WITHOUT_IDS


@pytest.mark.parametrize("number", [2, 3])
def test_unknown_fields_of_heads_and_bodies_are_ignored(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A later version signs heads and bodies with more fields."""
    encode = deliveries._text
    monkeypatch.setattr(deliveries, "_text", lambda value: with_unknown_fields(encode(value)))
    signed = signed_in(number)
    monkeypatch.undo()
    envelope = json.dumps({**msgspec.to_builtins(signed), "later": True})
    assert "later" in signed.payload
    assert "later" in signed.body
    assert open_delivery(msgspec.json.decode(envelope, type=SignedDelivery), PUBLIC) == BY_FORMAT[number]


def test_format_1_has_exactly_the_policy_of_version_0_1() -> None:
    payload = json.loads(sign_delivery(DELIVERY, KEY, 1).payload)
    assert set(payload["apply"]) == {"preflight", "strategy", "unproven", "verifyWindowSeconds"}


def test_format_2_has_no_policy_that_only_format_3_needs() -> None:
    policies = [set(json.loads(signed_in(number).body)["apply"]) for number in (2, 3)]
    assert policies[1] - policies[0] == {"windows"}


@pytest.mark.parametrize("number", [2, 3])
def test_labels_for_a_preflight_are_in_a_delivery_only_if_they_are_set(number: int) -> None:
    assert "preflightLabels" not in json.loads(signed_in(number).body)["apply"]
    policy = msgspec.structs.replace(BY_FORMAT[number].apply, preflight_labels=("app",))
    labelled = msgspec.structs.replace(BY_FORMAT[number], apply=policy)
    signed = sign_delivery(labelled, KEY, number)
    assert json.loads(signed.body)["apply"]["preflightLabels"] == ["app"]
    assert open_delivery(signed, PUBLIC).apply == labelled.apply


@pytest.mark.parametrize("number", FORMATS)
def test_the_texts_are_sorted_and_compact(number: int) -> None:
    signed = signed_in(number)
    for text in filter(None, (signed.payload, signed.body)):
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("number", FORMATS)
def test_the_order_of_keys_does_not_change_the_texts(number: int) -> None:
    reordered = tuple(dict(reversed(manifest.items())) for manifest in DELIVERY.resources)
    again = msgspec.structs.replace(BY_FORMAT[number], resources=reordered)
    assert sign_delivery(again, KEY, number) == signed_in(number)


# -- batches -------------------------------------------------------------------------------------------------------

COUNTS = (1, 2, 3, 7, 8)


@pytest.mark.parametrize("count", COUNTS)
def test_each_delivery_of_a_batch_is_read_alone(count: int) -> None:
    signed = batch(count)
    assert [open_delivery(each, PUBLIC) for each in signed] == [delivery(number) for number in range(count)]
    assert len({each.signature for each in signed}) == 1
    assert len({each.body for each in signed}) == 1
    assert max(len(each.path) for each in signed) == (count - 1).bit_length()


def test_a_batch_of_one_has_an_empty_path() -> None:
    assert batch(1) == (sign_delivery(delivery(0), KEY),)
    assert batch(1)[0].path == ()


def test_different_contents_have_different_bodies() -> None:
    other = msgspec.structs.replace(delivery(1), digest="sha256:6", resources=())
    policy = msgspec.structs.replace(delivery(2), apply=ApplyPolicy(verify_window_seconds=5))
    signed = sign_batch([delivery(0), other, policy], KEY)
    assert len({each.body for each in signed}) == 3
    assert [open_delivery(each, PUBLIC) for each in signed] == [delivery(0), other, policy]


def test_a_batch_may_have_both_formats() -> None:
    mixed = [delivery(0), msgspec.structs.replace(delivery(1), hold=HOLD), delivery(2)]
    signed = sign_batch(mixed, KEY)
    assert [each.format for each in signed] == [2, 3, 2]
    assert [open_delivery(each, PUBLIC) for each in signed] == mixed


@pytest.mark.parametrize("count", COUNTS[1:])
def test_a_tampered_path_is_rejected(count: int) -> None:
    for signed in batch(count):
        for number, step in enumerate(signed.path):
            turned = msgspec.structs.replace(step, side=Side.LEFT if step.side is Side.RIGHT else Side.RIGHT)
            other = msgspec.structs.replace(step, hash=base64.b64encode(bytes(32)).decode())
            unreadable = msgspec.structs.replace(step, hash="?")
            for changed in ((turned,), (other,), (unreadable,), (), (step, step)):
                path = (*signed.path[:number], *changed, *signed.path[number + 1 :])
                denied(msgspec.structs.replace(signed, path=path))
        denied(msgspec.structs.replace(signed, path=(*signed.path, *signed.path[:1])))


def test_swapped_parts_are_rejected() -> None:
    contents = [msgspec.structs.replace(delivery(number), digest=f"sha256:{number}") for number in range(7)]
    signed = sign_batch(contents, KEY)
    for one, other in itertools.permutations(signed, 2):
        denied(msgspec.structs.replace(one, body=other.body))
        denied(msgspec.structs.replace(one, payload=other.payload))
        denied(msgspec.structs.replace(one, path=other.path))


def test_a_head_of_another_batch_is_rejected() -> None:
    ours = batch(3)
    foreign = sign_batch([msgspec.structs.replace(delivery(number), attempt=9) for number in range(3)], OTHER)
    for one, other in itertools.product(ours, foreign):
        denied(msgspec.structs.replace(other, signature=one.signature, key_id=one.key_id, path=one.path))
        denied(msgspec.structs.replace(one, signature=other.signature))


def test_an_inner_node_is_not_accepted_as_a_head() -> None:
    """The prefixes of leaves and nodes differ, so two joined hashes cannot be presented as the text of a head."""
    first = batch(2)[0]
    forged = base64.b64decode(first.path[0].hash).decode("latin-1")
    denied(msgspec.structs.replace(first, payload=forged, path=first.path[1:]))


# -- position ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 10**15 - 1), st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
def test_a_position_survives_the_round_trip(sequence: int, name: str) -> None:
    whole, bare = DeliveryPosition("0123", sequence, name), DeliveryPosition("", sequence, "")
    assert read_position(str(whole)) == whole
    assert read_position(str(bare)) == bare == read_position(str(sequence))


def test_no_position_is_sequence_zero() -> None:
    assert read_position("") == read_position("0") == DeliveryPosition()


@pytest.mark.parametrize("text", ["x", "-1", "1.2", "a.b.c", "a.-1.b", "a.1.b.c", "..", "1e3", " 1", "1" * 19])
def test_another_text_is_not_a_position(text: str) -> None:
    with pytest.raises(GovernorError) as caught:
        read_position(text)
    assert (caught.value.kind, caught.value.code) == (Kind.INVALID, "last-event-id")


@given(st.integers(1, 40))
def test_the_parts_of_a_delivery_in_a_batch_are_its_json(count: int) -> None:
    given_ones = [msgspec.structs.replace(DELIVERY, runtime=f"r{number}") for number in range(count)]
    body = encode_body(DELIVERY)
    batch = SignedBatch(given_ones, [body] * count, KEY)
    for number in range(count):
        parts = batch.parts(number)
        assert b"".join(parts) == msgspec.json.encode(batch.signed(number))
        assert parts[1] is body.json
        assert open_delivery(batch.signed(number), KEY.public_key()) == given_ones[number]
