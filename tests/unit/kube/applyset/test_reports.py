"""What remains to be done after a run."""

import pytest

from governor.kube.applyset import (
    ApplyReport,
    ConvergeReport,
    DriftMode,
    DriftReport,
    FieldDrift,
    ObjectDrift,
    ObjectResult,
    Outcome,
    PruneOutcome,
    PruneReport,
    PruneResult,
)
from governor.kube.objects import ObjectRef
from governor.values.treediff import Difference, Operation

REF = ObjectRef("", "ConfigMap", "shop", "a")
OTHER = ObjectRef("", "ConfigMap", "shop", "b")
APPLIED = ObjectResult(REF, Outcome.CHANGED)
WAITING = ObjectResult(REF, Outcome.TERMINATING, error="still terminating")
CHANGE = Difference("data.x", Operation.CHANGED, "theirs", "ours")


def report(*results: ObjectResult, drifts: tuple[ObjectDrift, ...] = (), pruned: str = "") -> ConvergeReport:
    prune = (PruneResult(OTHER, PruneOutcome(pruned), "why"),) if pruned else ()
    return ConvergeReport(ApplyReport(results), DriftReport(DriftMode.WARN, 0, drifts), PruneReport(prune))


def changed(*, exhausted: bool = False, repair: ObjectResult | None = None) -> ObjectDrift:
    return ObjectDrift(REF, fields=(FieldDrift(CHANGE, ("rival",), exhausted=exhausted),), repair=repair)


@pytest.mark.parametrize(
    ("converged", "ok", "pending"),
    [
        (report(), True, False),
        (report(APPLIED, pruned="removed"), True, False),
        (report(APPLIED, pruned="terminating"), False, True),
        (report(APPLIED, pruned="skipped"), False, False),
        (report(APPLIED, pruned="held"), False, False),
        (report(WAITING, pruned="skipped"), False, True),
        (report(WAITING, ObjectResult(OTHER, Outcome.SKIPPED)), False, True),
        (report(WAITING, ObjectResult(OTHER, Outcome.REFUSED)), False, False),
        (report(APPLIED, drifts=(changed(repair=APPLIED),)), True, False),
        (report(APPLIED, drifts=(changed(exhausted=True, repair=APPLIED),)), False, False),
        (report(drifts=(changed(),)), False, False),
        (report(drifts=(changed(),), pruned="terminating"), False, False),
        (report(WAITING, drifts=(ObjectDrift(REF, deleted=True, repair=WAITING),)), False, True),
        (report(drifts=(ObjectDrift(REF, error="unreadable"),)), False, False),
    ],
)
def test_ok_and_pending(converged: ConvergeReport, ok: bool, pending: bool) -> None:
    assert (converged.ok, converged.pending) == (ok, pending)
    assert bool(converged.problems()) is (not ok and _only_prune(converged) != "skipped")


def _only_prune(converged: ConvergeReport) -> str:
    outcomes = {result.outcome for result in converged.prune.results}
    return outcomes.pop() if outcomes and converged.apply.ok and not converged.drift.objects else ""


@pytest.mark.parametrize(
    ("converged", "problem"),
    [
        (report(WAITING), "ConfigMap shop/a: terminating: still terminating"),
        (report(pruned="held"), "ConfigMap shop/b: held: why"),
        (report(drifts=(changed(),)), "ConfigMap shop/a: 1 fields were changed by rival: data.x"),
        (
            report(APPLIED, drifts=(changed(exhausted=True, repair=APPLIED),)),
            "ConfigMap shop/a: 1 fields were changed by rival, and again after each repair: data.x",
        ),
        (report(drifts=(ObjectDrift(REF, deleted=True),)), "ConfigMap shop/a: was deleted"),
        (report(drifts=(ObjectDrift(REF, error="denied"),)), "ConfigMap shop/a: cannot be compared: denied"),
    ],
)
def test_a_problem_names_object_and_reason(converged: ConvergeReport, problem: str) -> None:
    assert converged.problems() == (problem,)


def test_only_some_problems_are_listed() -> None:
    failed = [ObjectResult(ObjectRef("", "Pod", "shop", str(number)), Outcome.FAILED) for number in range(15)]
    texts = report(*failed).problems()
    assert len(texts) == 11
    assert texts[-1] == "and 5 more"
