"""Judging restarts: progress, the first bad pod, the window, and the pods that must be evicted."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.restarts.roll import (
    Roll,
    RollState,
    earlier_try,
    left_behind,
    next_eviction,
    observe,
    stranded,
)
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod, Update, Workload
from governor.domain.reports import Cause, WorkloadRef

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REF = WorkloadRef("shop", "Deployment", "web")
HEALTHY = Container("daprd:1", id="1", started=NOW, ready=True)
STARTING = Container("daprd:1", id="1", started=NOW)
BEGUN = Roll("new", 0.0)


def pod(name: str, digest: str = "new", **fields: Any) -> Pod:
    made = Pod("shop", name, name, NOW, "web", REF, phase="Running", ready=True, restart_digest=digest, sidecar=HEALTHY)
    return msgspec.structs.replace(made, **fields)


def workload(*pods: Pod, desired: int | None = 2, **fields: Any) -> Workload:
    made = Workload(REF, "apps/v1", Update.ROLLING, pods=pods, desired=desired, restart_digest="new", rolled_out=False)
    return msgspec.structs.replace(made, **fields)


def test_a_pod_of_an_earlier_try_must_be_gone_before_the_next() -> None:
    taken_back = workload(pod("a", "old"), pod("b"), restart_digest="old")
    assert earlier_try(taken_back, "new") == "pod b of an earlier try is not gone yet"
    assert earlier_try(workload(pod("a", "old"), pod("b", deleting=True), restart_digest="old"), "new") == ""
    assert earlier_try(workload(pod("a", "old"), pod("b")), "new") == "", "under way"


class TestProgress:
    def test_it_is_started_until_the_first_new_pod_and_done_with_the_last(self) -> None:
        roll = observe(BEGUN, workload(pod("a", "old"), pod("b", "old")), 1.0)
        assert (roll.state, roll.healthy, roll.total) == (RollState.STARTED, 0, 2)
        roll = observe(roll, workload(pod("a", "old"), pod("b", "old"), pod("c", sidecar=STARTING)), 2.0)
        assert (roll.state, roll.healthy, roll.total) == (RollState.ROLLING, 0, 2)
        roll = observe(roll, workload(pod("b", "old"), pod("c")), 3.0)
        assert (roll.state, roll.healthy, roll.total) == (RollState.ROLLING, 1, 2)
        roll = observe(roll, workload(pod("c"), pod("d"), pod("b", "old", deleting=True), rolled_out=True), 4.0)
        assert (roll.state, roll.healthy, roll.total, roll.cause) == (RollState.DONE, 2, 2, None)

    @pytest.mark.parametrize(
        "observed",
        [
            workload(pod("a"), pod("b"), pod("c", "old"), rolled_out=True),
            workload(pod("a"), pod("b"), rolled_out=False),
            workload(pod("a"), rolled_out=True),
            workload(pod("a"), pod("b", ready=False), rolled_out=True),
            workload(pod("a"), pod("b", sidecar=STARTING), rolled_out=True),
        ],
    )
    def test_it_is_not_done_before_every_pod_is_new_and_healthy(self, observed: Workload) -> None:
        assert observe(BEGUN, observed, 1.0).state is RollState.ROLLING

    def test_an_unknown_number_of_pods_is_counted(self) -> None:
        roll = observe(BEGUN, workload(pod("a"), pod("b"), desired=None, rolled_out=True), 1.0)
        assert (roll.state, roll.healthy, roll.total) == (RollState.DONE, 2, 2)

    def test_scaling_to_zero_ends_it(self) -> None:
        assert observe(BEGUN, workload(desired=0, rolled_out=True), 1.0).state is RollState.DONE

    def test_a_workload_that_asks_for_no_sidecar_needs_none(self) -> None:
        observed = workload(pod("a", sidecar=None), desired=1, enabled=False, rolled_out=True)
        assert observe(BEGUN, observed, 1.0).state is RollState.DONE

    def test_a_sidecar_that_recovered_from_an_exit_is_healthy(self) -> None:
        recovered = msgspec.structs.replace(HEALTHY, restarts=1, last_exit="Error, exit code 1")
        observed = workload(pod("a", sidecar=recovered), desired=1, rolled_out=True)
        assert observe(BEGUN, observed, 1.0).state is RollState.DONE

    def test_a_reverted_annotation_is_found_and_may_return(self) -> None:
        roll = observe(BEGUN, workload(pod("a", "old"), restart_digest="old"), 1.0)
        assert roll.state is RollState.REVERTED
        assert observe(roll, workload(pod("a", "old")), 2.0).state is RollState.STARTED

    def test_an_annotation_that_stays_reverted_fails_after_the_window(self) -> None:
        reverted = workload(pod("a", "old"), restart_digest="old")
        roll = observe(observe(BEGUN, reverted, 1.0, window_s=10.0), reverted, 11.0, window_s=10.0)
        assert (roll.state, roll.cause) == (RollState.FAILED, Cause.RUNTIME)
        assert "another manager" in roll.reason

    @pytest.mark.parametrize("state", [RollState.DONE, RollState.FAILED, RollState.HELD])
    def test_an_ended_restart_stays_ended(self, state: RollState) -> None:
        ended = msgspec.structs.replace(BEGUN, state=state)
        assert observe(ended, workload(pod("a", sidecar=None)), 999.0) is ended


class TestFailure:
    def test_a_new_pod_without_a_sidecar_fails_at_once(self) -> None:
        roll = observe(BEGUN, workload(pod("a", "old"), pod("b", sidecar=None)), 1.0)
        assert (roll.state, roll.cause) == (RollState.FAILED, Cause.RUNTIME)
        assert "pod b has no sidecar: Dapr's injector did not add it" in roll.reason

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"last_exit": "Error, exit code 1: init error"}, "Error, exit code 1: init error"),
            ({"waiting": "CrashLoopBackOff", "last_exit": "Error, exit code 1"}, "Error, exit code 1"),
            ({"waiting": "CrashLoopBackOff"}, "CrashLoopBackOff"),
        ],
    )
    def test_a_sidecar_that_exits_fails_at_once_with_its_text(self, fields: dict[str, Any], text: str) -> None:
        failing = msgspec.structs.replace(STARTING, **fields)
        roll = observe(BEGUN, workload(pod("a"), pod("b", ready=False, sidecar=failing)), 1.0)
        assert (roll.state, roll.cause, roll.healthy) == (RollState.FAILED, Cause.CHANGE, 1)
        assert roll.reason == f"the sidecar of pod b exited: {text}"

    def test_a_sidecar_that_is_killed_has_three_more_tries(self) -> None:
        killed = Container("daprd:1", restarts=2, waiting="CrashLoopBackOff", last_exit="OOMKilled", killed=True)
        observed = workload(pod("a"), pod("b", ready=False, sidecar=killed))
        roll = observe(BEGUN, observed, 1.0, window_s=10.0)
        assert roll.state is RollState.ROLLING
        overdue = observe(roll, observed, 11.1, window_s=10.0)
        assert (overdue.state, overdue.cause) == (RollState.FAILED, Cause.RUNTIME)
        assert overdue.reason == "pod b did not become ready in time: its sidecar was killed: OOMKilled"
        again = msgspec.structs.replace(killed, restarts=3)
        roll = observe(roll, workload(pod("a"), pod("b", ready=False, sidecar=again)), 2.0, window_s=10.0)
        assert (roll.state, roll.cause) == (RollState.FAILED, Cause.CHANGE)

    @pytest.mark.parametrize(
        "other",
        [
            pod("b", "old", sidecar=None),
            pod("b", "old", sidecar=msgspec.structs.replace(STARTING, last_exit="Error")),
            pod("b", sidecar=None, deleting=True),
            pod("b", sidecar=None, phase="Failed"),
        ],
    )
    def test_old_and_ended_pods_do_not_count(self, other: Pod) -> None:
        assert observe(BEGUN, workload(pod("a"), other), 1.0).state is RollState.ROLLING

    @pytest.mark.parametrize(
        ("fields", "cause", "text"),
        [
            ({"ready": False, "sidecar": STARTING}, Cause.CHANGE, "its sidecar is not ready"),
            ({"ready": False}, Cause.CHANGE, "the application is not ready"),
            (
                {"ready": False, "sidecar": Container("daprd:1", waiting="ImagePullBackOff")},
                Cause.RUNTIME,
                "ImagePullBackOff",
            ),
            ({"ready": False, "phase": "Pending", "sidecar": Container("daprd:1")}, Cause.RUNTIME, "Pending"),
        ],
    )
    def test_a_pod_that_never_becomes_ready_fails_after_the_window(
        self, fields: dict[str, Any], cause: Cause, text: str
    ) -> None:
        observed = workload(pod("a"), pod("b", **fields))
        roll = observe(BEGUN, observed, 1.0, window_s=10.0)
        assert observe(roll, observed, 11.0, window_s=10.0).state is RollState.ROLLING
        roll = observe(roll, observed, 11.1, window_s=10.0)
        assert (roll.state, roll.cause) == (RollState.FAILED, cause)
        assert roll.reason == f"pod b did not become ready in time: {text}"

    def test_a_controller_that_creates_no_pod_fails_after_the_window(self) -> None:
        roll = observe(BEGUN, workload(pod("a", "old"), message="exceeded quota"), 11.0, window_s=10.0)
        assert (roll.state, roll.cause) == (RollState.FAILED, Cause.RUNTIME)
        assert roll.reason == "no further pod was replaced: exceeded quota"


class TestWindow:
    def test_each_pod_that_appears_or_becomes_healthy_begins_it_again(self) -> None:
        steps = [
            workload(pod("a", "old"), pod("b", sidecar=STARTING)),
            workload(pod("a", "old"), pod("b")),
            workload(pod("b"), pod("c", sidecar=STARTING)),
            workload(pod("b"), pod("c"), rolled_out=True),
        ]
        roll = BEGUN
        for n, step in enumerate(steps):
            roll = observe(roll, step, 9.0 * (n + 1), window_s=10.0)
        assert roll.state is RollState.DONE

    def test_a_pod_that_is_replaced_again_and_again_is_no_progress(self) -> None:
        roll = BEGUN
        for n in range(3):
            roll = observe(roll, workload(pod(f"p{n}", ready=False)), 9.0 * (n + 1), window_s=10.0)
        assert roll.state is RollState.FAILED

    @pytest.mark.parametrize(("digest", "kept"), [("new", 1), ("old", 2)])
    def test_pods_that_keep_their_template_hold_it(self, digest: str, kept: int) -> None:
        observed = workload(pod("web-0", "old"), pod("web-1", digest), rolled_out=True)
        roll = observe(observe(BEGUN, observed, 1.0, window_s=10.0), observed, 12.0, window_s=10.0)
        assert (roll.state, roll.cause) == (RollState.HELD, None)
        assert roll.reason == f"restart needed: {kept} of 2 pods keep their old template"

    def test_it_does_not_run_while_a_budget_forbids_the_next_eviction(self) -> None:
        observed = workload(pod("a", "old"), pod("b", "old"), rolled_out=True)
        roll = observe(BEGUN, observed, 99.0, window_s=10.0, waiting="PodDisruptionBudget web")
        assert (roll.state, roll.reason) == (RollState.STARTED, "PodDisruptionBudget web")


class TestStranded:
    REF = msgspec.structs.replace(REF, kind="StatefulSet")

    @pytest.mark.parametrize(
        ("digest", "template", "fields", "is_stranded"),
        [
            ("new", "", {"ready": False}, True),
            ("new", "newer", {"ready": False}, True),
            ("new", "new", {"ready": False}, False),
            ("", "new", {"ready": False}, False),
            ("new", "", {}, False),
            ("new", "", {"ready": False, "deleting": True}, False),
        ],
    )
    def test_an_unhealthy_pod_of_a_restart_that_the_template_no_longer_has(
        self, digest: str, template: str, fields: dict[str, Any], is_stranded: bool
    ) -> None:
        one = pod("web-1", digest, **fields)
        observed = workload(pod("web-0", ""), one, ref=self.REF, restart_digest=template)
        assert stranded(observed) == (one if is_stranded else None)

    def test_what_its_controller_replaces_is_not_stranded(self) -> None:
        assert stranded(workload(pod("a", ready=False), restart_digest="")) is None

    def test_workloads_that_are_not_to_be_restarted_are_left_alone(self) -> None:
        one = workload(pod("a", ready=False), ref=self.REF, restart_digest="", opted_out=True)
        assert stranded(one) is None


class TestViolation:
    VIOLATED = "PodDisruptionBudget web is violated"

    def test_it_is_reported_and_ends(self) -> None:
        observed = workload(pod("a", ready=False), message="1 of 2 available")
        roll = observe(BEGUN, observed, 1.0, window_s=10.0, violation=self.VIOLATED)
        assert (roll.state, roll.reason, roll.violated_s) == (RollState.ROLLING, self.VIOLATED, 1.0)
        roll = observe(roll, observed, 2.0, window_s=10.0)
        assert (roll.reason, roll.violated_s) == ("1 of 2 available", None)

    def test_a_restart_is_taken_back_that_violates_a_budget_for_a_whole_window(self) -> None:
        roll = BEGUN
        for n in range(1, 5):
            # It does progress.
            pods = [pod(f"p{number}") for number in range(n)]
            roll = observe(roll, workload(*pods, desired=9), 4.0 * n, window_s=10.0, violation=self.VIOLATED)
        assert (roll.state, roll.cause) == (RollState.FAILED, Cause.RUNTIME)
        assert roll.reason.startswith(f"{self.VIOLATED} for more than 10 s: ")

    def test_a_restart_that_is_complete_is_done_all_the_same(self) -> None:
        complete = workload(pod("a"), pod("b"), rolled_out=True)
        begun = msgspec.structs.replace(BEGUN, violated_s=0.0)
        assert observe(begun, complete, 99.0, window_s=10.0, violation=self.VIOLATED).state is RollState.DONE


class TestEvictions:
    def test_old_pods_go_one_by_one_and_the_unready_first(self) -> None:
        pods = (pod("a", "old"), pod("b", "old", ready=False))
        assert next_eviction(workload(*pods), "new") == pods[1]
        assert next_eviction(workload(pods[0], pod("c")), "new") == pods[0]
        assert next_eviction(workload(pod("c"), pod("d")), "new") is None

    @pytest.mark.parametrize(
        "other",
        [
            pod("b", "old", deleting=True),
            pod("b", ready=False),
            pod("b", sidecar=None),
            pod("b", sidecar=STARTING),
            pod("b", phase="Failed"),
        ],
    )
    def test_the_next_waits_until_the_last_is_replaced(self, other: Pod) -> None:
        assert next_eviction(workload(pod("a", "old"), other), "new") is None

    def test_what_its_controller_replaces_is_not_left_behind(self) -> None:
        assert left_behind(workload(pod("a", ready=False)), "new") is None

    def test_a_stateful_set_leaves_unready_pods_behind(self) -> None:
        ref = WorkloadRef("shop", "StatefulSet", "web")
        bad = pod("web-1", ready=False)
        assert left_behind(workload(pod("web-0"), bad, ref=ref), "new") == bad
        assert left_behind(workload(pod("web-0"), pod("web-1"), ref=ref), "new") is None
        assert left_behind(workload(pod("web-0"), pod("web-1", "old", ready=False), ref=ref), "new") is None

    def test_so_does_a_daemon_set_that_waits_for_deletions(self) -> None:
        ref = WorkloadRef("shop", "DaemonSet", "web")
        bad = pod("b", ready=False)
        assert left_behind(workload(pod("a"), bad, ref=ref, update=Update.ON_DELETE), "new") == bad
        assert left_behind(workload(pod("a"), bad, ref=ref), "new") is None

    def test_a_replica_set_leaves_every_new_pod_behind(self) -> None:
        ref = WorkloadRef("shop", "ReplicaSet", "web")
        bad = pod("b", ready=False)
        assert left_behind(workload(pod("a"), bad, ref=ref, update=Update.NONE), "new") == bad
        assert left_behind(workload(pod("a"), pod("b", "old"), ref=ref, update=Update.NONE), "new") == pod("a")
        waiting = workload(pod("a"), pod("b", "old", ready=False), ref=ref, update=Update.NONE)
        assert left_behind(waiting, "new") is None
        assert left_behind(workload(bad, pod("c", deleting=True), ref=ref, update=Update.NONE), "new") is None
