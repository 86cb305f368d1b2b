"""Bodies of the API: errors survive a round trip, and stored or sent formats do not change."""

import json
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.bundles import Delivery
from governor.domain.changes import Change, ChangeState, DocumentChange, Revision, RuntimeChange
from governor.domain.conditions import Actor, Condition, Status, Summary
from governor.domain.documents import ApplyPolicy, DocumentRef, Preflight, ResourceRef, Strategy, Unproven
from governor.domain.reports import Evidence, Report, ResourceReport, State, WorkloadReport
from governor.domain.roles import Role
from governor.errors import Detail, GovernorError, Kind
from governor.values.treediff import Difference, Operation
from governor.wire import rest
from governor.wire.credentials import sign_delivery
from governor.wire.problems import HTTP_STATUS, Problem, error_of, problem
from governor.wire.rest import delivery_payload
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
)
REPORT = Report(
    runtime="r1",
    sequence=7,
    attempt=2,
    digest="sha256:0123",
    boot="b0",
    n=3,
    time=NOON,
    agent="runtime-governor/0.1.0",
    resources=(ResourceReport(resource=STORE, state=State.VERIFIED, evidence=(SEEN,)),),
    workloads=(WorkloadReport(workload="order-app", state=State.UNPROVEN),),
)
VERIFIED = Condition("Verified", Status.TRUE, "Verified", "all", digest="sha256:0123", since=NOON, evidence=(SEEN,))
SUMMARY = Summary("Verified,NotWatching", "NotWatching", "no watch", Actor.OPERATOR)
DIFFERENCE = Difference("spec.metadata[redisHost].value", Operation.CHANGED, "a", "***")
TOKEN = rest.TokenView("t1", "ci", Role.EDITOR, None, NOON, None, revoked=False)

FORMATS: dict[str, Any] = {
    "delivery": DELIVERY,
    "signed-delivery": sign_delivery(DELIVERY, Ed25519PrivateKey.from_private_bytes(bytes(32))),
    "delivery-notice": rest.DeliveryNotice(7),
    "report": REPORT,
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
    ),
    "revision": Revision(5, "sha256:0123", 4, "admin", "m", NOON, (DocumentRef("Profile", "orders"),)),
    "revision-progress": rest.RevisionProgress(
        5, complete=False, runtimes=(rest.RuntimeProgress("r1", 7, SUMMARY, done=True, seconds=0.5),)
    ),
    "runtime-view": rest.RuntimeView(
        "r1", "local", {"region": "eu"}, 7, 2, 5, "sha256:0123", SUMMARY, (VERIFIED,), REPORT
    ),
    "document-view": rest.DocumentView("Profile", "orders", 2, 5, {"kind": "Profile"}),
    "token-request": rest.TokenRequest("ci", Role.EDITOR, None, 60),
    "token-created": rest.TokenCreated(TOKEN, "rgt1.text"),
    "enrol-request": rest.EnrolRequest("r1", "one-time", "key"),
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
    assert {path.stem for path in GOLDEN.iterdir()} == set(FORMATS)


def test_the_signed_text_of_a_delivery_is_sorted_and_compact() -> None:
    text = delivery_payload(DELIVERY)
    compact = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert text == compact == FORMATS["signed-delivery"].payload


def test_the_order_of_keys_does_not_change_the_signed_text() -> None:
    reordered = tuple(dict(reversed(manifest.items())) for manifest in DELIVERY.resources)
    assert delivery_payload(msgspec.structs.replace(DELIVERY, resources=reordered)) == delivery_payload(DELIVERY)


@pytest.mark.parametrize("name", ["change-request", "token-request", "enrol-request", "delivery"])
def test_an_unknown_field_of_a_request_is_rejected(name: str) -> None:
    body = {**json.loads((GOLDEN / f"{name}.json").read_bytes()), "later": True}
    with pytest.raises(msgspec.ValidationError, match="later"):
        msgspec.convert(body, type(FORMATS[name]), strict=False)


@pytest.mark.parametrize(
    "name", ["signed-delivery", "delivery-notice", "enrolment", "runtime-view", "change", "report"]
)
def test_an_unknown_field_of_a_response_is_ignored(name: str) -> None:
    body = {**json.loads((GOLDEN / f"{name}.json").read_bytes()), "later": True}
    assert msgspec.json.decode(json.dumps(body), type=type(FORMATS[name])) == FORMATS[name]


@pytest.mark.parametrize("name", ["delivery", "report"])
def test_another_format_number_is_rejected(name: str) -> None:
    body = json.loads((GOLDEN / f"{name}.json").read_bytes())
    assert body["format"] == 1
    with pytest.raises(msgspec.ValidationError, match="format"):
        msgspec.json.decode(json.dumps({**body, "format": 2}), type=type(FORMATS[name]))
