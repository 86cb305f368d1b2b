from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from governor import yamltext
from governor.cli.output.description import runtime_text
from governor.cli.output.tables import profiles_table, revisions_table, runtimes_table, tokens_table
from governor.domain.changes import Revision
from governor.domain.conditions import Actor, Condition, Status, summarise
from governor.domain.documents import DocumentRef, ResourceRef
from governor.domain.reports import Cause, Evidence, Report, ResourceReport, State, WorkloadRef, WorkloadReport
from governor.domain.roles import Role
from governor.values.printing import age, json_line, machine_text, one_line, table
from governor.wire.rest import DocumentView, RuntimeView, TokenView

NOW = datetime(2026, 1, 2, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=5)
SEEN = Evidence("daprd metrics", EARLIER, "init_total rose by 1")
VERIFIED = Condition("Verified", Status.TRUE, "Verified", "all verified", since=EARLIER, evidence=(SEEN,))
AWAY = Condition("Connected", Status.FALSE, "NotWatching", "no watch", Actor.OPERATOR)


def runtime(*conditions: Condition, report: Report | None = None, sequence: int = 3) -> RuntimeView:
    summary = summarise(conditions)
    return RuntimeView("r1", "local", {"region": "eu"}, sequence, 1, 7, "sha256:x", summary, conditions, report)


def revision(number: int, *documents: DocumentRef, message: str = "") -> Revision:
    return Revision(number, "sha256:x", number - 1 or None, "anna", message, EARLIER, documents)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "120m"), (7200, "2h"), (86400, "24h"), (864000, "10d")],
)
def test_an_age_uses_the_largest_unit_of_which_there_are_two(seconds: int, shown: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == shown


def test_an_unknown_age_is_a_dash() -> None:
    assert age(None, NOW) == "-"


def test_columns_are_aligned_and_empty_cells_shown() -> None:
    assert table(("A", "LONGER"), [("xyz", ""), ("", 1)]) == "A    LONGER\nxyz  -\n-    1"


@given(st.text())
def test_foreign_text_contains_no_line_break_or_control_sequence(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


@given(st.text())
def test_machine_output_contains_no_control_sequence_and_keeps_its_value(text: str) -> None:
    tree = {text: [text]}
    shown, line, in_yaml = machine_text(tree, "json"), json_line(tree), machine_text(tree, "yaml")
    assert all(each.isprintable() for each in (*shown.split("\n"), line, *in_yaml.split("\n")))
    assert msgspec.json.decode(shown) == msgspec.json.decode(line) == yaml.safe_load(in_yaml) == tree


def test_runtimes_are_listed_with_their_state_and_since_when() -> None:
    header, line = runtimes_table([runtime(VERIFIED)], NOW).splitlines()
    assert header.split() == ["NAME", "PLATFORM", "STATE", "REVISION", "FOR", "MESSAGE"]
    assert line.split() == ["r1", "local", "Verified", "7", "5m", "all", "verified"]


def test_profiles_are_listed_with_their_selector() -> None:
    spec = {"selector": {"runtime": "r1"}, "priority": 10, "resources": [{}, {}]}
    views = [
        DocumentView("Profile", "a", 2, 7, {"spec": spec}),
        DocumentView("Profile", "b", 1, 1, {"spec": {"selector": {}}}),
    ]
    _, first, second = profiles_table(views).splitlines()
    assert first.split() == ["a", "2", "7", "10", "2", '{"runtime":"r1"}']
    assert second.split() == ["b", "1", "1", "0", "0", "all", "runtimes"]


def test_revisions_are_listed_with_their_documents() -> None:
    listed = revisions_table(
        [revision(2, DocumentRef("Profile", "a"), DocumentRef("Runtime", "r"), message="why")], NOW
    )
    assert listed.splitlines()[1].split() == ["2", "5m", "anna", "Profile/a,", "Runtime/r", "why"]


def test_tokens_are_listed_with_their_state() -> None:
    tokens = [
        TokenView("t1", "anna", Role.ADMIN, None, EARLIER, None, False),
        TokenView("t2", "", None, "r1", EARLIER, EARLIER, False),
        TokenView("t3", "ci", Role.EDITOR, None, EARLIER, NOW + timedelta(1), True),
        TokenView("t4", "joined", Role.EDITOR, None, EARLIER, NOW + timedelta(1), True, used=True),
    ]
    rows = [line.split() for line in tokens_table(tokens, NOW).splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        ["t1", "anna", "admin", "valid"],
        ["t2", "-", "join", "r1"],
        ["t3", "ci", "editor", "revoked"],
        ["t4", "joined", "editor", "used"],
    ]
    assert "expired" in rows[1]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_machine_output_decodes_to_the_same_struct(form: str) -> None:
    view = runtime(VERIFIED, AWAY)
    text = machine_text(view, "json" if form == "json" else "yaml")
    plain = msgspec.json.decode(text) if form == "json" else yamltext.load(text, "x")[0].value
    assert msgspec.convert(plain, RuntimeView) == view


def test_a_described_runtime_shows_conditions_evidence_delivery_and_report() -> None:
    resource = ResourceReport(state=State.VERIFIED, evidence=(SEEN,), resource=ResourceRef("Component", "default", "s"))
    workload = WorkloadReport(
        state=State.UNPROVEN, workload=WorkloadRef("default", "Sidecar", "orders"), cause=Cause.RUNTIME
    )
    report = Report("r1", 3, 1, "sha256:x", 1, 4, EARLIER, "0.1.0", (resource,), (workload,))
    text = runtime_text(runtime(VERIFIED, AWAY, report=report), NOW)
    assert text.splitlines() == [
        "Name:      r1",
        "Platform:  local",
        "Labels:    region=eu",
        "State:     Verified,NotWatching: no watch",
        "Action by: operator",
        "",
        "Conditions:",
        "  Verified: True for 5m, Verified: all verified",
        "    daprd metrics, 5m ago: init_total rose by 1",
        "  Connected: False, NotWatching: no watch",
        "",
        "Delivery:",
        "  sequence 3, attempt 1, from revision 7",
        "  sha256:x",
        "",
        "Report:",
        "  sequence 3, attempt 1: report 4 from agent 0.1.0, 5m ago (2026-01-01 23:55:00Z)",
        "  Component/default/s: verified",
        "    daprd metrics, 5m ago: init_total rose by 1",
        "  workload default/Sidecar/orders: unproven (cause: runtime), 0 of 0 instances verified",
    ]


def test_a_condition_lists_evidence_of_several_findings_once() -> None:
    condition = msgspec.structs.replace(VERIFIED, evidence=(SEEN, SEEN))

    text = runtime_text(runtime(condition), NOW)

    assert text.count("init_total rose by 1") == 1


def test_describing_a_new_runtime_states_that_nothing_was_delivered_or_reported() -> None:
    text = runtime_text(runtime(AWAY, sequence=0), NOW)
    assert "no delivery yet" in text
    assert "the agent has not reported yet" in text
