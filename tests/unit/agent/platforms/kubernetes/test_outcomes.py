"""Results by resource: causes of failures, failures of Secrets, removals, and texts of drift."""

import pytest

from governor.agent.platforms.kubernetes.resources.manifests import Manifests, manifests_of
from governor.agent.platforms.kubernetes.resources.outcomes import (
    Applied,
    Outcome,
    ResourceResult,
    drift_texts,
    explained,
    loaded_drifts,
    results_of,
)
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Cause
from governor.errors import GovernorError, Kind
from governor.kube.applyset import (
    ApplyReport,
    FieldDrift,
    ObjectDrift,
    ObjectResult,
    PruneOutcome,
    PruneReport,
    PruneResult,
)
from governor.kube.applyset import Outcome as ObjectOutcome
from governor.kube.objects import ObjectRef, ref_of
from governor.values.treediff import Difference, Operation

STORE = ResourceRef("Component", "team", "store")
OLD = ResourceRef("Component", "team", "old")
OBJECT = ObjectRef("dapr.io", "Component", "team", "store")
OLD_OBJECT = ObjectRef("dapr.io", "Component", "team", "old")


def manifests() -> Manifests:
    spec = {"type": "state.redis", "version": "v1", "metadata": [{"name": "redisPassword", "value": "hidden"}]}
    store = {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": "store"}, "spec": spec}
    return manifests_of(Delivery("r1", 1, 1, 1, "d", (store,), (OLD,), ApplyPolicy()), ["team"], b"key")


MANIFESTS = manifests()
SECRET = ref_of(MANIFESTS.secrets[STORE])


def result(each: ObjectResult) -> ResourceResult:
    return results_of(MANIFESTS, ApplyReport((each,)), PruneReport())[STORE]


@pytest.mark.parametrize(
    ("outcome", "code", "error", "cause"),
    [
        ("refused", "kube-invalid", "spec.type: Required value", Cause.CHANGE),
        ("refused", "kube-internal-error", "failed to create typed patch object: field not declared", Cause.CHANGE),
        ("refused", "kube-forbidden", 'admission webhook "x" denied the request: no', Cause.CHANGE),
        ("refused", "object-foreign", "exists already and is managed by helm", Cause.CHANGE),
        ("failed", "kube-internal-error", 'admission webhook "x" denied the request: try later', Cause.RUNTIME),
        ("failed", "kube-internal-error", 'failed calling webhook "x": deadline exceeded', Cause.RUNTIME),
        ("failed", "kube-internal-error", "conversion webhook for dapr.io failed", Cause.RUNTIME),
        ("failed", "kube-not-found", 'namespaces "team" not found', Cause.RUNTIME),
        ("failed", "kube-no-api", "no API at this path", Cause.RUNTIME),
        ("refused", "kube-forbidden", "exceeded quota: objects", Cause.RUNTIME),
        ("terminating", "kube-forbidden", "because it is being terminated", Cause.RUNTIME),
        ("conflict", "kube-conflict", "the object has been modified", Cause.AGENT),
        ("failed", "kube-too-many-requests", "busy", Cause.AGENT),
        ("failed", "kube-unreachable", "connection refused", Cause.AGENT),
        ("failed", "kube-unauthorized", "expired token", Cause.AGENT),
        (
            "refused",
            "kube-forbidden",
            'User "agent" cannot patch resource "components" in API group "dapr.io" in the namespace "team"',
            Cause.AGENT,
        ),
    ],
)
def test_the_cause_of_a_failure(outcome: str, code: str, error: str, cause: Cause) -> None:
    found = result(ObjectResult(OBJECT, ObjectOutcome(outcome), error=error, code=code))
    assert (found.outcome, found.cause) == (Outcome.FAILED, cause)
    assert found.text


def test_a_failure_of_a_secret_is_one_of_its_resource() -> None:
    failed = ObjectResult(SECRET, ObjectOutcome.REFUSED, error="too long", code="kube-invalid")
    skipped = ObjectResult(OBJECT, ObjectOutcome.SKIPPED, error="the Secret must be applied first")
    found = results_of(MANIFESTS, ApplyReport((failed, skipped)), PruneReport())
    assert found[STORE] == ResourceResult(Outcome.FAILED, f"its {SECRET}: too long", Cause.CHANGE)
    foreign = ObjectResult(SECRET, ObjectOutcome.REFUSED, error="exists already", code="object-foreign")
    assert result(foreign).cause is Cause.RUNTIME


def test_a_kept_secret_that_fails_has_a_result_of_its_own() -> None:
    other = ObjectRef("", "Secret", "team", "kept")
    failed = ObjectResult(other, ObjectOutcome.FAILED, error="busy", code="kube-too-many-requests")
    found = results_of(MANIFESTS, ApplyReport((failed,)), PruneReport())
    assert found[ResourceRef("Secret", "team", "kept")].cause is Cause.AGENT


@pytest.mark.parametrize(
    ("pruned", "expected", "cause"),
    [
        (PruneOutcome.REMOVED, Outcome.REMOVED, None),
        (PruneOutcome.ABSENT, Outcome.REMOVED, None),
        (PruneOutcome.TERMINATING, Outcome.SKIPPED, None),
        (PruneOutcome.SKIPPED, Outcome.SKIPPED, None),
        (PruneOutcome.FOREIGN, Outcome.FAILED, Cause.RUNTIME),
        (PruneOutcome.FAILED, Outcome.FAILED, Cause.AGENT),
        (PruneOutcome.REFUSED, Outcome.FAILED, Cause.RUNTIME),
    ],
)
def test_the_result_of_a_removal(pruned: PruneOutcome, expected: Outcome, cause: Cause | None) -> None:
    found = results_of(MANIFESTS, ApplyReport(()), PruneReport((PruneResult(OLD_OBJECT, pruned, "why"),)))
    assert (found[OLD].outcome, found[OLD].cause) == (expected, cause)


def test_a_removal_of_what_does_not_exist_changes_nothing() -> None:
    assert results_of(MANIFESTS, ApplyReport(()), PruneReport())[OLD].outcome is Outcome.UNCHANGED


def test_a_secret_that_is_removed_has_no_result() -> None:
    removed = PruneResult(ObjectRef("", "Secret", "team", "s"), PruneOutcome.REMOVED)
    assert results_of(MANIFESTS, ApplyReport(()), PruneReport((removed,))).keys() == {OLD}


def test_texts_of_drift_have_no_values() -> None:
    fields = [
        FieldDrift(Difference(f"spec.field{number}", Operation.CHANGED, "hidden", "hidden too"), ("kubectl-edit",))
        for number in range(7)
    ]
    texts = drift_texts(MANIFESTS, [ObjectDrift(OBJECT, fields=tuple(fields))])
    assert "hidden" not in texts[STORE]
    assert texts[STORE].startswith("was changed: spec.field0 by kubectl-edit, ")
    assert texts[STORE].endswith(" and 2 more fields")
    assert drift_texts(MANIFESTS, [ObjectDrift(SECRET, deleted=True)]) == {STORE: f"its {SECRET} was deleted"}


def test_what_no_sidecar_loads_is_metadata() -> None:
    def drift(of: ObjectRef, *paths: str) -> ObjectDrift:
        changed = [FieldDrift(Difference(path, Operation.CHANGED, "a", "b")) for path in paths]
        return ObjectDrift(of, fields=tuple(changed))

    assert loaded_drifts(MANIFESTS, [drift(OBJECT, "metadata.labels.team")]) == frozenset()
    assert loaded_drifts(MANIFESTS, [ObjectDrift(OBJECT, error="timed out")]) == frozenset()
    for each in (
        drift(OBJECT, "metadata.labels.team", "spec.type"),
        drift(SECRET, "data.redisPassword"),
        ObjectDrift(SECRET, deleted=True),
    ):
        assert loaded_drifts(MANIFESTS, [each]) == {STORE}


def test_a_missing_permission_is_explained_and_other_errors_stay() -> None:
    text = 'secrets is forbidden: User "a" cannot list resource "secrets" in API group "" at the cluster scope'
    assert explained(GovernorError(Kind.DENIED, "kube-forbidden", text)).message == (
        "the agent may not list secrets in the cluster: grant that to its ServiceAccount"
    )
    other = GovernorError(Kind.UNAVAILABLE, "kube-unreachable", "refused")
    assert explained(other) is other


def test_an_unrecorded_run_is_not_ok() -> None:
    applied = Applied({STORE: ResourceResult(Outcome.APPLIED)}, error="not recorded")
    assert not applied.ok
    assert str(applied) == "written: Component/team/store; not recorded"
