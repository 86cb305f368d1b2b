"""Findings of an observation as text. Pure."""

from collections.abc import Iterator
from datetime import datetime

from governor.agent.verification.findings import AGENT, Findings
from governor.domain.reports import Finding, ResourceReport
from governor.values.printing import NONE, json_line, table, timestamp


def as_table(found: Findings, now: datetime) -> str:
    """Return one line for each resource and workload that loads it, with the last evidence and its source."""
    rows = [row for each in found.resources for row in _rows(each)]
    return f"{timestamp(now)}\n{table(('RESOURCE', 'WORKLOAD', 'STATE', 'EVIDENCE'), rows)}"


def as_json(found: Findings) -> str:
    """Return the findings as one line of JSON, as in the report of an agent."""
    return json_line({"resources": found.resources, "workloads": found.workloads})


def _rows(report: ResourceReport) -> Iterator[tuple[object, ...]]:
    if not report.workloads:
        yield report.resource, NONE, report.state, _evidence(report)
    for each in report.workloads:
        yield report.resource, each.workload, each.state, _evidence(each)


def _evidence(finding: Finding) -> str:
    if not finding.evidence:
        return NONE
    last = finding.evidence[-1]
    return last.text if last.source == AGENT else f"{last.source}: {last.text}"
