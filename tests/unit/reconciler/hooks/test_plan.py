"""Order of hooks, their delete policies, and what a hook needs next."""

import datetime
from typing import Any

import pytest

from governor.errors import GovernorError
from governor.kube.objects import Object
from governor.reconciler.hooks.plan import (
    DeletePolicy,
    Step,
    describe,
    hooks_for,
    is_overdue,
    is_removed,
    is_replaced,
    manifest_of,
    name_of,
    next_step,
)
from governor.reconciler.kinds.module_instance import HookRecord, HookState
from governor.reconciler.render.request import Hook

API_VERSIONS = {"Job": "batch/v1", "Role": "rbac.authorization.k8s.io/v1"}
STARTED = HookRecord("Job.batch x", "pre-install", "a", HookState.STARTED, "2026-01-01T00:00:00Z", replaces="old")


def hook(kind: str, name: str = "x", weight: int = 0, *policies: str, events: str = "pre-install", **spec: Any) -> Hook:
    manifest = {"apiVersion": API_VERSIONS.get(kind, "v1"), "kind": kind, "metadata": {"name": name}, "spec": spec}
    return Hook("templates/x.yaml", manifest, tuple(events.split(",")), weight, policies)


def live(kind: str = "Job", uid: str = "new", **status: Any) -> Object:
    return {
        "apiVersion": API_VERSIONS.get(kind, "v1"),
        "kind": kind,
        "metadata": {"name": "x", "uid": uid},
        "status": status,
    }


def condition(name: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": status, "reason": "Because", "message": "that is why"}]}


def test_hooks_run_by_weight_then_name_then_as_rendered() -> None:
    rendered = (
        hook("ServiceAccount", "z"),
        hook("ConfigMap", "b"),
        hook("Role", "b"),
        hook("Job", "a"),
        hook("Job", "first", -5),
        hook("Job", "last", 10),
    )
    names = [name_of(each) for each in hooks_for(rendered, "pre-install")]
    assert names == [
        "Job.batch first",
        "Job.batch a",
        "ConfigMap b",
        "Role.rbac.authorization.k8s.io b",
        "ServiceAccount z",
        "Job.batch last",
    ]


def test_a_hook_runs_for_each_of_its_events_and_no_other() -> None:
    both = hook("Job", events="pre-install,pre-upgrade")
    hooks = (both, hook("Job", "y", events="test"))
    assert hooks_for(hooks, "pre-install") == hooks_for(hooks, "pre-upgrade") == (both,)
    assert hooks_for(hooks, "post-install") == ()


def test_two_hooks_of_one_event_that_are_the_same_object_are_refused_by_name() -> None:
    with pytest.raises(GovernorError, match=r"2 hooks for pre-install are the same object Job\.batch x"):
        hooks_for((hook("Job"), hook("Job", weight=1)), "pre-install")
    other_event = hook("Job", events="post-install")
    assert len(hooks_for((hook("Job"), other_event), "post-install")) == 1


def test_before_hook_creation_is_the_default_only_without_other_policies() -> None:
    assert is_removed(hook("ConfigMap"), DeletePolicy.BEFORE_CREATION)
    assert not is_removed(hook("ConfigMap"), DeletePolicy.SUCCEEDED)
    assert not is_removed(hook("ConfigMap", "x", 0, "hook-succeeded"), DeletePolicy.BEFORE_CREATION)
    assert is_removed(hook("ConfigMap", "x", 0, "hook-succeeded", "hook-failed"), DeletePolicy.FAILED)


@pytest.mark.parametrize(
    ("kind", "policies", "replaced"),
    [
        ("ConfigMap", (), True),
        ("ConfigMap", ("hook-succeeded",), False),
        ("Job", ("hook-succeeded",), True),
        ("Pod", ("hook-failed",), True),
        ("Namespace", (), False),
    ],
)
def test_a_job_is_replaced_by_every_run_and_a_namespace_by_none(
    kind: str, policies: tuple[str, ...], *, replaced: bool
) -> None:
    assert is_replaced(hook(kind, "x", 0, *policies)) is replaced


def test_a_definition_is_never_removed_by_a_policy() -> None:
    manifest = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "xs.example.com"},
    }
    definition = Hook("crd.yaml", manifest, ("pre-install",), 0, tuple(DeletePolicy))
    assert not any(is_removed(definition, policy) for policy in DeletePolicy)
    assert not is_replaced(definition)


@pytest.mark.parametrize(
    ("found", "step"),
    [
        (None, Step.APPLY),
        (live(uid="old"), Step.REMOVE),
        (live(uid="old", **condition("Complete")), Step.REMOVE),
        (live(active=1), Step.WAIT),
        (live(**condition("Complete", "False")), Step.WAIT),
        (live(**condition("SuccessCriteriaMet")), Step.WAIT),
        (live(**condition("FailureTarget")), Step.WAIT),
        (live(**condition("Complete")), Step.SUCCEED),
        (live(**condition("Failed")), Step.FAIL),
    ],
)
def test_what_a_started_job_needs_next(found: Object | None, step: Step) -> None:
    assert next_step(hook("Job"), STARTED, found) is step


@pytest.mark.parametrize(
    ("phase", "step"),
    [("Pending", Step.WAIT), ("Running", Step.WAIT), ("Succeeded", Step.SUCCEED), ("Failed", Step.FAIL)],
)
def test_a_pod_ends_by_its_phase_even_if_it_is_ready(phase: str, step: Step) -> None:
    assert next_step(hook("Pod"), STARTED, live("Pod", phase=phase, **condition("Ready"))) is step


def test_any_other_kind_is_applied_even_if_it_exists() -> None:
    assert next_step(hook("ConfigMap"), STARTED, live("ConfigMap")) is Step.APPLY
    assert next_step(hook("ConfigMap"), STARTED, live("ConfigMap", uid="old")) is Step.REMOVE


def test_a_job_of_another_group_is_no_job() -> None:
    manifest = {"apiVersion": "batch.example.com/v1", "kind": "Job", "metadata": {"name": "x"}}
    assert next_step(Hook("x.yaml", manifest, ("pre-install",), 0, ()), STARTED, live()) is Step.APPLY


@pytest.mark.parametrize(("ttl_s", "applied"), [(None, None), (0, 3600), (300, 3600), (7200, 7200)])
def test_a_job_is_not_removed_before_its_end_is_seen(ttl_s: int | None, applied: int | None) -> None:
    spec: dict[str, Any] = {"backoffLimit": 1} | ({} if ttl_s is None else {"ttlSecondsAfterFinished": ttl_s})
    manifest = manifest_of(hook("Job", **spec))
    assert manifest["spec"].get("ttlSecondsAfterFinished") == applied
    assert manifest["spec"]["backoffLimit"] == 1


def test_the_state_of_an_object_is_described_by_its_condition() -> None:
    assert describe(live(**condition("Failed"))) == "Because: that is why"
    assert describe(None) == "it does not exist"


def test_a_hook_is_overdue_after_the_time_limit() -> None:
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert not is_overdue(STARTED, start + datetime.timedelta(seconds=300), 300.0)
    assert is_overdue(STARTED, start + datetime.timedelta(seconds=301), 300.0)
