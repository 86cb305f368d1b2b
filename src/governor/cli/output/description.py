"""The text of ``describe runtime``: conditions with their evidence, delivery and report. Pure."""

from collections.abc import Iterator
from datetime import datetime

from governor.domain.conditions import Actor, Condition
from governor.domain.reports import Evidence, Finding, Report
from governor.domain.windows import Day, Opening, next_opening
from governor.values.printing import age, one_line, timestamp
from governor.wire.rest import RuntimeView


def runtime_text(runtime: RuntimeView, now: datetime) -> str:
    """Return the full description of a runtime."""
    parts = [_identity(runtime, now), _conditions(runtime, now), _delivery(runtime), _report(runtime.report, now)]
    return "\n\n".join("\n".join(part) for part in parts)


def _identity(runtime: RuntimeView, now: datetime) -> Iterator[str]:
    labels = ", ".join(f"{key}={value}" for key, value in sorted(runtime.labels.items()))
    yield f"Name:      {runtime.name}"
    yield f"Platform:  {runtime.platform}"
    yield f"Labels:    {labels or '-'}"
    yield f"State:     {runtime.summary.state}: {one_line(runtime.summary.message)}"
    if runtime.summary.actor is not Actor.NOBODY:
        yield f"Action by: {runtime.summary.actor}"
    for window in runtime.windows:
        days = "every day" if set(window.days) == set(Day) else ", ".join(window.days)
        yield f"Window:    {days} at {window.start} {window.time_zone} for {window.duration_minutes} minutes"
    if runtime.windows:
        yield f"           {_opening(next_opening(runtime.windows, now), now)}"


def _opening(opening: Opening | None, now: datetime) -> str:
    if opening is None:
        return "this machine does not know the time zone"
    if opening.begin > now:
        return f"closed, next: {timestamp(opening.begin)}"
    return f"open until {timestamp(opening.end)}" if opening.end else "open"


def _conditions(runtime: RuntimeView, now: datetime) -> Iterator[str]:
    yield "Conditions:"
    for condition in runtime.conditions:
        yield from _condition(condition, now)


def _condition(condition: Condition, now: datetime) -> Iterator[str]:
    since = f" for {age(condition.since, now)}" if condition.since else ""
    checked = f", checked {age(condition.checked, now)} ago" if condition.checked else ""
    yield f"  {condition.type}: {condition.status}{since}{checked}, {condition.reason}: {one_line(condition.message)}"
    # The evidence of a workload repeats that of its resources.
    yield from dict.fromkeys(f"    {_evidence(each, now)}" for each in condition.evidence)


def _delivery(runtime: RuntimeView) -> Iterator[str]:
    yield "Delivery:"
    if not runtime.sequence:
        yield "  no delivery yet"
        return
    yield f"  sequence {runtime.sequence}, attempt {runtime.attempt}, from revision {runtime.revision}"
    yield f"  {runtime.digest}"


def _report(report: Report | None, now: datetime) -> Iterator[str]:
    yield "Report:"
    if report is None:
        yield "  the agent has not reported yet"
        return
    source = f"report {report.n} from agent {report.agent}, {age(report.time, now)} ago ({timestamp(report.time)})"
    yield f"  sequence {report.sequence}, attempt {report.attempt}: {source}"
    for resource in report.resources:
        yield from _finding(str(resource.resource), resource, now)
    for workload in report.workloads:
        counts = f", {workload.instances.verified} of {workload.instances.total} instances verified"
        yield from _finding(f"workload {workload.workload}", workload, now, counts)


def _finding(name: str, finding: Finding, now: datetime, counts: str = "") -> Iterator[str]:
    cause = f" (cause: {finding.cause})" if finding.cause else ""
    yield f"  {name}: {finding.state}{cause}{counts}"
    for evidence in finding.all_evidence:
        yield f"    {_evidence(evidence, now)}"


def _evidence(evidence: Evidence, now: datetime) -> str:
    return f"{evidence.source}, {age(evidence.time, now)} ago: {one_line(evidence.text)}"
