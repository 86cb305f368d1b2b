"""Reading refusals of the server."""

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset.results import FieldConflict, Outcome, conflicts_of, failure_of, outdated
from governor.kube.errors import ApiError, Cause, Status, StatusDetails
from governor.kube.objects import ObjectRef

REF = ObjectRef("", "ConfigMap", "shop", "a")


def refusal(code: int, reason: str, *causes: Cause) -> ApiError:
    return ApiError("PATCH /x", code, Status("told", reason, code, StatusDetails(causes)))


@pytest.mark.parametrize(
    ("message", "manager"),
    [
        ('conflict with "kubectl"', "kubectl"),
        ('conflict with "kubectl-client-side-apply" using apps/v1', "kubectl-client-side-apply"),
        ('conflict with "kube-controller-manager" with subresource "scale" using apps/v1', "kube-controller-manager"),
        ('conflict with "with \\"quotes\\"" using v1', 'with "quotes"'),
        ("conflict of some other form", ""),
    ],
)
def test_a_conflict_names_field_and_manager(message: str, manager: str) -> None:
    error = refusal(409, "Conflict", Cause("FieldManagerConflict", message, ".spec.replicas"))
    assert conflicts_of(error) == (FieldConflict("spec.replicas", manager),)
    assert not outdated(error)
    assert failure_of(REF, error).outcome is Outcome.CONFLICT


def test_an_object_that_was_replaced_is_to_be_looked_at_again() -> None:
    assert outdated(refusal(409, "Conflict"))
    assert outdated(refusal(422, "Invalid", Cause("FieldValueInvalid", "immutable", "metadata.uid")))
    assert not outdated(refusal(422, "Invalid", Cause("FieldValueInvalid", "immutable", "spec.x")))
    assert not outdated(GovernorError(Kind.CONFLICT, "x", "x"))


def test_what_does_not_fit_its_schema_is_refused_although_the_server_calls_it_its_own_error() -> None:
    text = "failed to create typed patch object (a/b; /v1, Kind=ConfigMap): .spec: field not declared in schema"
    error = ApiError("PATCH /x", 500, Status(text, "", 500))
    assert failure_of(REF, error).outcome is Outcome.REFUSED
    assert failure_of(REF, ApiError("PATCH /x", 500, Status("etcd is away", "", 500))).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(kind, Outcome.REFUSED) for kind in (Kind.INVALID, Kind.DENIED, Kind.NOT_FOUND, Kind.UNIMPLEMENTED)]
    + [(kind, Outcome.FAILED) for kind in (Kind.UNAVAILABLE, Kind.DEADLINE, Kind.INTERNAL, Kind.EXHAUSTED)]
    + [(Kind.UNAUTHENTICATED, Outcome.FAILED), (Kind.CONFLICT, Outcome.CONFLICT)],
)
def test_what_may_pass_is_failed_and_what_will_not_is_refused(kind: Kind, outcome: Outcome) -> None:
    result = failure_of(REF, GovernorError(kind, "x", "why"))
    assert (result.outcome, result.error) == (outcome, "why")
