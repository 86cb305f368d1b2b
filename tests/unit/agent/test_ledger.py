"""Phases of deliveries within and after the verification window, and across restarts of the agent."""

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.storage import Membership, Storage, Trial, VerifiedDeliveries
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
from governor.errors import GovernorError, Kind
from governor.wire.credentials import encode_public_key, key_id
from governor.wire.deliveries import SignedDelivery, sign_delivery
from governor.wire.rest import Enrolment

NOTHING = Findings((), ())
KEY = Ed25519PrivateKey.generate()
MEMBERSHIP = Membership(
    "http://127.0.0.1:1", "", Enrolment("r1", key_id(KEY.public_key()), encode_public_key(KEY.public_key()))
)


def delivery(sequence: int, content: str, attempt: int = 1) -> Delivery:
    return Delivery("r1", sequence, attempt, 1, f"sha256:{content}", (), (), ApplyPolicy())


def signed(given: Delivery) -> SignedDelivery:
    return sign_delivery(given, KEY)


ONE, TWO, THREE = delivery(1, "one"), delivery(2, "two"), delivery(3, "three")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(tmp_path / "state")
    storage.prepare()
    return storage


def reopened(storage: Storage) -> Ledger:
    ledger = Ledger(storage)
    ledger.restore(MEMBERSHIP)
    return ledger


async def verified(storage: Storage, *deliveries: Delivery) -> Ledger:
    ledger = reopened(storage)
    for each in deliveries:
        await ledger.record_verified(each, signed(each))
    return ledger


async def test_a_change_is_on_trial_until_its_window_is_over(storage: Storage) -> None:
    ledger = await verified(storage, ONE)
    assert reopened(storage).phase(ONE) is ledger.phase(ONE) is DeliveryPhase.ON_TRIAL
    await ledger.record_settled(ONE)
    assert reopened(storage).phase(ONE) is ledger.phase(ONE) is DeliveryPhase.SETTLED


async def test_a_verified_change_that_fails_on_trial_falls_back_to_its_predecessor(storage: Storage) -> None:
    ledger = await verified(storage, ONE, TWO)
    assert ledger.fallback(TWO) == reopened(storage).fallback(TWO) == ONE
    await ledger.record_failed(TWO, NOTHING)
    for each in (ledger, reopened(storage)):
        assert each.phase(TWO) is DeliveryPhase.QUARANTINED
        assert each.fallback(TWO) == ONE
        assert each.phase(ONE) is DeliveryPhase.SETTLED


async def test_a_change_falls_back_to_the_last_verified_one_even_if_that_is_on_trial(storage: Storage) -> None:
    ledger = await verified(storage, ONE, TWO)
    await ledger.record_failed(THREE, NOTHING)
    assert reopened(storage).fallback(THREE) == ledger.fallback(THREE) == TWO


async def test_without_a_verified_delivery_there_is_no_fallback(storage: Storage) -> None:
    ledger = await verified(storage, ONE)
    await ledger.record_failed(ONE, NOTHING)
    assert reopened(storage).fallback(ONE) is ledger.fallback(ONE) is None


async def test_the_same_content_stays_in_quarantine_until_a_higher_attempt(storage: Storage) -> None:
    ledger = reopened(storage)
    await ledger.record_failed(delivery(2, "two", attempt=2), NOTHING)
    assert [ledger.phase(delivery(9, "two", attempt)) for attempt in (1, 2, 3)] == [
        DeliveryPhase.QUARANTINED,
        DeliveryPhase.QUARANTINED,
        DeliveryPhase.ON_TRIAL,
    ]


async def test_an_unproven_change_is_not_rolled_back_later(storage: Storage) -> None:
    ledger = reopened(storage)
    await ledger.record_unproven(TWO, NOTHING)
    assert reopened(storage).phase(TWO) is DeliveryPhase.SETTLED


async def test_verification_ends_the_quarantine(storage: Storage) -> None:
    ledger = reopened(storage)
    await ledger.record_failed(TWO, NOTHING)
    again = delivery(3, "two", attempt=2)
    await ledger.record_verified(again, signed(again))
    assert reopened(storage).trial(TWO) is None


async def test_the_same_content_in_a_new_delivery_keeps_its_phase(storage: Storage) -> None:
    ledger = await verified(storage, ONE)
    await ledger.record_settled(ONE)
    again = delivery(5, "one")
    await ledger.record_verified(again, signed(again))
    assert ledger.phase(again) is DeliveryPhase.SETTLED
    assert reopened(storage).fallback(TWO) == again


async def test_the_quarantine_is_bounded(storage: Storage) -> None:
    ledger = reopened(storage)
    for number in range(100):
        await ledger.record_failed(delivery(number, str(number)), NOTHING)
    assert len(storage.trials()) == 64
    assert ledger.phase(delivery(100, "99")) is DeliveryPhase.QUARANTINED


class FullDisk(Storage):
    """Storage on a disk that is full until ``is_full`` is cleared."""

    is_full = True

    def save_verified(self, verified: VerifiedDeliveries | None) -> None:
        self._check_space()
        super().save_verified(verified)

    def save_trials(self, trials: dict[str, Trial]) -> None:
        self._check_space()
        super().save_trials(trials)

    def _check_space(self) -> None:
        if self.is_full:
            raise GovernorError(Kind.EXHAUSTED, "disk-full", "no space left")


@pytest.mark.parametrize("record", ["verified", "settled", "failed", "unproven"])
async def test_what_a_full_disk_does_not_store_is_not_relied_on_and_is_stored_later(
    storage: Storage, record: str
) -> None:
    ledger = await verified(storage, ONE)
    full = FullDisk(storage.directory)
    ledger = reopened(full)
    before = seen(ledger)
    acts = {
        "verified": lambda: ledger.record_verified(TWO, signed(TWO)),
        "settled": lambda: ledger.record_settled(ONE),
        "failed": lambda: ledger.record_failed(TWO, NOTHING),
        "unproven": lambda: ledger.record_unproven(TWO, NOTHING),
    }
    with pytest.raises(GovernorError, match="no space left"):
        await acts[record]()
    assert seen(ledger) == seen(reopened(storage)) == before
    full.is_full = False
    await acts[record]()
    assert seen(ledger) == seen(reopened(storage)) != before


def seen(ledger: Ledger) -> list[object]:
    return [(ledger.phase(each), ledger.fallback(each), ledger.trial(each)) for each in (ONE, TWO, THREE)]


async def test_a_new_incarnation_ends_the_quarantine(storage: Storage) -> None:
    ledger = reopened(storage)
    await ledger.record_failed(delivery(7, "two", attempt=3), NOTHING)
    again = msgspec.structs.replace(delivery(9, "two", attempt=1), incarnation="restored")
    assert ledger.phase(again) is DeliveryPhase.ON_TRIAL
    assert ledger.phase(delivery(9, "two", attempt=1)) is DeliveryPhase.QUARANTINED
