"""Decisions on restarts: hindrances, disruption budgets, admission."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.agent.platforms.kubernetes.restarts.decision import (
    Budget,
    Candidate,
    Selector,
    admit,
    budget_obstacle,
    budget_violation,
    restart_hindrance,
)
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Update, Workload
from governor.domain.reports import WorkloadRef
from governor.values.selectors import Expression, Operator

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LABELS = {"app": "web"}


def ref(name: str = "web", kind: str = "Deployment", namespace: str = "shop") -> WorkloadRef:
    return WorkloadRef(namespace, kind, name)


def pod(**fields: Any) -> Pod:
    return msgspec.structs.replace(Pod("shop", "web-1", "1", NOW, "web", ref(), ready=True), **fields)


def workload(kind: str = "Deployment", update: Update = Update.ROLLING, **fields: Any) -> Workload:
    made = Workload(ref(kind=kind), "apps/v1", update, pods=(pod(),), desired=1, app_id="web")
    return msgspec.structs.replace(made, **fields)


class TestHindrances:
    @pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
    def test_workloads_that_roll_are_restarted(self, kind: str) -> None:
        assert restart_hindrance(workload(kind)) == ""

    @pytest.mark.parametrize("update", [Update.RECREATE, Update.ON_DELETE])
    def test_so_are_others_if_their_owner_allows_it(self, update: Update) -> None:
        assert restart_hindrance(workload(update=update)) != ""
        assert restart_hindrance(workload(update=update, allowed=True)) == ""

    def test_a_bare_replica_set_is_restarted(self) -> None:
        assert restart_hindrance(workload("ReplicaSet", Update.NONE)) == ""

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"kind": "Job", "update": Update.NONE, "api_version": "batch/v1"}, "cannot change"),
            ({"kind": "Pod", "update": Update.NONE, "api_version": "v1"}, "no controller"),
            (
                {"kind": "Rollout", "update": Update.NONE, "api_version": "argoproj.io/v1alpha1"},
                "a Rollout (argoproj.io/v1alpha1)",
            ),
            ({"kind": "StatefulSet", "update": Update.NONE, "api_version": "apps.kruise.io/v1"}, "apps.kruise.io/v1"),
            ({"kind": "ReplicaSet", "update": Update.NONE, "desired": None}, "its owner is not known"),
            ({"kind": "StatefulSet", "update": Update.ON_DELETE}, "OnDelete"),
            ({"update": Update.RECREATE}, "Recreate"),
            ({"update": Update.RECREATE}, 'annotate it with runtime-governor.dev/allow-restart: "true"'),
            ({"kind": "StatefulSet", "update": Update.PARTITIONED, "allowed": True}, "partition"),
            ({"update": Update.RECREATE, "allowed": True, "opted_out": True}, "opted out"),
            ({"paused": True}, "resume it"),
            ({"enabled": False}, "would remove it"),
            ({"opted_out": True}, "opted out"),
            ({"kind": "ReplicaSet", "update": Update.NONE, "opted_out": True}, "opted out"),
        ],
    )
    def test_what_is_never_touched_has_a_reason(self, fields: dict[str, Any], reason: str) -> None:
        assert reason in restart_hindrance(workload(**fields))


class TestBudgets:
    @staticmethod
    def obstacle(budget: Budget, **fields: Any) -> str:
        return budget_obstacle(workload(labels=LABELS, **fields), [budget])

    @pytest.mark.parametrize(
        "selector",
        [
            Selector(LABELS),
            Selector(),
            Selector(match_expressions=(Expression("app", Operator.IN, ("web", "api")),)),
            Selector({"dapr.io/app-id": "web", "dapr.io/sidecar-injected": "true"}),
        ],
    )
    def test_a_spent_budget_that_selects_the_pods_makes_it_wait(self, selector: Selector) -> None:
        reason = self.obstacle(Budget("web", selector, allowed=0, healthy=2, needed=2))
        assert reason == "PodDisruptionBudget web allows no disruption now (2 healthy pods, 2 required)"

    @pytest.mark.parametrize("selector", [None, Selector({"app": "api"})])
    def test_a_budget_of_other_pods_does_not_matter(self, selector: Selector | None) -> None:
        assert self.obstacle(Budget("other", selector)) == ""

    def test_a_budget_that_allows_a_disruption_lets_it_pass(self) -> None:
        assert self.obstacle(Budget("web", Selector(LABELS), allowed=1)) == ""

    def test_evictions_do_not_support_two_budgets(self) -> None:
        budgets = [Budget(name, Selector(LABELS), allowed=1) for name in ("one", "two")]
        evicted = workload("ReplicaSet", Update.NONE, labels=LABELS)
        assert "one, two select the same pods" in budget_obstacle(evicted, budgets)
        assert budget_obstacle(workload(labels=LABELS), budgets) == ""

    def test_a_budget_that_is_not_computed_yet_makes_it_wait(self) -> None:
        assert "not computed yet" in self.obstacle(Budget("web", Selector(LABELS), allowed=1, current=False))

    def test_a_workload_without_a_ready_pod_cannot_spend_a_budget(self) -> None:
        assert self.obstacle(Budget("web", Selector(LABELS)), pods=(pod(ready=False),)) == ""

    def test_a_running_restart_that_violates_a_budget_is_found(self) -> None:
        budgets = [Budget("ok", Selector(), healthy=1, needed=1), Budget("web", Selector(LABELS), healthy=1, needed=2)]
        violated = budget_violation(workload(labels=LABELS), budgets)
        assert violated == "PodDisruptionBudget web is violated (1 healthy pods, 2 required)"
        assert budget_violation(workload(labels=LABELS), budgets[:1]) == ""


class TestAdmission:
    def test_only_so_many_restart_at_once(self) -> None:
        candidates = [Candidate(ref(name)) for name in "abcd"]
        admission = admit(candidates, [Candidate(ref("running"))], at_once=3)
        assert admission.starts == (ref("a"), ref("b"))
        assert admission.waiting == dict.fromkeys(
            (ref("c"), ref("d")), "waits for its turn: 3 workloads restart at a time"
        )

    def test_one_workload_with_actors_per_namespace_restarts_at_a_time(self) -> None:
        candidates = [
            Candidate(ref("a"), hosts_actors=True),
            Candidate(ref("b"), hosts_actors=True),
            Candidate(ref("c")),
            Candidate(ref("d", namespace="other"), hosts_actors=True),
        ]
        admission = admit(candidates, [])
        assert admission.starts == (ref("a"), ref("c"), ref("d", namespace="other"))
        assert "waits for shop/Deployment/a: only one workload with actors" in admission.waiting[ref("b")]

    def test_an_obstacle_takes_no_place(self) -> None:
        admission = admit([Candidate(ref("a"), obstacle="budget"), Candidate(ref("b"))], [], at_once=1)
        assert (admission.starts, admission.waiting) == ((ref("b"),), {ref("a"): "budget"})

    def test_a_violated_budget_stops_further_starts_in_its_namespace(self) -> None:
        violated = Candidate(ref("running"), obstacle="PodDisruptionBudget web is violated")
        admission = admit([Candidate(ref("a")), Candidate(ref("b", namespace="other"))], [violated])
        assert admission.starts == (ref("b", namespace="other"),)
        assert admission.waiting == {ref("a"): "waits for shop/Deployment/running: PodDisruptionBudget web is violated"}

    @given(
        st.lists(st.tuples(st.sampled_from("xyz"), st.booleans(), st.sampled_from(["", "obstacle"])), max_size=12),
        st.integers(1, 4),
    )
    def test_every_candidate_starts_or_waits_and_the_bounds_hold(
        self, drawn: list[tuple[str, bool, str]], at_once: int
    ) -> None:
        candidates = [
            Candidate(ref(f"w{n}", namespace=namespace), hosts_actors=actors, obstacle=obstacle)
            for n, (namespace, actors, obstacle) in enumerate(drawn)
        ]
        admission = admit(candidates, [], at_once)
        assert sorted([*admission.starts, *admission.waiting]) == sorted(each.ref for each in candidates)
        assert len(admission.starts) <= at_once
        hosts = [each.ref.namespace for each in candidates if each.hosts_actors and each.ref in admission.starts]
        assert len(hosts) == len(set(hosts))
        assert all(admission.waiting.values())
