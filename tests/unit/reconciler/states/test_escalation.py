"""When failures begin, are escalated and end, and the types of failures."""

import datetime

import msgspec
import pytest

from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.applyset import Outcome
from governor.kube.applyset.results import ObjectResult
from governor.kube.objects import ObjectRef
from governor.process.reconcile.reconciler import Done, Failed, Stalled, Waiting
from governor.reconciler.controllers.retries import SLOW_RETRY_S, paced
from governor.reconciler.kinds.failure import ESCALATED, Failure, FailureType, OnTimeout
from governor.reconciler.kinds.module_instance import ModuleInstanceStatus
from governor.reconciler.kinds.state import READY, Problem, State
from governor.reconciler.notifications.notification import body_of, notification_of
from governor.reconciler.states.conditions import published, unmet
from governor.reconciler.states.escalation import (
    RECOVERED,
    Policy,
    Seen,
    escalated_status,
    escalation_event,
    next_failure,
    unready_since,
)
from governor.reconciler.states.failures import type_in, type_of_results
from governor.reconciler.steps.step import Halted, Retry
from tests.unit.reconciler.bed import cluster

NOW = datetime.datetime(2026, 1, 1, 12, 0, tzinfo=datetime.UTC)
BEGAN, LATER = "2026-01-01T11:59:00Z", "2026-01-01T11:40:00Z"
POLICY = Policy(600, OnTimeout.ESCALATE, frozenset({"tickets"}))
QUOTA = FailureType.QUOTA


def failure(since: str = BEGAN, **more: object) -> Failure:
    return msgspec.structs.replace(Failure(QUOTA, since, "r1", "1/v"), **more)


def seen(found: FailureType | None = QUOTA, since: str = BEGAN, **more: object) -> Seen:
    return msgspec.structs.replace(Seen(found, "r2", since, "1/v"), **more)


def after(before: Failure | None, found: Seen, policy: Policy = POLICY) -> Failure | None:
    return next_failure(before, found, policy, NOW)


def test_a_failure_is_escalated_when_it_has_lasted_too_long() -> None:
    assert after(None, seen()) == Failure(QUOTA, BEGAN, "r2", "1/v")
    assert after(failure(), seen()) == failure()
    escalated = after(failure(LATER), seen(since=LATER))
    assert escalated == failure(LATER, escalated="2026-01-01T12:00:00Z")
    assert after(escalated, seen(since=LATER)) == escalated, "once"
    fail = msgspec.structs.replace(POLICY, on_timeout=OnTimeout.FAIL)
    assert after(failure(LATER), seen(since=LATER), fail) == escalated
    retry = msgspec.structs.replace(POLICY, on_timeout=OnTimeout.RETRY)
    assert after(failure(LATER), seen(since=LATER), retry) == failure(LATER)


def test_what_is_pending_too_long_is_a_failure_and_what_waits_for_others_is_not() -> None:
    assert after(None, seen(None, BEGAN, is_pending=True)) is None
    found = after(None, seen(None, LATER, is_pending=True))
    assert found is not None
    assert (found.type, found.escalated) == (FailureType.TRANSIENT, "2026-01-01T12:00:00Z")
    assert after(None, seen(None, LATER)) is None


def test_another_spec_or_other_values_start_the_time_again() -> None:
    escalated = failure(LATER, escalated=LATER, notified=("tickets",))
    found = after(escalated, seen(reference="2/v"))
    assert found == Failure(QUOTA, "2026-01-01T12:00:00Z", "r1", "2/v", reported=True), "not escalated again yet"
    ended = after(found, seen(None, is_ready=True))
    assert ended is not None
    assert ended.resolved, "the sinks know of it"
    assert after(failure(), seen(FailureType.USER)) == failure(type=FailureType.USER), "the cause may change"


def test_an_escalated_failure_is_kept_until_all_sinks_know_that_it_has_ended() -> None:
    ready = seen(None, is_ready=True)
    assert after(failure(), ready) is None
    escalated = failure(LATER, escalated=LATER, notified=("tickets",))
    resolved = after(escalated, ready)
    assert resolved == msgspec.structs.replace(escalated, resolved="2026-01-01T12:00:00Z", notified=())
    assert after(resolved, ready) == resolved
    assert after(resolved, msgspec.structs.replace(ready, notified=frozenset({"tickets"}))) is None
    assert after(escalated, ready, Policy(600)) is None, "without sinks"
    again = after(resolved, seen())
    assert again == msgspec.structs.replace(escalated, notified=()), "it has not ended"


def test_deliveries_are_recorded() -> None:
    escalated = failure(LATER, escalated=LATER)
    found = after(escalated, seen(notified=frozenset({"b", "a"})))
    assert found == msgspec.structs.replace(escalated, notified=("a", "b"))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, failure(), ""),
        (failure(), failure(escalated=BEGAN), ESCALATED),
        (failure(escalated=BEGAN), failure(escalated=BEGAN, notified=("a",)), ""),
        (failure(escalated=LATER), failure(escalated=BEGAN), ESCALATED),
        (failure(escalated=BEGAN), failure(escalated=BEGAN, resolved=BEGAN), RECOVERED),
        (failure(escalated=BEGAN), None, RECOVERED),
        (failure(escalated=BEGAN), failure(reported=True), ""),
        (failure(reported=True), None, RECOVERED),
        (failure(escalated=BEGAN, resolved=BEGAN), None, ""),
    ],
)
def test_escalation_and_recovery_are_one_event_each(before: Failure | None, now: Failure | None, expected: str) -> None:
    assert escalation_event(before, now) == expected


def test_an_escalated_status_names_who_must_act() -> None:
    processing = ModuleInstanceStatus(state=State.PROCESSING, reason="RollingOut", message="0 of 1")
    escalated = failure(type=FailureType.TRANSIENT, escalated=BEGAN)
    found = escalated_status(processing, escalated, POLICY)
    assert (found.state, found.actor, found.message) == (State.ERROR, Actor.OPERATOR, "not ready for 600 s: 0 of 1")
    (condition,) = found.conditions
    assert (condition.type, condition.status, condition.reason) == (ESCALATED, "True", "Transient")
    unschedulable = failure(type=FailureType.NOT_SCHEDULABLE, escalated=BEGAN)
    assert escalated_status(processing, unschedulable, POLICY).state is State.WARNING
    assert escalated_status(processing, failure(), POLICY).conditions == ()


def test_a_module_is_unready_since_its_condition_changed_if_that_is_of_the_present_generation() -> None:
    condition = msgspec.structs.replace(published(unmet(READY, "x", "y")), last_transition_time=BEGAN)
    status = ModuleInstanceStatus(observed_generation=2, conditions=(condition,))
    assert unready_since(status, 2, NOW) == BEGAN
    assert unready_since(status, 3, NOW) == "2026-01-01T12:00:00Z"
    assert unready_since(ModuleInstanceStatus(), 1, NOW) == "2026-01-01T12:00:00Z"


def test_an_escalated_module_is_retried_slowly_or_not_at_all_and_others_until_they_are_due() -> None:
    failed = Failed(GovernorError(Kind.PRECONDITION, "x", "y"))
    escalated = failure(escalated=BEGAN)
    found = paced(failed, seen(), escalated, POLICY, NOW)
    assert isinstance(found, Waiting)
    assert SLOW_RETRY_S / 2 <= found.recheck_s <= SLOW_RETRY_S
    fail = msgspec.structs.replace(POLICY, on_timeout=OnTimeout.FAIL)
    assert isinstance(paced(failed, seen(), escalated, fail, NOW), Stalled)
    assert paced(Done(), seen(), escalated, fail, NOW) == Done()
    assert paced(failed, seen(), failure(), POLICY, NOW) is failed
    assert paced(Stalled("s"), seen(), failure(), POLICY, NOW) == Waiting("s", 540.0), "until it is escalated"
    assert paced(Waiting("w", 30.0), seen(), failure(), POLICY, NOW) == Waiting("w", 30.0)
    retry = msgspec.structs.replace(POLICY, on_timeout=OnTimeout.RETRY)
    assert paced(Stalled("s"), seen(), failure(), retry, NOW) == Stalled("s")


TEXTS = {
    'configmaps "a" is forbidden: exceeded quota: few, requested: count/configmaps=1': FailureType.QUOTA,
    'admission webhook "policy.example.com" denied the request: no': FailureType.ADMISSION,
    "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: not on my cluster": FailureType.ADMISSION,
    'failed calling webhook "w": Post "https://w.example": connection refused': FailureType.ADMISSION,
    'pods "a" is forbidden: violates PodSecurity "restricted:latest": privileged': FailureType.ADMISSION,
    "spec.selector is immutable: delete it, or let it be re-created": FailureType.IMMUTABLE_FIELD,
    "0/1 nodes are available: 1 Insufficient memory.": FailureType.NOT_SCHEDULABLE,
    "Unschedulable": FailureType.NOT_SCHEDULABLE,
    "the server could not find the requested resource": None,
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.items())
def test_causes_are_known_by_what_api_servers_and_controllers_say(text: str, expected: FailureType | None) -> None:
    assert type_in("NotReady", text) is expected
    ref = ObjectRef("", "ConfigMap", "a", "a")
    assert type_of_results([ObjectResult(ref, Outcome.REFUSED, error=text)]) is expected
    assert type_of_results([ObjectResult(ref, Outcome.CREATED, error=text)]) is None


@pytest.mark.parametrize(
    ("actor", "retry", "expected"),
    [
        (Actor.USER, Retry.ON_CHANGE, FailureType.USER),
        (Actor.OPERATOR, Retry.RECHECK, FailureType.OPERATOR),
        (Actor.NOBODY, Retry.BACKOFF, FailureType.TRANSIENT),
        (Actor.NOBODY, Retry.RECHECK, None),
        (Actor.NOBODY, Retry.ON_CHANGE, None),
    ],
)
def test_any_other_failure_is_of_who_must_act(actor: Actor, retry: Retry, expected: FailureType | None) -> None:
    assert Halted(Problem("x", "y", actor), retry=retry).failure_type is expected
    assert Halted(Problem("x", "y", actor), retry=retry, failure=QUOTA).failure_type is QUOTA


def test_every_type_names_who_must_act() -> None:
    assert {each.actor for each in FailureType} == {Actor.USER, Actor.OPERATOR}


def test_a_template_with_an_unknown_field_is_refused_and_texts_are_escaped() -> None:
    escalated = msgspec.to_builtins(failure(escalated=BEGAN, type=FailureType.UNREACHABLE))
    subject = cluster(status={"failure": escalated, "message": 'say "no"\n', "state": "Unknown", "run": "r9"})
    found = notification_of(subject)
    assert found is not None
    assert (found.id, found.actor, found.run) == (f"r1.escalated.{BEGAN}", "operator", "r9")
    assert body_of(found, '{"t": "${message} $${x}"}') == '{"t": "say \\"no\\"\\n ${x}"}'
    assert msgspec.json.decode(body_of(found, ""))["cluster"] == "local"
    with pytest.raises(GovernorError, match=r"\$\{url\}: only id, event"):
        body_of(found, "${url}")
