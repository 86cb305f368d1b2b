"""Server errors as results."""

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset.results import (
    FieldConflict,
    Outcome,
    apply_failure,
    conflicts_of,
    immutable_fields,
    is_stale,
)
from governor.kube.errors import ApiError, Cause, Status, StatusDetails
from governor.kube.objects import ObjectRef

REF = ObjectRef("", "ConfigMap", "shop", "a")


def api_error(code: int, reason: str, *causes: Cause) -> ApiError:
    return ApiError("PATCH /x", code, Status("message", reason, code, StatusDetails(causes)))


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
    error = api_error(409, "Conflict", Cause("FieldManagerConflict", message, ".spec.replicas"))
    assert conflicts_of(error) == (FieldConflict("spec.replicas", manager),)
    assert not is_stale(error)
    assert apply_failure(REF, error).outcome is Outcome.CONFLICT


def test_a_replaced_object_makes_the_write_stale() -> None:
    assert is_stale(api_error(409, "Conflict"))
    assert is_stale(api_error(422, "Invalid", Cause("FieldValueInvalid", "immutable", "metadata.uid")))
    assert not is_stale(api_error(422, "Invalid", Cause("FieldValueInvalid", "immutable", "spec.x")))
    assert not is_stale(GovernorError(Kind.CONFLICT, "x", "x"))


@pytest.mark.parametrize(
    ("causes", "fields"),
    [
        ([("spec.selector", "Invalid value: {}: field is immutable")], ("spec.selector",)),
        (
            [("spec", "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden")],
            ("spec",),
        ),
        ([("spec", "Forbidden: spec is immutable after creation except resources.requests")], ("spec",)),
        ([("spec.clusterIPs[0]", "Invalid value: may not change once set")], ("spec.clusterIPs[0]",)),
        ([("value", "Forbidden: may not be changed in an update.")], ("value",)),
        ([("roleRef", "Invalid value: cannot change roleRef")], ("roleRef",)),
        ([("spec.a", "field is immutable"), ("spec.b", "Required value")], ()),
        ([("spec.replicas", "Invalid value: -1: must be greater than or equal to 0")], ()),
        # Of a ValidatingAdmissionPolicy: deleting the object would circumvent it.
        ([("", "ValidatingAdmissionPolicy 'freeze' denied request: x may not be changed")], ()),
        ([], ()),
    ],
)
def test_immutable_fields_are_recognised_by_their_message(
    causes: list[tuple[str, str]], fields: tuple[str, ...]
) -> None:
    listed = [Cause("FieldValueInvalid", message, field) for field, message in causes]
    assert immutable_fields(api_error(422, "Invalid", *listed)) == fields
    assert immutable_fields(api_error(403, "Forbidden", *listed)) == ()


def test_in_a_terminating_namespace_an_object_waits() -> None:
    error = api_error(403, "Forbidden", Cause("NamespaceTerminating", "namespace x is being terminated", "metadata"))
    assert apply_failure(REF, error).outcome is Outcome.TERMINATING


def test_a_schema_error_is_refused_although_its_status_is_500() -> None:
    text = "failed to create typed patch object (a/b; /v1, Kind=ConfigMap): .spec: field not declared in schema"
    error = ApiError("PATCH /x", 500, Status(text, "", 500))
    assert apply_failure(REF, error).outcome is Outcome.REFUSED
    assert (
        apply_failure(REF, ApiError("PATCH /x", 500, Status("etcd is unavailable", "", 500))).outcome is Outcome.FAILED
    )


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(kind, Outcome.REFUSED) for kind in (Kind.INVALID, Kind.DENIED, Kind.UNIMPLEMENTED)]
    + [(kind, Outcome.FAILED) for kind in (Kind.UNAVAILABLE, Kind.DEADLINE, Kind.INTERNAL, Kind.EXHAUSTED)]
    + [(Kind.NOT_FOUND, Outcome.FAILED), (Kind.UNAUTHENTICATED, Outcome.FAILED), (Kind.CONFLICT, Outcome.CONFLICT)],
)
def test_retryable_errors_are_failed_and_others_refused(kind: Kind, outcome: Outcome) -> None:
    result = apply_failure(REF, GovernorError(kind, "x", "why"))
    assert (result.outcome, result.error) == (outcome, "why")
