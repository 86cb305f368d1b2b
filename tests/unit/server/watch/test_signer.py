"""Signing deliveries for agents."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
from governor.domain.windows import Window
from governor.errors import GovernorError
from governor.server.store.sealer import KEY_BYTES, Sealer
from governor.server.watch.signer import DeliverySigner
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


def test_a_body_is_not_shared_with_a_delivery_of_another_format() -> None:
    key = Ed25519PrivateKey.generate()
    signer = DeliverySigner(Sealer(b"k" * KEY_BYTES), key)
    plain = Delivery("r1", 1, 1, 1, "d1", (), (), ApplyPolicy())
    restrained = msgspec.structs.replace(plain, runtime="r2", windows=(Window("22:00", 60),))
    signed = [signer.sign(each, 3) for each in (plain, restrained, plain)]
    assert [each.format for each in signed] == [2, 3, 2]
    assert [open_delivery(each, key.public_key()) for each in signed] == [plain, restrained, plain]
    with pytest.raises(GovernorError, match="upgrade the agent"):
        signer.sign(restrained, 2)


def test_runtimes_with_the_same_bundle_share_one_encoded_body() -> None:
    sealer, key = Sealer(b"k" * KEY_BYTES), Ed25519PrivateKey.generate()
    signer = DeliverySigner(sealer, key)
    bundle = [Delivery(f"r{number}", number + 1, 1, 1, "d1", (), (), ApplyPolicy()) for number in range(3)]
    other = [Delivery("r9", 1, 1, 1, f"d{number + 2}", (), (), ApplyPolicy()) for number in range(40)]
    shared = [signer.sign(each, 2) for each in bundle]
    assert shared[0].body is shared[1].body is shared[2].body
    assert len({signer.sign(each, 2).body for each in other}) == len(other)
    assert [open_delivery(each, key.public_key()) for each in (*shared, signer.sign(bundle[0], 2))] == [
        *bundle,
        bundle[0],
    ]
