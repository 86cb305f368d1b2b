"""Views of inventories: which kinds they name, and that only what is intact is decoded."""

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entry, by_ref, pack
from governor.kube.applyset.inventory import FORMAT, StoredClaim, checksum
from governor.kube.applyset.results import Seen
from governor.kube.applyset.settings import Claim
from governor.kube.objects import Object, ObjectRef
from governor.reconciler.watch.inventories import InventoryState, inventory_view, oldest

LABEL = "modules.example/inventory"
ENTRIES = by_ref(
    [
        Entry(ObjectRef("", "ConfigMap", "x", "a"), "1", f"sha256:{1:064x}", Seen("5")),
        Entry(ObjectRef("", "ConfigMap", "x", "b"), "2", f"sha256:{2:064x}", Seen("6")),
        Entry(ObjectRef("apps", "Deployment", "x", "a"), "3", f"sha256:{3:064x}", Seen("7", 1, "abc")),
    ]
)
CLAIM = StoredClaim(Claim("hub", 1, 2, "uid"), settled=True)


def content(**more: str) -> dict[str, str]:
    """Return the data of an inventory, of which ``more`` is changed before its digest is computed."""
    claim = msgspec.json.encode(CLAIM).decode()
    data = {"format": FORMAT, "owner": "dapr", "claim": claim, "entries": pack(ENTRIES)} | more
    return data | {"digest": checksum(data)}


def decoded(data: dict[str, str] | None) -> InventoryState:
    metadata = {
        "name": "module-dapr",
        "namespace": "hub",
        "uid": "u",
        "resourceVersion": "9",
        "labels": {LABEL: "dapr"},
    }
    found: Object = {"metadata": metadata} | ({} if data is None else {"data": data})
    return msgspec.json.decode(msgspec.json.encode(found), type=inventory_view(LABEL))


def test_an_inventory_is_decoded() -> None:
    data = content()
    inventory = decoded(data)
    snapshot = inventory.snapshot()
    assert (snapshot.entries, snapshot.claim) == (ENTRIES, CLAIM)
    assert (snapshot.uid, snapshot.resource_version) == (inventory.uid, inventory.resource_version) == ("u", "9")
    assert (inventory.owner, inventory.digest) == ("dapr", data["digest"])
    assert inventory.kinds() == {("", "ConfigMap"), ("apps", "Deployment")}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not an inventory"),
        (content(format="v1"), "not an inventory"),
        (content(owner="redis"), "not an inventory"),
        (content() | {"entries": "[]"}, "does not match its digest"),
        (content(claim="x"), "claim cannot be decoded"),
        (content(entries="x"), "entries cannot be decoded"),
    ],
)
def test_an_inventory_that_is_not_intact_is_not_used(data: dict[str, str] | None, reason: str) -> None:
    inventory = decoded(data)
    with pytest.raises(GovernorError, match=reason) as raised:
        inventory.snapshot()
    assert raised.value.kind is Kind.PRECONDITION
    assert inventory.kinds() <= {("", "ConfigMap"), ("apps", "Deployment")}


def test_a_copy_of_an_inventory_does_not_replace_it() -> None:
    def created(name: str, time: str) -> InventoryState:
        inventory = decoded(content())
        metadata = msgspec.structs.replace(inventory.metadata, name=name, creation_timestamp=time)
        return msgspec.structs.replace(inventory, metadata=metadata)

    original, copied = created("module-dapr", "2026-01-01T00:00:00Z"), created("a-copy", "2026-01-02T00:00:00Z")
    assert oldest([copied, original]) == original
    assert oldest([]) is None
