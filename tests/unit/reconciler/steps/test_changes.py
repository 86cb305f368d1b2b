"""What a change is for a module, when it is complete, and what removing it must not take away."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.applyset import UnrecordedError
from governor.kube.applyset.entries import Entry
from governor.kube.applyset.inventory import CLAIM_LOST
from governor.kube.applyset.reports import ApplyReport
from governor.kube.objects import ApiResource, ObjectRef
from governor.process.clock import VirtualClock
from governor.reconciler.kinds.module_instance import (
    Applied,
    Attempt,
    ModuleInstanceSpec,
    ModuleInstanceStatus,
    Operation,
)
from governor.reconciler.release.objects import Place
from governor.reconciler.steps.custom_resources import CustomResource, without_own
from governor.reconciler.steps.dependencies import is_applied
from governor.reconciler.steps.hooks import MAX_HISTORY, completed
from governor.reconciler.steps.rendering import operation_of
from governor.reconciler.steps.step import Halted, Target, Work, failed, run
from tests.unit.reconciler.bed import CREATED, digest, instance

SPEC = ModuleInstanceSpec("dapr", "local", "dapr", CREATED, "1.0.0", digest("1.0.0"), "dapr", "dapr")
REF = ObjectRef("", "ConfigMap", "dapr", "a")
THINGS = ApiResource("example.com", "v1", "Thing", "things", namespaced=True)


def applied(values: str = "v", operation: Operation = Operation.INSTALL) -> Applied:
    return Applied("1.0.0", SPEC.chart_digest, values, CREATED, operation)


def attempt(values: str, operation: Operation, *, is_done: bool = False) -> Attempt:
    return Attempt("1.0.0", SPEC.chart_digest, values, CREATED, operation, is_applied=is_done)


async def save(_: ModuleInstanceStatus) -> None:
    """Forget the status."""


def work(values: str = "v", *, has_objects: bool = False, **status: Any) -> Work:
    entries = {REF: Entry(REF, "1")} if has_objects else {}
    found: Any = {"cluster": None, "module": None, "tools": None, "key": None}
    return Work(
        instance=instance(SPEC),
        save=save,
        values_digest=values,
        entries=entries,
        status=ModuleInstanceStatus(**status),
        **found,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (work(), Operation.INSTALL),
        (work(has_objects=True), Operation.UPGRADE),  # of a hub that was restored
        (work("w", attempt=attempt("v", Operation.INSTALL), has_objects=True), Operation.INSTALL),
        (work("w", last_applied=applied("v")), Operation.UPGRADE),
        (work("w", last_applied=applied("v"), history=(applied("w"),)), Operation.ROLLBACK),
        (work("v", last_applied=applied("v"), attempt=attempt("w", Operation.UPGRADE)), Operation.ROLLBACK),
        (work("w", last_applied=applied("v"), attempt=attempt("w", Operation.UPGRADE)), Operation.UPGRADE),
        (work("v", last_applied=applied("v", Operation.ROLLBACK)), Operation.ROLLBACK),  # repaired as it was applied
    ],
)
def test_a_change_is_an_install_until_one_has_succeeded(found: Work, expected: Operation) -> None:
    assert operation_of(found) is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (work(), False),
        (work(last_applied=applied("v")), True),
        (work("w", last_applied=applied("v")), False),
        (work("w", last_applied=applied("v"), attempt=attempt("w", Operation.UPGRADE)), False),
        (work("w", last_applied=applied("v"), attempt=attempt("w", Operation.UPGRADE, is_done=True)), True),
        (work("v", last_applied=applied("v"), attempt=attempt("w", Operation.UPGRADE)), False),
    ],
)
def test_what_is_applied_does_not_wait_for_its_dependencies_again(found: Work, expected: bool) -> None:
    assert is_applied(found) is expected


async def test_an_error_of_a_step_keeps_what_the_steps_before_it_have_found_out() -> None:
    async def first(before: Work) -> Work:
        return msgspec.structs.replace(before, values_digest="found out")

    async def second(_: Work) -> Work:
        raise GovernorError(Kind.UNAVAILABLE, "gone", "the API server does not answer")

    halted = await run((first, second), work(), "NotApplied")
    assert isinstance(halted, Halted)
    assert halted.work is not None
    assert (halted.problem.reason, halted.work.values_digest) == ("NotApplied", "found out")


def test_errors_that_end_by_themselves_alarm_neither_user_nor_operator() -> None:
    denied = GovernorError(Kind.DENIED, "denied", "you may not")
    assert failed(work(), "X", denied).problem.state == "Error"
    assert failed(work(), "X", GovernorError(Kind.CONFLICT, "x", "again")).problem.state == "Processing"
    assert failed(work(), "X", UnrecordedError(denied, ApplyReport(()))).problem.state == "Processing"
    assert failed(work(), "X", GovernorError(Kind.PRECONDITION, CLAIM_LOST, "theirs")).problem.reason == "Claimed"


def resource(uid: str, *owners: str) -> CustomResource:
    ref = ObjectRef("example.com", "Thing", "a", uid)
    return CustomResource(THINGS, ref, uid, frozenset(owners), is_terminating=False)


def test_resources_that_those_of_the_module_own_are_its_own() -> None:
    found = [resource("own"), resource("child", "own"), resource("grandchild", "child"), resource("shared", "own", "x")]
    assert [each.uid for each in without_own([*found, resource("foreign")], {"own"})] == ["foreign", "shared"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.frozensets(st.sampled_from("abcdef"), max_size=2)), max_size=8))
def test_a_resource_of_others_is_never_taken_for_an_own_one(graph: list[tuple[str, frozenset[str]]]) -> None:
    """Whatever refers to whatever, also in cycles: without an own one among them, none is the module's."""
    found = list({uid: resource(uid, *owners) for uid, owners in graph}.values())
    assert without_own(found, ()) == sorted(found, key=lambda each: each.ref)


def test_the_history_of_a_module_is_bounded_and_newest_first() -> None:
    nothing: Any = None
    place = Place(nothing, "hub", "holder", "uid", VirtualClock())
    found = msgspec.structs.replace(work(), target=Target(place, nothing, "v1.36.3"))
    for number in range(MAX_HISTORY + 3):
        changing = msgspec.structs.replace(found.status, attempt=attempt(str(number), Operation.UPGRADE))
        found = completed(msgspec.structs.replace(found, status=changing))
    assert found.status.attempt is None
    assert found.status.last_applied is not None
    values = [each.values_digest for each in (found.status.last_applied, *found.status.history)]
    assert values == [str(MAX_HISTORY + 2 - number) for number in range(MAX_HISTORY + 1)]
