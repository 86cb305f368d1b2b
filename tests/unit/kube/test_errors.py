"""Error responses of API servers as the product's errors."""

import datetime
import json

import pytest

from governor.errors import Kind
from governor.kube.errors import NO_API, ApiError, Status, parse_status, retry_after_s

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)


def status(**fields: object) -> bytes:
    return json.dumps({"kind": "Status", "apiVersion": "v1", "status": "Failure", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Kind.INVALID),
        (401, "Unauthorized", Kind.UNAUTHENTICATED),
        (403, "Forbidden", Kind.DENIED),
        (404, "NotFound", Kind.NOT_FOUND),
        (405, "MethodNotAllowed", Kind.UNIMPLEMENTED),
        (409, "AlreadyExists", Kind.EXISTS),
        (409, "Conflict", Kind.CONFLICT),
        (410, "Expired", Kind.PRECONDITION),
        (418, "", Kind.INVALID),
        (422, "Invalid", Kind.INVALID),
        (429, "TooManyRequests", Kind.EXHAUSTED),
        (500, "InternalError", Kind.INTERNAL),
        (503, "ServiceUnavailable", Kind.UNAVAILABLE),
        (504, "Timeout", Kind.DEADLINE),
        (599, "", Kind.UNAVAILABLE),
    ],
)
def test_each_status_has_a_kind(code: int, reason: str, kind: Kind) -> None:
    assert ApiError("GET /x", code, Status(reason=reason, kind="Status")).kind is kind


@pytest.mark.parametrize(
    "body", [b"404 page not found", b"<html>no such backend</html>", b"", b'{"message":"no Route"}']
)
def test_a_404_without_a_status_does_not_mean_that_the_object_is_missing(body: bytes) -> None:
    error = ApiError("GET /x", 404, parse_status(body))
    assert (error.kind, error.code, error.status) == (Kind.UNAVAILABLE, NO_API, 404)
    assert "kind is not served" in str(error)


def test_causes_become_details_at_their_fields() -> None:
    causes = [{"reason": "FieldValueInvalid", "message": "must be set", "field": "spec.replicas"}]
    error = ApiError("PATCH /x", 422, parse_status(status(message="bad", details={"causes": causes})))
    assert [(detail.path, detail.reason) for detail in error.details] == [("spec.replicas", "must be set")]
    assert error.causes[0].reason == "FieldValueInvalid"


def test_a_status_with_nulls_is_still_a_status() -> None:
    parsed = parse_status(status(message="no", reason="Forbidden", details={"causes": None}))
    assert (parsed.from_server, parsed.reason) == (True, "Forbidden")
    assert ApiError("GET /x", 403, parsed).causes == ()


def test_a_proxys_error_page_is_detected_and_quoted_without_markup() -> None:
    page = b"<html><head><style>body{color:red}</style><title>502 Bad Gateway</title></head><body>nginx\x07</body>"
    parsed = parse_status(page)
    assert not parsed.from_server
    assert (
        parsed.message
        == "the response seems to come from a proxy or load balancer in front of the API server: 502 Bad Gateway nginx"
    )


@pytest.mark.parametrize("body", [b"", b"   ", b"\xff\xfe", b"[]", b"null", b'{"error": "no"}', b"{"])
def test_a_body_that_is_not_a_status_makes_a_readable_message(body: bytes) -> None:
    error = ApiError("GET /x", 502, parse_status(body))
    assert "proxy or load balancer in front of the API server" in error.message
    assert not error.from_server


def test_a_long_error_page_is_truncated() -> None:
    assert len(parse_status(b"x" * 100_000).message) < 400


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        ("7", Status(), 7.0),
        ("0", Status(), 0.0),
        ("", Status(), None),
        ("soon", Status(), None),
        ("-3", Status(), None),
        ("99999999999999999999", Status(), 3600.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", Status(), 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", Status(), 0.0),
    ],
)
def test_the_wait_is_read_from_the_retry_after_header(header: str, body: Status, expected: float | None) -> None:
    assert retry_after_s(header, body, NOW) == expected


def test_the_wait_is_read_from_the_status_without_a_header() -> None:
    parsed = parse_status(status(details={"retryAfterSeconds": 3}))
    assert retry_after_s("", parsed, NOW) == 3.0
    assert retry_after_s("1", parsed, NOW) == 1.0


def test_the_message_contains_the_requested_wait() -> None:
    assert "retry after 60 s" in str(ApiError("GET /x", 429, Status(message="slow down"), 60.0))


def test_a_long_message_is_truncated() -> None:
    assert len(str(ApiError("GET /x", 500, parse_status(status(message="x" * 1_000_000))))) < 5000
