"""Signing deliveries for agents."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
from governor.server.store.sealer import KEY_BYTES, Sealer
from governor.server.watch.exchange import DeliverySigner
from governor.wire.deliveries import FORMATS, open_delivery


@pytest.mark.parametrize("delivery_format", FORMATS)
def test_a_signed_delivery_is_unsealed_and_the_stored_one_stays_sealed(delivery_format: int) -> None:
    sealer, key = Sealer(b"k" * KEY_BYTES), Ed25519PrivateKey.generate()
    spec = {"password": sealer.seal("canary")}
    resource = {"kind": "Component", "metadata": {"name": "a", "namespace": "default"}, "spec": spec}
    stored = Delivery("r1", 1, 1, 1, "d1", (resource,), (), ApplyPolicy())
    signed = DeliverySigner(sealer, key).sign(stored, delivery_format)
    assert open_delivery(signed, key.public_key()).resources[0]["spec"] == {"password": "canary"}
    assert "canary" not in str(stored)
