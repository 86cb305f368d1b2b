"""What a rollback goes back to, and when the policy demands one."""

from typing import Any

import msgspec

from governor.reconciler.kinds.failure import Failure, FailureType
from governor.reconciler.kinds.installation import OnFailure
from governor.reconciler.kinds.module_instance import (
    ROLLBACK,
    Applied,
    Attempt,
    KnownGood,
    ModuleInstance,
    ModuleInstanceSpec,
    ModuleInstanceStatus,
    Rollback,
    RollbackCause,
)
from governor.reconciler.states.rollback import (
    active_rollback,
    effective,
    goal_of,
    rollback_by_policy,
    rolled_back,
    with_known_good,
)
from tests.unit.reconciler.bed import CREATED, digest, instance

SPEC = ModuleInstanceSpec("dapr", "local", "dapr", CREATED, "2.0.0", digest("2.0.0"), "dapr", "dapr", values={"n": 2})
POLICY = msgspec.structs.replace(SPEC, on_failure=OnFailure.ROLLBACK)
FAILURE = Failure(FailureType.OPERATOR, CREATED, "r", escalated=CREATED)
ATTEMPT = Attempt("2.0.0", digest("2.0.0"), "v2", CREATED)


def good(generation: int, version: str = "1.0.0") -> KnownGood:
    return KnownGood(generation, version, digest(version), f"v{generation}", "dapr", "dapr", {"n": generation})


def found(spec: ModuleInstanceSpec = SPEC, *, annotation: str = "", **status: Any) -> ModuleInstance:
    annotations = {ROLLBACK: annotation} if annotation else {}
    return instance(
        spec,
        generation=2,
        annotations=annotations,
        status=msgspec.to_builtins(ModuleInstanceStatus(**status)),
    )


def test_a_rollback_goes_to_the_newest_state_with_another_spec() -> None:
    assert goal_of(found()) is None
    assert goal_of(found(known_good=(good(2, "2.0.0"), good(1)))) == good(1)
    assert goal_of(found(known_good=(good(2, "2.0.0"),))) is None
    worked_on = effective(found(known_good=(good(1),)), Rollback(2, "2.0.0", RollbackCause.REQUEST))
    spec = worked_on.spec
    assert (spec.version, spec.chart_digest, spec.values) == ("1.0.0", digest("1.0.0"), {"n": 1})
    assert effective(found(known_good=(good(1),)), None).spec == SPEC


def test_a_request_is_for_one_generation_and_a_rollback_by_policy_lasts_as_long() -> None:
    requested = found(annotation="2", known_good=(good(1),))
    assert active_rollback(requested) == Rollback(2, "2.0.0", RollbackCause.REQUEST)
    assert active_rollback(found(annotation="1", known_good=(good(1),))) is None
    assert active_rollback(found(annotation="2")) is None, "nothing to go back to"
    by_policy = Rollback(2, "2.0.0", RollbackCause.POLICY)
    assert active_rollback(found(known_good=(good(1),), rollback=by_policy)) == by_policy
    older = msgspec.structs.replace(by_policy, generation=1)
    assert active_rollback(found(known_good=(good(1),), rollback=older)) is None
    withdrawn = Rollback(2, "2.0.0", RollbackCause.REQUEST)
    assert active_rollback(found(known_good=(good(1),), rollback=withdrawn)) is None


def test_the_message_names_what_was_rolled_back_and_to_what() -> None:
    """The values may differ and the version not."""
    by_policy = Rollback(2, "2.0.0", RollbackCause.POLICY, "x: y")
    assert rolled_back(found(known_good=(good(1),)), by_policy).message.startswith(
        "2.0.0 failed and was rolled back to 1.0.0;"
    )
    same = rolled_back(found(known_good=(good(1, "2.0.0"),)), by_policy)
    assert same.message == "2.0.0 failed and was rolled back to its earlier settings; change the spec: x: y"


def test_the_policy_rolls_an_escalated_change_back_if_it_was_begun() -> None:
    status = ModuleInstanceStatus(known_good=(good(1),), attempt=ATTEMPT, failure=FAILURE, reason="x", message="y")
    changing = found(POLICY, known_good=(good(1),))
    assert rollback_by_policy(changing, status) == Rollback(2, "2.0.0", RollbackCause.POLICY, "x: y")
    assert rollback_by_policy(found(known_good=(good(1),)), status) is None, "hold"
    assert rollback_by_policy(found(POLICY), status) is None, "nothing to go back to"
    calm = msgspec.structs.replace(status, failure=msgspec.structs.replace(FAILURE, escalated=None))
    assert rollback_by_policy(changing, calm) is None
    last = Applied("1.0.0", digest("1.0.0"), "v1", CREATED)
    untouched = msgspec.structs.replace(status, attempt=None, last_applied=last)
    assert rollback_by_policy(changing, untouched) is None, "nothing of the change was applied"
    applied = msgspec.structs.replace(untouched, last_applied=Applied("2.0.0", digest("2.0.0"), "v2", CREATED))
    assert rollback_by_policy(changing, applied) is not None


def test_two_states_are_kept_and_one_that_is_ready_again_is_the_newest() -> None:
    last = Applied("2.0.0", digest("2.0.0"), "v2", CREATED)
    status = ModuleInstanceStatus(last_applied=last, known_good=(good(1), good(0, "0.9.0")))
    kept = with_known_good(status, SPEC, 2).known_good
    assert [each.version for each in kept] == ["2.0.0", "1.0.0"]
    again = with_known_good(msgspec.structs.replace(status, known_good=kept), SPEC, 3).known_good
    assert [(each.version, each.generation) for each in again] == [("2.0.0", 3), ("1.0.0", 1)]
