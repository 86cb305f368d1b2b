from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from governor import yamltext
from governor.cli.output.description import runtime_text
from governor.cli.output.history import history_text
from governor.cli.output.tables import age, profiles_table, revisions_table, runtimes_table, tokens_table
from governor.domain.changes import Revision
from governor.domain.conditions import Actor, Condition, Status, summarise
from governor.domain.documents import DocumentRef, ResourceRef
from governor.domain.reports import Evidence, Report, ResourceReport, State, WorkloadReport
from governor.domain.roles import Role
from governor.values.printing import json_line, machine_text, one_line, table
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
def test_an_age_is_told_in_the_largest_unit_that_fits(seconds: int, shown: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == shown


def test_an_unknown_age_is_a_dash() -> None:
    assert age(None, NOW) == "-"


def test_columns_are_aligned_and_empty_cells_shown() -> None:
    assert table(("A", "LONGER"), [("xyz", ""), ("", 1)]) == "A    LONGER\nxyz  -\n-    1"


@given(st.text())
def test_a_text_from_elsewhere_cannot_break_a_line_or_command_a_terminal(text: str) -> None:
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1


@given(st.text())
def test_neither_can_what_programs_read_and_it_means_the_same(text: str) -> None:
    tree = {text: [text]}
    shown, line, in_yaml = machine_text(tree, "json"), json_line(tree), machine_text(tree, "yaml")
    assert all(each.isprintable() for each in (*shown.split("\n"), line, *in_yaml.split("\n")))
    assert msgspec.json.decode(shown) == msgspec.json.decode(line) == yaml.safe_load(in_yaml) == tree


def test_runtimes_are_listed_with_their_state_and_since_when() -> None:
    header, line = runtimes_table([runtime(VERIFIED)], NOW).splitlines()
    assert header.split() == ["NAME", "PLATFORM", "STATE", "REVISION", "FOR", "MESSAGE"]
    assert line.split() == ["r1", "local", "Verified", "7", "5m", "all", "verified"]


def test_profiles_are_listed_with_whom_they_are_for() -> None:
    spec = {"selector": {"runtime": "r1"}, "priority": 10, "resources": [{}, {}]}
    views = [
        DocumentView("Profile", "a", 2, 7, {"spec": spec}),
        DocumentView("Profile", "b", 1, 1, {"spec": {"selector": {}}}),
    ]
    _, first, second = profiles_table(views).splitlines()
    assert first.split() == ["a", "2", "7", "10", "2", '{"runtime":"r1"}']
    assert second.split() == ["b", "1", "1", "0", "0", "all", "runtimes"]


def test_revisions_are_listed_with_what_they_touched() -> None:
    listed = revisions_table(
        [revision(2, DocumentRef("Profile", "a"), DocumentRef("Runtime", "r"), message="why")], NOW
    )
    assert listed.splitlines()[1].split() == ["2", "5m", "anna", "Profile/a,", "Runtime/r", "why"]


def test_tokens_are_listed_with_their_state() -> None:
    tokens = [
        TokenView("t1", "anna", Role.ADMIN, None, EARLIER, None, False),
        TokenView("t2", "", None, "r1", EARLIER, EARLIER, False),
        TokenView("t3", "ci", Role.EDITOR, None, EARLIER, NOW + timedelta(1), True),
    ]
    rows = [line.split() for line in tokens_table(tokens, NOW).splitlines()[1:]]
    assert [row[:4] for row in rows] == [
        ["t1", "anna", "admin", "valid"],
        ["t2", "-", "join", "r1"],
        ["t3", "ci", "editor", "revoked"],
    ]
    assert "expired" in rows[1]


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_programs_read_back_the_wire_struct(form: str) -> None:
    view = runtime(VERIFIED, AWAY)
    text = machine_text(view, "json" if form == "json" else "yaml")
    plain = msgspec.json.decode(text) if form == "json" else yamltext.load(text, "x")[0].value
    assert msgspec.convert(plain, RuntimeView) == view


def test_a_described_runtime_shows_conditions_evidence_delivery_and_report() -> None:
    resource = ResourceReport(state=State.VERIFIED, evidence=(SEEN,), resource=ResourceRef("Component", "default", "s"))
    workload = WorkloadReport(state=State.UNPROVEN, workload="orders")
    report = Report("r1", 3, 1, "sha256:x", "boot", 4, EARLIER, "0.1.0", (resource,), (workload,))
    text = runtime_text(runtime(VERIFIED, AWAY, report=report), NOW)
    assert text.splitlines() == [
        "Name:      r1",
        "Platform:  local",
        "Labels:    region=eu",
        "State:     Verified,NotWatching: no watch",
        "Who acts:  operator",
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
        "  of sequence 3, attempt 1: number 4 by agent 0.1.0, 5m ago (2026-01-01 23:55:00Z)",
        "  Component/default/s: verified",
        "    daprd metrics, 5m ago: init_total rose by 1",
        "  workload orders: unproven",
    ]


def test_a_described_runtime_without_anything_says_so() -> None:
    text = runtime_text(runtime(AWAY, sequence=0), NOW)
    assert "nothing was meant for this runtime yet" in text
    assert "the agent has not reported yet" in text


def view(version: int, revision: int, document: dict[str, object] | None) -> DocumentView:
    return DocumentView("Profile", "a", version, revision, document)


def test_a_history_of_a_document_shows_what_each_revision_changed() -> None:
    ref = DocumentRef("Profile", "a")
    versions = {
        1: view(1, 1, {"spec": {"priority": 1}}),
        2: view(2, 3, {"spec": {"priority": 2}}),
        3: view(3, 4, {"spec": {"priority": 2}}),
        4: view(4, 5, None),
        5: view(5, 6, {"spec": {}}),
    }
    revisions = [revision(number, ref, message=f"m{number}") for number in (6, 5, 4, 3)]
    revisions.append(revision(1, ref, DocumentRef("Runtime", "r1")))
    assert [line for line in history_text(revisions, versions, NOW).splitlines() if line.startswith("  ")] == [
        "  m6",
        "  Profile/a version 5",
        "  created",
        "  m5",
        "  Profile/a version 4",
        "  deleted",
        "  m4",
        "  Profile/a version 3",
        "  only masked values changed",
        "  m3",
        "  Profile/a version 2",
        "  ~ spec.priority: 1 -> 2",
        "  Profile/a version 1 (and 1 more)",
        "  created",
    ]


def test_a_history_of_everything_names_the_documents() -> None:
    text = history_text([revision(2, DocumentRef("Profile", "a"), DocumentRef("Runtime", "r"))], {}, NOW)
    assert text.splitlines() == [
        "revision 2, 5m ago (2026-01-01 23:55:00Z), by anna",
        "  Profile/a",
        "  Runtime/r",
    ]


def test_an_empty_history_says_so() -> None:
    assert history_text([], {}, NOW) == "there are no revisions yet"
