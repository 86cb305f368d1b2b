"""Bodies of the API: errors survive a round trip, and stored or sent formats do not change."""

import json
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.bundles import Delivery
from governor.domain.changes import Change, ChangeState, ClassChange, DocumentChange, Revision, RuntimeChange
from governor.domain.conditions import Actor, Condition, Status, Summary
from governor.domain.documents import ApplyPolicy, DocumentRef, Platform, Preflight, ResourceRef, Strategy, Unproven
from governor.domain.inventories import FoundResource, FoundWorkload, Inventory
from governor.domain.reports import (
    Cause,
    Evidence,
    Instances,
    Report,
    ResourceReport,
    State,
    WorkloadFinding,
    WorkloadRef,
    WorkloadReport,
)
from governor.domain.roles import Role
from governor.domain.windows import Day, Hold, Window, hold_restraint
from governor.errors import Detail, GovernorError, Kind
from governor.values.treediff import Difference, Operation
from governor.wire import rest
from governor.wire.deliveries import SignedDelivery, open_delivery, sign_delivery
from governor.wire.problems import HTTP_STATUS, Problem, error_of, problem
from governor.wire.reports import Report1, ResourceReport1, WorkloadReport1, from_format_1, to_format_1
from tests.unit.values.strategies import texts

GOLDEN = Path(__file__).parent / "golden"

# -- errors --------------------------------------------------------------------------------------------------------


def test_every_kind_of_error_has_a_fitting_status() -> None:
    assert set(HTTP_STATUS) == set(Kind)
    assert all(HTTPStatus(status) >= HTTPStatus.BAD_REQUEST for status in HTTP_STATUS.values())
    client_errors = {kind for kind, status in HTTP_STATUS.items() if status < HTTPStatus.INTERNAL_SERVER_ERROR}
    server_errors = {Kind.EXHAUSTED, Kind.UNAVAILABLE, Kind.DEADLINE, Kind.UNIMPLEMENTED, Kind.INTERNAL}
    assert client_errors == set(Kind) - server_errors


details = st.builds(Detail, reason=texts, file=texts, line=st.integers(0, 10**6), document=texts, path=texts)


@given(st.sampled_from(Kind), texts, texts, st.lists(details, max_size=3))
def test_an_error_survives_the_round_trip(kind: Kind, code: str, message: str, places: list[Detail]) -> None:
    sent = GovernorError(kind, code, message, places)
    arrived = error_of(msgspec.json.decode(msgspec.json.encode(problem(sent)), type=Problem))
    assert (arrived.kind, arrived.code, arrived.message) == (sent.kind, sent.code, sent.message)
    assert (arrived.details, str(arrived)) == (sent.details, str(sent))


def test_an_unknown_field_of_a_problem_is_ignored() -> None:
    assert msgspec.json.decode(
        b'{"type":"c","title":"m","status":400,"kind":"invalid","instance":"/x"}', type=Problem
    ) == Problem("c", "m", 400, Kind.INVALID)


# -- formats -------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STORE = ResourceRef("Component", "default", "store")
SEEN = Evidence("sidecar order-app", NOON, "loaded")
DELIVERY = Delivery(
    runtime="r1",
    sequence=7,
    attempt=2,
    revision=5,
    digest="sha256:0123",
    resources=(
        {
            "apiVersion": "dapr.io/v1alpha1",
            "kind": "Component",
            "metadata": {"name": "store", "namespace": "default"},
            "spec": {"type": "state.redis", "version": "v1", "metadata": [{"name": "redisHost", "value": "ä:6379"}]},
        },
    ),
    removals=(ResourceRef("Subscription", "default", "old"),),
    apply=ApplyPolicy(Preflight.OFF, Strategy.ROLLING, Unproven.REPORT, 30),
    incarnation="0a1b",
    id="2c3d",
    documents={"Runtime/r1": 1, "Profile/orders": 4},
)
HOLD = Hold(NOON, "inventory")
WINDOWS = (Window("22:00", 240, (Day.SAT, Day.SUN), "Europe/Berlin"), Window("12:00", 30))
RESTRAINED = msgspec.structs.replace(DELIVERY, windows=WINDOWS, hold=HOLD)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
APP = WorkloadRef("default", "Sidecar", "order-app")
REPORT = Report(
    runtime="r1",
    sequence=7,
    attempt=2,
    digest="sha256:0123",
    session=2**32 + 1,
    n=3,
    time=NOON,
    agent="runtime-governor/0.2.0",
    resources=(
        ResourceReport(
            resource=STORE,
            state=State.VERIFIED,
            workloads=(WorkloadFinding(workload=APP, state=State.VERIFIED, evidence=(SEEN,)),),
        ),
    ),
    workloads=(
        WorkloadReport(workload=APP, state=State.UNPROVEN, cause=Cause.RUNTIME, instances=Instances(3, 1, 0, 2)),
    ),
)
WAITING = msgspec.structs.replace(REPORT, restraint=hold_restraint(HOLD, NOON - timedelta(hours=1)))
REPORT_1 = Report1(
    runtime="r1",
    sequence=7,
    attempt=2,
    digest="sha256:0123",
    boot="b0",
    n=3,
    time=NOON,
    agent="runtime-governor/0.1.0",
    resources=(ResourceReport1(resource=STORE, state=State.VERIFIED, evidence=(SEEN,)),),
    workloads=(WorkloadReport1(workload="order-app", state=State.UNPROVEN),),
)
VERIFIED = Condition("Verified", Status.TRUE, "Verified", "all", digest="sha256:0123", since=NOON, evidence=(SEEN,))
SUMMARY = Summary("Verified,NotWatching", "NotWatching", "no watch", Actor.OPERATOR)
HELD = Condition("Changeable", Status.FALSE, "Held", "held", until=NOON)
HELD_SUMMARY = Summary("Held", "Held", "held", Actor.NOBODY, NOON)
DIFFERENCE = Difference("spec.metadata[redisHost].value", Operation.CHANGED, "a", "***")
TOKEN = rest.TokenView("t1", "ci", Role.EDITOR, None, NOON, None, revoked=False)

INVENTORY = Inventory(
    namespaces=("default",),
    workloads=(FoundWorkload(APP, ("order-app",), ("1.18.3",), 2),),
    resources=(
        FoundResource(STORE, managers=("kubectl-client-side-apply",), manifest=DELIVERY.resources[0]),
        FoundResource(ResourceRef("Component", "default", "owned"), "r1", ("governor-agent-r1",)),
    ),
    left_out=1,
)

FORMATS: dict[str, Any] = {
    "inventory": INVENTORY,
    "inventory-view": rest.InventoryView("r1", NOON, INVENTORY),
    "signed-delivery": sign_delivery(DELIVERY, KEY, 1),
    "signed-delivery-2": sign_delivery(DELIVERY, KEY, 2),
    "signed-delivery-3": sign_delivery(RESTRAINED, KEY, 3),
    "delivery-notice": rest.DeliveryNotice(7),
    "report": REPORT_1,
    "report-2": REPORT,
    "report-2-waiting": WAITING,
    "problem": problem(
        GovernorError(
            Kind.CONFLICT, "layers-conflict", "profiles disagree", [Detail("why", "f.yaml", 3, "Profile/a", "spec.x")]
        )
    ),
    "change-request": rest.ChangeRequest(
        documents=({"kind": "Runtime"},),
        deletions=(DocumentRef("Profile", "old"),),
        message="m",
        dry_run=True,
        allow_deletions=True,
        if_match={"Profile/old": 3},
    ),
    "change": Change(
        id="c1",
        state=ChangeState.ACCEPTED,
        author="admin",
        message="m",
        time=NOON,
        revision=5,
        documents=(DocumentChange(DocumentRef("Profile", "orders"), 1, 2, (DIFFERENCE,)),),
        runtimes=(RuntimeChange("r1", 7, "sha256:0123", (DIFFERENCE,)),),
        warnings=("w",),
        classes=(ClassChange("sha256:0123", 4, ("r1", "r2", "r3"), (DIFFERENCE,)),),
    ),
    "revision": Revision(5, "sha256:0123", 4, "admin", "m", NOON, (DocumentRef("Profile", "orders"),)),
    "revision-progress": rest.RevisionProgress(
        5, complete=False, runtimes=(rest.RuntimeProgress("r1", 7, SUMMARY, done=True, seconds=0.5),)
    ),
    "runtime-view": rest.RuntimeView(
        "r1", "local", {"region": "eu"}, 7, 2, 5, "sha256:0123", SUMMARY, (VERIFIED,), REPORT
    ),
    "runtime-view-held": rest.RuntimeView(
        "r1", "local", {}, 7, 2, 5, "sha256:0123", HELD_SUMMARY, (HELD,), None, WINDOWS, HOLD
    ),
    "document-view": rest.DocumentView("Profile", "orders", 2, 5, {"kind": "Profile"}),
    "token-request": rest.TokenRequest("ci", Role.EDITOR, None, 60),
    "token-created": rest.TokenCreated(TOKEN, "rgt1.text"),
    "enrol-request": rest.EnrolRequest("r1", "one-time", "key"),
    "enrol-request-platform": rest.EnrolRequest("r1", "one-time", "key", Platform.KUBERNETES),
    "enrolment": rest.Enrolment("r1", "0123", "key"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_unchanged(name: str) -> None:
    """Programs of other versions read and store these; change them only together with their format number."""
    golden = (GOLDEN / f"{name}.json").read_bytes()
    value = FORMATS[name]
    assert msgspec.json.decode(golden, type=type(value)) == value
    assert json.loads(msgspec.json.encode(value)) == json.loads(golden)


def test_every_golden_file_has_a_case() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*FORMATS, *DELIVERIES}


DELIVERIES = {
    "delivery": ("signed-delivery", "payload"),
    "delivery-2-head": ("signed-delivery-2", "payload"),
    "delivery-2-body": ("signed-delivery-2", "body"),
    "delivery-3-head": ("signed-delivery-3", "payload"),
    "delivery-3-body": ("signed-delivery-3", "body"),
}


@pytest.mark.parametrize("name", DELIVERIES)
def test_the_signed_texts_are_unchanged(name: str) -> None:
    envelope, field = DELIVERIES[name]
    assert json.loads(getattr(FORMATS[envelope], field)) == json.loads((GOLDEN / f"{name}.json").read_bytes())


def test_a_delivery_of_each_format_is_read() -> None:
    one, two = (
        open_delivery(
            msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=SignedDelivery), KEY.public_key()
        )
        for name in ("signed-delivery", "signed-delivery-2")
    )
    assert two == DELIVERY
    assert one == msgspec.structs.replace(DELIVERY, incarnation="", id="", documents={})


def test_a_report_of_each_format_is_told_apart_by_its_number() -> None:
    for name, expected in (("report", REPORT_1), ("report-2", REPORT)):
        assert msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=Report | Report1) == expected


def test_a_report_of_format_1_gets_the_session_of_its_watch() -> None:
    found = from_format_1(REPORT_1, 9)
    assert (found.session, found.n, found.digest) == (9, 3, "sha256:0123")
    assert found.workloads == (
        WorkloadReport(
            workload=WorkloadRef("", "Sidecar", "order-app"), state=State.UNPROVEN, instances=Instances(1, 0, 0, 1)
        ),
    )
    assert to_format_1(found, "b0") == REPORT_1


def test_a_report_for_format_1_keeps_the_evidence_of_its_workloads() -> None:
    expected = msgspec.structs.replace(REPORT_1, agent="runtime-governor/0.2.0")
    assert to_format_1(REPORT, "b0") == expected


@pytest.mark.parametrize("name", ["change-request", "token-request", "enrol-request"])
def test_an_unknown_field_of_a_request_is_rejected(name: str) -> None:
    body = {**json.loads((GOLDEN / f"{name}.json").read_bytes()), "later": True}
    with pytest.raises(msgspec.ValidationError, match="later"):
        msgspec.convert(body, type(FORMATS[name]), strict=False)


@pytest.mark.parametrize(
    "name",
    [
        "signed-delivery",
        "signed-delivery-2",
        "delivery-notice",
        "enrolment",
        "runtime-view",
        "change",
        "report",
        "report-2",
    ],
)
def test_an_unknown_field_of_a_response_or_report_is_ignored(name: str) -> None:
    body = with_unknown_fields(json.loads((GOLDEN / f"{name}.json").read_bytes()))
    assert msgspec.json.decode(json.dumps(body), type=type(FORMATS[name])) == FORMATS[name]


def with_unknown_fields(value: Any) -> Any:
    """Add a field to every object, except to maps whose keys are data."""
    if isinstance(value, list):
        return [with_unknown_fields(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: each if name == "labels" else with_unknown_fields(each) for name, each in value.items()} | {
        "later": True
    }


def test_another_format_number_of_a_report_is_rejected() -> None:
    body = json.loads((GOLDEN / "report-2.json").read_bytes())
    with pytest.raises(msgspec.ValidationError, match="format"):
        msgspec.json.decode(json.dumps({**body, "format": 3}), type=Report | Report1)
