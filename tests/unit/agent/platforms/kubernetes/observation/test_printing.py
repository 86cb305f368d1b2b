"""What an observing agent prints."""

import json
from datetime import UTC, datetime

from governor.agent.platforms.kubernetes.observation.printing import as_json, as_table
from governor.agent.verification.findings import Findings, InstanceFindings, combine
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Finding, State, WorkloadRef

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STORE, UNUSED = (ResourceRef("Component", "shop", name) for name in ("store", "unused"))


def found() -> Findings:
    proof = Evidence("pod orders-1", NOW, "state.redis initialised 1 -> 2 times")
    orders = InstanceFindings("orders-1", {STORE: Finding(state=State.VERIFIED, evidence=(proof,))})
    return combine([STORE, UNUSED], {WorkloadRef("shop", "Deployment", "orders"): [orders]}, NOW)


def test_a_table_has_a_line_for_each_workload_that_loads_a_resource() -> None:
    time, header, *lines = as_table(found(), NOW).splitlines()
    assert time.startswith("2026-01-02")
    assert header.split() == ["RESOURCE", "WORKLOAD", "STATE", "EVIDENCE"]
    assert lines[0].endswith("verified  pod orders-1: state.redis initialised 1 -> 2 times")
    assert "no sidecar is in its scope" in lines[1]


def test_json_is_one_line_for_programs() -> None:
    text = as_json(found())
    assert "\n" not in text
    assert [each["state"] for each in json.loads(text)["resources"]] == ["verified", "verified"]
