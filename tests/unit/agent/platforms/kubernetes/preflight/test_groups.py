"""Which sidecars one throw-away pod stands for."""

from typing import Any

import pytest

from governor.agent.platforms.kubernetes.plans.affected import Changes
from governor.agent.platforms.kubernetes.plans.plan import Action, Plan, WorkloadPlan
from governor.agent.platforms.kubernetes.preflight.groups import groups_of
from governor.agent.platforms.kubernetes.workloads.workload import Container, Workload
from governor.agent.verification.verdicts import Expected
from tests.unit.agent.platforms.kubernetes.bed import NOW, change, component, pod, resource, unchanged, workload

STORE = change(component("store"), component("store", "b"))


def groups(workloads: list[Workload], *expected: Expected, restarts: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the names of the pods of each group."""
    planned = Plan(
        tuple(
            WorkloadPlan(each.ref, Action.RESTART if each.ref.name in restarts else Action.RELOAD, "")
            for each in workloads
        )
    )
    found = groups_of(workloads, Changes(expected), planned)
    return [tuple(each.name for each in group.pods) for group in found]


def alike(name: str, **fields: Any) -> Workload:
    plain = workload(name)
    return workload(name, pods=(pod(plain.ref, **fields),))


def test_sidecars_that_are_alike_share_one_pod() -> None:
    both = [workload("orders"), workload("billing")]
    assert groups(both, STORE) == [("billing-0", "orders-0")]


@pytest.mark.parametrize(
    "fields",
    [
        {"service_account": "other"},
        {"configuration": "other"},
        {"environment": ("A=1", "", "", "")},
        {"sidecar": Container("daprd:2", id="c1", started=NOW)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_sidecars_that_differ_in_what_decides_get_pods_of_their_own(fields: dict[str, Any]) -> None:
    assert len(groups([workload("orders"), alike("billing", **fields)], STORE)) == 2


def test_only_sidecars_that_load_a_change_count() -> None:
    scoped = component("store", scopes=["orders"])
    assert groups([workload("orders"), workload("billing")], change(scoped, None)) == [("billing-0", "orders-0")]
    assert groups([workload("billing")], change(scoped, None)) == []
    assert groups([workload("orders")], unchanged(component("store"))) == []
    assert groups([workload("orders")], change(None, component("store"))) == []
    assert groups([workload("orders")], change(resource("Configuration", "settings"), None)) == []


def test_a_pod_without_a_sidecar_is_no_model() -> None:
    assert groups([alike("orders", sidecar=None)], STORE) == []


def test_the_group_with_the_most_changes_and_then_pods_is_first() -> None:
    more = change(component("more", scopes=["billing"]), None)
    assert groups([workload("orders"), alike("billing", service_account="b")], STORE, more)[0] == ("billing-0",)
    plain = workload("orders")
    several = workload("orders", pods=[pod(plain.ref, "orders-0"), pod(plain.ref, "orders-1")])
    assert groups([several, alike("billing", service_account="a")], STORE)[0] == ("orders-0", "orders-1")


def test_a_pod_whose_sidecar_runs_is_the_model() -> None:
    plain = workload("orders")
    crashing = pod(plain.ref, "orders-0", sidecar=Container("daprd:1", waiting="CrashLoopBackOff"))
    assert groups([workload("orders", pods=[crashing, pod(plain.ref, "orders-1")])], STORE) == [
        ("orders-1", "orders-0")
    ]


@pytest.mark.parametrize(
    ("restarts", "image", "expected"),
    [((), "", "daprd:1"), (("orders",), "", ""), (("orders",), "daprd:2", "daprd:2"), ((), "daprd:2", "daprd:2")],
    ids=["it runs on", "the injector chooses", "its template chooses", "its template chooses before"],
)
def test_the_image_is_that_of_the_sidecar_that_loads_the_change(
    restarts: tuple[str, ...], image: str, expected: str
) -> None:
    one = workload("orders", sidecar_image=image)
    action = Action.RESTART if restarts else Action.RELOAD
    (group,) = groups_of([one], Changes([STORE]), Plan((WorkloadPlan(one.ref, action, ""),)))
    assert group.sidecars.image == expected
