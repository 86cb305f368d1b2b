"""Strategy rolling is refused where sidecars are known to load the change at once."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy
from governor.domain.inventories import FoundWorkload, Inventory, ReloadingSidecars
from governor.domain.reports import WorkloadRef
from governor.errors import GovernorError, Kind
from governor.server.changes.rolling import check_rolling

Manifest = dict[str, Any]


def resource(kind: str = "Component", value: str = "a", **more: Any) -> Manifest:
    metadata = {"name": "store", **more.pop("metadata", {})}
    spec = {"type": "state.redis", "version": "v1", "metadata": [{"name": more.pop("field", "x"), "value": value}]}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, **more}


def delivery(*resources: Manifest, strategy: str = "rolling") -> Delivery:
    policy = msgspec.convert({"strategy": strategy}, ApplyPolicy)
    return Delivery("r1", 1, 1, 1, "sha256:1", resources, (), policy)


def refusal(
    new: Delivery, old: Delivery | None, sidecars: ReloadingSidecars | None, namespace: str = "shop"
) -> GovernorError | None:
    reloading = (sidecars,) if sidecars else ()
    workload = FoundWorkload(WorkloadRef(namespace, "Deployment", "orders"), ("orders",), ("1.18.3",), 2, reloading)
    inventory = Inventory(("shop", "other"), (workload,))
    try:
        check_rolling([new], {"r1": old} if old else {}, lambda _: (datetime.now(UTC), inventory))
    except GovernorError as error:
        return error
    return None


HOT = ReloadingSidecars("1.18.3", "orders", "traced", 5, ("orders-0", "orders-1"))


def test_the_error_names_runtime_resource_workload_and_sidecars() -> None:
    error = refusal(delivery(resource()), None, HOT)
    assert error is not None
    assert (error.kind, error.code) == (Kind.PRECONDITION, "strategy-rolling")
    [detail] = error.details
    orders = WorkloadRef("shop", "Deployment", "orders")
    sidecars = "Dapr 1.18.3 in orders-0, orders-1 and 3 more"
    assert detail.reason == f"runtime 'r1': {orders} would load Component/shop/store at once ({sidecars})"


OLD = delivery(resource(value="old"))


@pytest.mark.parametrize(
    ("new", "old", "sidecars", "namespace", "is_refused"),
    [
        (delivery(resource()), OLD, HOT, "shop", True),
        (delivery(), OLD, HOT, "shop", True),
        (delivery(resource("Resiliency")), None, HOT, "shop", True),
        (delivery(resource("Configuration", metadata={"name": "traced"})), None, HOT, "shop", True),
        (delivery(resource("Configuration")), None, HOT, "shop", False),
        (delivery(resource(), strategy="reload"), OLD, HOT, "shop", False),
        (delivery(resource(value="old")), OLD, HOT, "shop", False),
        (delivery(resource(value="old", metadata={"labels": {"a": "b"}})), OLD, HOT, "shop", False),
        (delivery(resource(scopes=["pay"])), None, HOT, "shop", False),
        (delivery(resource(scopes=["pay"])), OLD, HOT, "shop", True),
        (delivery(resource(metadata={"namespace": "other"})), None, HOT, "shop", False),
        (delivery(resource()), OLD, HOT, "other", False),
        (delivery(resource()), OLD, None, "shop", False),
        (delivery(resource("Resiliency")), None, ReloadingSidecars("1.16.0", "orders"), "shop", False),
        (delivery(resource()), None, ReloadingSidecars("1.16.0", "orders", pods=("a",)), "shop", True),
        (delivery(resource(field="actorStateStore")), None, ReloadingSidecars("1.18.2", "orders"), "shop", False),
    ],
    ids=[
        "changed",
        "removed",
        "restarts within the process",
        "the Configuration of the pods",
        "another Configuration",
        "strategy reload",
        "unchanged",
        "only labels",
        "out of scope",
        "leaves its scope",
        "another namespace",
        "workload in another namespace",
        "no sidecar is known to reload",
        "an older version does not",
        "an older version that reloads Components",
        "an actor state store before 1.18.3",
    ],
)
def test_only_known_sidecars_that_load_the_change_at_once_are_a_reason(
    new: Delivery, old: Delivery | None, sidecars: ReloadingSidecars | None, namespace: str, is_refused: bool
) -> None:
    assert (refusal(new, old, sidecars, namespace) is not None) is is_refused


def test_without_an_inventory_the_agent_decides() -> None:
    check_rolling([delivery(resource())], {}, lambda _: None)
