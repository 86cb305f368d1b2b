"""Phases of deliveries within and after the verification window, and across restarts of the agent."""

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.state.agent_state import AgentState
from governor.agent.state.file_blobs import FileBlobs
from governor.agent.state.records import Membership
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
def state(tmp_path: Path) -> AgentState:
    return AgentState(FileBlobs(tmp_path))


async def reopened(state: AgentState) -> Ledger:
    ledger = Ledger(state)
    await ledger.restore(MEMBERSHIP)
    return ledger


async def verified(state: AgentState, *deliveries: Delivery) -> Ledger:
    ledger = await reopened(state)
    for each in deliveries:
        await ledger.record_verified(each, signed(each))
    return ledger


async def test_a_change_is_on_trial_until_its_window_is_over(state: AgentState) -> None:
    ledger = await verified(state, ONE)
    assert (await reopened(state)).phase(ONE) is ledger.phase(ONE) is DeliveryPhase.ON_TRIAL
    await ledger.record_settled(ONE)
    assert (await reopened(state)).phase(ONE) is ledger.phase(ONE) is DeliveryPhase.SETTLED


async def test_a_verified_change_that_fails_on_trial_falls_back_to_its_predecessor(state: AgentState) -> None:
    ledger = await verified(state, ONE, TWO)
    assert ledger.fallback(TWO) == (await reopened(state)).fallback(TWO) == ONE
    await ledger.record_failed(TWO, NOTHING)
    for each in (ledger, await reopened(state)):
        assert each.phase(TWO) is DeliveryPhase.QUARANTINED
        assert each.fallback(TWO) == ONE
        assert each.phase(ONE) is DeliveryPhase.SETTLED


async def test_a_change_falls_back_to_the_last_verified_one_even_if_that_is_on_trial(state: AgentState) -> None:
    ledger = await verified(state, ONE, TWO)
    await ledger.record_failed(THREE, NOTHING)
    assert (await reopened(state)).fallback(THREE) == ledger.fallback(THREE) == TWO


async def test_without_a_verified_delivery_there_is_no_fallback(state: AgentState) -> None:
    ledger = await verified(state, ONE)
    await ledger.record_failed(ONE, NOTHING)
    assert (await reopened(state)).fallback(ONE) is ledger.fallback(ONE) is None


async def test_the_same_content_stays_in_quarantine_until_a_higher_attempt(state: AgentState) -> None:
    ledger = await reopened(state)
    await ledger.record_failed(delivery(2, "two", attempt=2), NOTHING)
    assert [ledger.phase(delivery(9, "two", attempt)) for attempt in (1, 2, 3)] == [
        DeliveryPhase.QUARANTINED,
        DeliveryPhase.QUARANTINED,
        DeliveryPhase.ON_TRIAL,
    ]


async def test_an_unproven_change_is_not_rolled_back_later(state: AgentState) -> None:
    ledger = await reopened(state)
    await ledger.record_unproven(TWO, NOTHING)
    assert (await reopened(state)).phase(TWO) is DeliveryPhase.SETTLED


async def test_verification_ends_the_quarantine(state: AgentState) -> None:
    ledger = await reopened(state)
    await ledger.record_failed(TWO, NOTHING)
    again = delivery(3, "two", attempt=2)
    await ledger.record_verified(again, signed(again))
    assert (await reopened(state)).trial(TWO) is None


async def test_the_same_content_in_a_new_delivery_keeps_its_phase(state: AgentState) -> None:
    ledger = await verified(state, ONE)
    await ledger.record_settled(ONE)
    again = delivery(5, "one")
    await ledger.record_verified(again, signed(again))
    assert ledger.phase(again) is DeliveryPhase.SETTLED
    assert (await reopened(state)).fallback(TWO) == again


async def test_the_quarantine_is_bounded(state: AgentState) -> None:
    ledger = await reopened(state)
    for number in range(100):
        await ledger.record_failed(delivery(number, str(number)), NOTHING)
    assert len(await state.trials()) == 64
    assert ledger.phase(delivery(100, "99")) is DeliveryPhase.QUARANTINED


class FullDisk(FileBlobs):
    """A disk that is full until ``is_full`` is cleared."""

    is_full = True

    async def write(self, name: str, data: bytes) -> None:
        if self.is_full:
            raise GovernorError(Kind.EXHAUSTED, "disk-full", "no space left")
        await super().write(name, data)


@pytest.mark.parametrize("record", ["verified", "settled", "failed", "unproven"])
async def test_what_a_full_disk_does_not_store_is_not_relied_on_and_is_stored_later(
    state: AgentState, tmp_path: Path, record: str
) -> None:
    ledger = await verified(state, ONE)
    full = FullDisk(tmp_path)
    ledger = await reopened(AgentState(full))
    before = seen(ledger)
    acts = {
        "verified": lambda: ledger.record_verified(TWO, signed(TWO)),
        "settled": lambda: ledger.record_settled(ONE),
        "failed": lambda: ledger.record_failed(TWO, NOTHING),
        "unproven": lambda: ledger.record_unproven(TWO, NOTHING),
    }
    with pytest.raises(GovernorError, match="no space left"):
        await acts[record]()
    assert seen(ledger) == seen(await reopened(state)) == before
    full.is_full = False
    await acts[record]()
    assert seen(ledger) == seen(await reopened(state)) != before


def seen(ledger: Ledger) -> list[object]:
    return [(ledger.phase(each), ledger.fallback(each), ledger.trial(each)) for each in (ONE, TWO, THREE)]


async def test_a_new_incarnation_ends_the_quarantine(state: AgentState) -> None:
    ledger = await reopened(state)
    await ledger.record_failed(delivery(7, "two", attempt=3), NOTHING)
    again = msgspec.structs.replace(delivery(9, "two", attempt=1), incarnation="restored")
    assert ledger.phase(again) is DeliveryPhase.ON_TRIAL
    assert ledger.phase(delivery(9, "two", attempt=1)) is DeliveryPhase.QUARANTINED
