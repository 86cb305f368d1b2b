"""Key, membership, inbox and ledger of an agent on both homes, across restarts."""

import random
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.agent.enrolment import load_or_create_key
from governor.agent.inbox import Inbox
from governor.agent.ledger import DeliveryPhase, Ledger
from governor.agent.state.agent_state import AgentState
from governor.agent.state.records import Membership
from governor.agent.state.secret_blobs import SecretBlobs
from governor.agent.verification.findings import Findings
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
from governor.errors import GovernorError
from governor.kube.client import Client
from governor.process.clock import VirtualClock
from governor.wire.credentials import encode_public_key, key_id
from governor.wire.deliveries import SignedDelivery, sign_delivery
from governor.wire.rest import Enrolment
from tests.contract.agent.state.bed import Home

KEY = Ed25519PrivateKey.generate()
MEMBERSHIP = Membership(
    "http://127.0.0.1:1", "", Enrolment("r1", key_id(KEY.public_key()), encode_public_key(KEY.public_key()))
)
LARGE = random.Random(7).randbytes(700_000).hex()
"""More than one Secret holds."""


def delivery(sequence: int) -> Delivery:
    resource = {"kind": "Component", "metadata": {"name": "store", "namespace": "default"}, "spec": {"value": LARGE}}
    return Delivery("r1", sequence, 1, 1, f"sha256:{sequence}", (resource,), (), ApplyPolicy())


def signed(sequence: int) -> SignedDelivery:
    return sign_delivery(delivery(sequence), KEY)


def inbox_on(state: AgentState) -> Inbox:
    return Inbox(state, VirtualClock(datetime(2026, 1, 1, tzinfo=UTC)), lambda: None, lambda _: None)


async def test_an_agent_continues_with_its_key_its_deliveries_and_its_quarantine(home: Home) -> None:
    state = AgentState(await home.open())
    key = await load_or_create_key(state, "identity.key")
    await state.save_membership(MEMBERSHIP)
    await inbox_on(state).accept(signed(3), MEMBERSHIP)
    ledger = Ledger(state)
    await ledger.record_verified(delivery(1), signed(1))
    await ledger.record_settled(delivery(1))
    await ledger.record_verified(delivery(2), signed(2))
    await ledger.record_failed(delivery(3), Findings((), ()))

    state = AgentState(await home.open())
    assert (await load_or_create_key(state, "identity.key")).private_bytes_raw() == key.private_bytes_raw()
    assert await state.membership() == MEMBERSHIP
    inbox, ledger = inbox_on(state), Ledger(state)
    await inbox.restore(await state.membership())
    await ledger.restore(await state.membership())
    assert inbox.newest == delivery(3)
    assert (ledger.phase(delivery(3)), ledger.fallback(delivery(3))) == (DeliveryPhase.QUARANTINED, delivery(2))
    assert ledger.fallback(delivery(2)) == delivery(1)


async def test_a_deposed_agent_relies_on_nothing_that_it_could_not_store(client: Client, namespace: str) -> None:
    deposed = AgentState(await SecretBlobs.open(client, namespace, "agent"))
    inbox, ledger = inbox_on(deposed), Ledger(deposed)
    await inbox.accept(signed(1), MEMBERSHIP)
    await ledger.record_verified(delivery(1), signed(1))
    leader = AgentState(await SecretBlobs.open(client, namespace, "agent"))

    calls = (
        inbox.accept(signed(2), MEMBERSHIP),
        ledger.record_settled(delivery(1)),
        ledger.record_failed(delivery(2), Findings((), ())),
        load_or_create_key(deposed, "identity.key"),
    )
    for call in calls:
        with pytest.raises(GovernorError, match="was opened by agent on"):
            await call
    assert (inbox.newest, ledger.phase(delivery(1))) == (delivery(1), DeliveryPhase.ON_TRIAL)
    assert inbox.unstored is not None
    assert (await leader.newest(), await leader.trials()) == (signed(1), {})
    assert await leader.private_key("identity.key") is None
