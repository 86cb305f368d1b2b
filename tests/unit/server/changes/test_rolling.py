"""Strategy rolling is refused where sidecars are known to load the change at once."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from governor.domain.inventories import FoundWorkload, Inventory, ReloadingSidecars
from governor.domain.reports import WorkloadRef
from governor.errors import GovernorError, Kind
from governor.server.changes.impact import MAX_LISTED, AffectedClass
from governor.server.changes.rolling import check_rolling
from governor.server.store.bundles import Content

Manifest = dict[str, Any]


def resource(kind: str = "Component", value: str = "a", **more: Any) -> Manifest:
    metadata = {"name": "store", **more.pop("metadata", {})}
    spec = {"type": "state.redis", "version": "v1", "metadata": [{"name": more.pop("field", "x"), "value": value}]}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec, **more}


def affected(new: Content, old: Content | None = None, *runtimes: str) -> AffectedClass:
    return AffectedClass(old, new, "sha256:1", runtimes or ("r1",))


def content(*resources: Manifest) -> Content:
    return Content.of(resources)


def refusal(
    change: AffectedClass,
    sidecars: ReloadingSidecars | None,
    namespace: str = "shop",
    rolling: frozenset[str] = frozenset({"r1"}),
) -> GovernorError | None:
    reloading = (sidecars,) if sidecars else ()
    workload = FoundWorkload(WorkloadRef(namespace, "Deployment", "orders"), ("orders",), ("1.18.3",), 2, reloading)
    inventory = Inventory(("shop", "other"), (workload,))

    def find(runtimes: Iterable[str]) -> Iterator[tuple[str, Inventory]]:
        return ((name, inventory) for name in runtimes)

    try:
        check_rolling([change], rolling, find)
    except GovernorError as error:
        return error
    return None


HOT = ReloadingSidecars("1.18.3", "orders", "traced", 5, ("orders-0", "orders-1"))


def test_the_error_names_runtime_resource_workload_and_sidecars() -> None:
    error = refusal(affected(content(resource())), HOT)
    assert error is not None
    assert (error.kind, error.code) == (Kind.PRECONDITION, "strategy-rolling")
    [detail] = error.details
    orders = WorkloadRef("shop", "Deployment", "orders")
    sidecars = "Dapr 1.18.3 in orders-0, orders-1 and 3 more"
    assert detail.reason == f"runtime 'r1': {orders} would load Component/shop/store at once ({sidecars})"


OLD = content(resource(value="old"))


@pytest.mark.parametrize(
    ("new", "old", "sidecars", "namespace", "is_refused"),
    [
        (content(resource()), OLD, HOT, "shop", True),
        (content(), OLD, HOT, "shop", True),
        (content(resource("Resiliency")), None, HOT, "shop", True),
        (content(resource("Configuration", metadata={"name": "traced"})), None, HOT, "shop", True),
        (content(resource("Configuration")), None, HOT, "shop", False),
        (content(resource(value="old")), OLD, HOT, "shop", False),
        (content(resource(value="old", metadata={"labels": {"a": "b"}})), OLD, HOT, "shop", False),
        (content(resource(scopes=["pay"])), None, HOT, "shop", False),
        (content(resource(scopes=["pay"])), OLD, HOT, "shop", True),
        (content(resource(metadata={"namespace": "other"})), None, HOT, "shop", False),
        (content(resource()), OLD, HOT, "other", False),
        (content(resource()), OLD, None, "shop", False),
        (content(resource("Resiliency")), None, ReloadingSidecars("1.16.0", "orders"), "shop", False),
        (content(resource()), None, ReloadingSidecars("1.16.0", "orders", pods=("a",)), "shop", True),
        (content(resource(field="actorStateStore")), None, ReloadingSidecars("1.18.2", "orders"), "shop", False),
    ],
    ids=[
        "changed",
        "removed",
        "restarts within the process",
        "the Configuration of the pods",
        "another Configuration",
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
    new: Content, old: Content | None, sidecars: ReloadingSidecars | None, namespace: str, is_refused: bool
) -> None:
    assert (refusal(affected(new, old), sidecars, namespace) is not None) is is_refused


def test_without_an_inventory_the_agent_decides() -> None:
    check_rolling([affected(content(resource()))], frozenset({"r1"}), lambda _: ())


def test_runtimes_with_another_strategy_are_no_reason() -> None:
    assert refusal(affected(content(resource()), OLD), HOT, rolling=frozenset()) is None
    error = refusal(affected(content(resource()), OLD, "r1", "r2"), HOT, rolling=frozenset({"r2"}))
    assert error is not None
    assert [each.reason.split(":")[0] for each in error.details] == ["runtime 'r2'"]


def test_the_error_lists_a_limited_number_of_reasons() -> None:
    names = tuple(f"r{number}" for number in range(MAX_LISTED + 1))
    error = refusal(affected(content(resource()), OLD, *names), HOT, rolling=frozenset(names))
    assert error is not None
    assert len(error.details) == MAX_LISTED
