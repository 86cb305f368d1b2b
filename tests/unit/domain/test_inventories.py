"""Inventories: no sensitive value, and a limited size."""

import json

import msgspec

from governor.domain.documents import ResourceRef
from governor.domain.inventories import FoundResource, Inventory, limited, masked_manifest

LIVE = {
    "apiVersion": "dapr.io/v1alpha1",
    "kind": "Component",
    "metadata": {
        "name": "store",
        "namespace": "orders",
        "uid": "u",
        "labels": {"team": "shop"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"value": "s3cret"}'},
        "managedFields": [],
    },
    "spec": {
        "type": "state.redis",
        "version": "v1",
        "metadata": [{"name": "redisHost", "value": "r:6379"}, {"name": "redisPassword", "value": "s3cret"}],
    },
    "scopes": ["orders"],
}


def test_a_masked_manifest_has_what_sidecars_load_and_no_sensitive_value() -> None:
    found = masked_manifest(LIVE)
    assert "s3cret" not in json.dumps(found)
    assert found["metadata"] == {"name": "store", "namespace": "orders", "labels": {"team": "shop"}}
    assert found["spec"]["metadata"] == [
        {"name": "redisHost", "value": "r:6379"},
        {"name": "redisPassword", "value": "***"},
    ]
    assert found["scopes"] == ["orders"]


def test_an_inventory_that_is_too_large_names_how_much_is_left_out() -> None:
    resources = tuple(FoundResource(ResourceRef("Component", "orders", f"c{n}"), manifest=LIVE) for n in range(10))
    whole = Inventory(("orders",), resources=resources)
    assert limited(whole) == whole
    part = limited(whole, 3000)
    assert (part.left_out + len(part.resources), part.left_out > 0) == (10, True)
    assert len(msgspec.json.encode(part)) < 3100
