"""Heads of HTTP/1.1: what is accepted, what is refused, and what dockerd gets of a held request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.docker.bodies import Chunked, NoBody, Sized, UntilClose
from governor.runtimeproxy.docker.heads import MAX_HEAD_BYTES, head_length, request_head, response_head

REQUEST = b"POST /v1.41/containers/create?name=a HTTP/1.1\r\nHost: docker\r\nX-A: 1\r\n\r\n"


def with_fields(*lines: bytes, first: bytes = b"POST /build HTTP/1.1") -> bytes:
    """Return a head with these field lines."""
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n"


def test_a_head_is_parsed_and_keeps_its_bytes() -> None:
    head = request_head(with_fields(b"CONNECTION:  keep-alive, Upgrade ", b"upgrade: tcp", b"X: \xff"))

    assert (head.method, head.target, head.minor) == ("POST", b"/build", 1)
    assert head.fields == ((b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"tcp"), (b"x", b"\xff"))
    assert (head.upgrades, head.closes, head.expects_continue) == (True, False, False)


@pytest.mark.parametrize(
    ("lines", "kind", "size"),
    [
        ([], NoBody, 0),
        ([b"Content-Length: 7"], Sized, 7),
        ([b"Content-Length: 7", b"content-length: 7"], Sized, 7),
        ([b"Transfer-Encoding: CHUNKED"], Chunked, None),
    ],
)
def test_the_framing_of_a_request(lines: list[bytes], kind: type, size: int | None) -> None:
    body = request_head(with_fields(*lines)).body()

    assert (type(body), body.size) == (kind, size)


@pytest.mark.parametrize(
    ("first", "lines", "method", "kind"),
    [
        (b"HTTP/1.1 200 OK", [b"Content-Length: 7"], "GET", Sized),
        (b"HTTP/1.1 200 OK", [b"Content-Length: 7"], "HEAD", NoBody),
        (b"HTTP/1.1 200", [b"Transfer-Encoding: chunked"], "GET", Chunked),
        (b"HTTP/1.1 204 No Content", [], "POST", NoBody),
        (b"HTTP/1.1 304 Not Modified", [b"Content-Length: 7"], "POST", NoBody),
        (b"HTTP/1.1 200 OK", [], "POST", UntilClose),
        (b"HTTP/1.1 101 UPGRADED", [], "POST", UntilClose),
        (b"HTTP/1.1 100 Continue", [], "POST", NoBody),
    ],
)
def test_the_framing_of_a_response(first: bytes, lines: list[bytes], method: str, kind: type) -> None:
    assert type(response_head(with_fields(*lines, first=first)).body(method)) is kind


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"Host: d"], False),
        ([b"Connection: close"], True),
        ([b"Connection: keep-alive, Close"], True),
    ],
)
def test_a_connection_ends_when_the_head_says_so(lines: list[bytes], expected: bool) -> None:
    assert request_head(with_fields(*lines)).closes is expected
    assert request_head(with_fields(*lines, first=b"GET / HTTP/1.0")).closes


def test_a_held_request_keeps_all_fields_but_those_of_its_framing() -> None:
    given_lines = [b"hOST: d", b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"X-Y:  z "]
    head = request_head(with_fields(*given_lines))

    assert head.with_body(5) == with_fields(b"hOST: d", b"X-Y:  z ", b"Content-Length: 5")
    assert request_head(REQUEST).with_body(None) == REQUEST


@given(cut=st.integers(0, len(REQUEST)), rest=st.binary(max_size=50))
def test_a_head_is_found_only_when_it_is_whole(cut: int, rest: bytes) -> None:
    assert head_length(REQUEST[:cut]) == (len(REQUEST) if cut == len(REQUEST) else 0)
    assert head_length(REQUEST + rest) == len(REQUEST)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_wait_or_have_one_meaning(data: bytes) -> None:
    try:
        length = head_length(data)
        head = request_head(data[:length]) if length else None
    except GovernorError:
        return
    assert data.count(b"\n", 0, length) == data.count(b"\r\n", 0, length)
    assert head is None or head.raw == data[:length]


@given(
    names=st.lists(st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"content-length", b"X"]), max_size=4),
    values=st.lists(
        st.sampled_from([b"3", b"4", b"chunked", b"identity", b"", b"3,3", b"0x3"]), min_size=4, max_size=4
    ),
)
def test_an_accepted_head_has_one_framing(names: list[bytes], values: list[bytes]) -> None:
    lines = [b"%s: %s" % pair for pair in zip(names, values, strict=False)]
    try:
        head = request_head(with_fields(*lines))
    except GovernorError:
        return

    lengths, codings = head.values(b"content-length"), head.values(b"transfer-encoding")
    assert not (lengths and codings)
    assert len(set(lengths)) <= 1
    assert codings in ([], [b"chunked"])


def test_a_head_that_never_ends_is_refused() -> None:
    with pytest.raises(GovernorError, match="longer than") as raised:
        head_length(b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES)

    assert raised.value.kind is Kind.EXHAUSTED
