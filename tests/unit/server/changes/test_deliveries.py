"""What a runtime is sent next: sequence, attempt and removals."""

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import Bundle, Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy
from governor.server.changes.deliveries import Dispatch, History, is_due, next_delivery
from governor.server.store.sealer import KEY_BYTES, Sealer
from governor.wire.credentials import open_delivery

DEFAULT = ApplyPolicy()
ROLLING = ApplyPolicy(strategy=Strategy.ROLLING)


def resource(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "Component", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def ref(name: str) -> ResourceRef:
    return ResourceRef("Component", "default", name)


def bundle(digest: str = "d1", *names: str, apply: ApplyPolicy = DEFAULT) -> Bundle:
    return Bundle(digest, tuple(resource(name) for name in names), apply)


def delivered(sequence: int = 1, attempt: int = 1, digest: str = "d1", apply: ApplyPolicy = DEFAULT) -> Delivery:
    return Delivery("r1", sequence, attempt, 1, digest, (resource("a"),), (), apply)


def test_nothing_is_due_for_a_runtime_that_never_had_anything() -> None:
    assert not is_due(bundle(), None, is_new=True)
    assert is_due(bundle("d1", "a"), None, is_new=True)


def test_only_a_difference_or_a_new_life_is_due() -> None:
    newest = delivered()
    assert not is_due(bundle("d1", "a"), newest, is_new=False)
    assert is_due(bundle("d1", "a"), newest, is_new=True)
    assert is_due(bundle("d2", "a"), newest, is_new=False)
    assert is_due(bundle("d1", "a", apply=ROLLING), newest, is_new=False)
    assert is_due(bundle("d0"), newest, is_new=False)


def test_the_first_delivery_is_sequence_one_attempt_one() -> None:
    first = next_delivery("r1", bundle("d1", "a"), History(), revision=7)
    assert (first.sequence, first.attempt, first.revision, first.removals) == (1, 1, 7, ())


def test_new_content_begins_at_attempt_one() -> None:
    made = next_delivery("r1", bundle("d2", "a"), History(delivered(5, attempt=3)), revision=7)
    assert (made.sequence, made.attempt) == (6, 1)


def test_a_changed_policy_raises_the_attempt_at_the_same_content() -> None:
    made = next_delivery("r1", bundle("d1", "a", apply=ROLLING), History(delivered(5, 3), attempt=3), revision=7)
    assert (made.sequence, made.attempt) == (6, 4)


def test_content_that_comes_back_keeps_the_attempt_it_had() -> None:
    newest = delivered(5, digest="d2")
    same_policy = next_delivery("r1", bundle("d1", "a"), History(newest, attempt=2), revision=7)
    new_policy = next_delivery("r1", bundle("d1", "a", apply=ROLLING), History(newest, attempt=2), revision=7)
    assert (same_policy.attempt, new_policy.attempt) == (2, 3)


def test_removals_are_what_may_be_present_and_is_not_meant() -> None:
    history = History(delivered(), present=frozenset({ref("a"), ref("b"), ref("c")}))
    made = next_delivery("r1", bundle("d2", "b"), history, revision=7)
    assert made.removals == (ref("a"), ref("c"))


def test_a_dispatched_delivery_is_opened_and_signed_and_the_stored_one_stays_sealed() -> None:
    sealer, key = Sealer(b"k" * KEY_BYTES), Ed25519PrivateKey.generate()
    stored = msgspec.structs.replace(delivered(), resources=(resource("a", password=sealer.seal("canary")),))
    signed = Dispatch(sealer, key).signed(stored)
    assert open_delivery(signed, key.public_key()).resources[0]["spec"] == {"password": "canary"}
    assert "canary" not in str(stored)
