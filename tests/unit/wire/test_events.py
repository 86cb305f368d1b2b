"""Server-sent events: encoding and parsing, however the bytes are split into chunks."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.wire import events
from governor.wire.events import KEEPALIVE, Event, Parser, encode, with_spread

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), min_size=1, max_size=6)
data = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\r\n: "), max_size=12)
some_events = st.lists(st.builds(Event, words, data, words), max_size=4)
cuts = st.lists(st.integers(0, 200), max_size=8)


def chunks(text: bytes, places: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return (text[start:end] for start, end in itertools.pairwise(edges))


def parsed(pieces: Iterator[bytes]) -> list[Event]:
    parser = Parser()
    return [event for piece in pieces for event in parser.feed(piece)]


def with_plain_breaks(event: Event) -> Event:
    """Return the event as it is received: the format does not preserve the kind of line break."""
    return Event(event.event, event.data.replace("\r\n", "\n").replace("\r", "\n"), event.id)


@given(some_events, cuts, st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_encoded_events_are_parsed_in_any_chunks(sent: list[Event], places: list[int], line_end: bytes) -> None:
    text = b"".join(encode(event) + KEEPALIVE for event in sent).replace(b"\n", line_end)
    # A carriage return at the very end may be half of a line break; the next byte decides.
    assert parsed(chunks(text + b":", places)) == [with_plain_breaks(event) for event in sent]


@given(some_events)
def test_events_are_parsed_byte_by_byte(sent: list[Event]) -> None:
    text = b"".join(map(encode, sent))
    assert parsed(text[i : i + 1] for i in range(len(text))) == [with_plain_breaks(event) for event in sent]


@given(st.binary(max_size=60), cuts)
def test_garbage_yields_the_same_events_however_it_is_split(garbage: bytes, places: list[int]) -> None:
    assert parsed(chunks(garbage + b"\n:", places)) == parsed(iter([garbage + b"\n:"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"data: a\n\n", [Event("message", "a")]),
        (b"data:a\n\n", [Event("message", "a")]),
        (b"data:  a\n\n", [Event("message", " a")]),
        (b"data\n\n", [Event("message", "")]),
        (b"data: a\ndata\ndata: b\n\n", [Event("message", "a\n\nb")]),
        (b"event: x\n\n", []),
        (b"event: x\n\ndata: a\n\n", [Event("message", "a")]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [Event("message", "a", "1"), Event("message", "b", "1")]),
        (b"id: 1\ndata: a\n\nid\ndata: b\n\n", [Event("message", "a", "1"), Event("message", "b")]),
        (b": comment\ndata: a\n: more\n\n", [Event("message", "a")]),
        (b"retry: 5\nunknown: x\ndata: a\n\n", [Event("message", "a")]),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"\n\n\n", []),
        (KEEPALIVE, []),
        ("data: ä\u2028\u0085ß\n\n".encode(), [Event("message", "ä\u2028\u0085ß")]),
        (b"data: \xff\n\n", [Event("message", "\ufffd")]),
    ],
)
def test_the_format_is_parsed_as_the_standard_defines(text: bytes, expected: list[Event]) -> None:
    assert parsed(iter([text])) == expected


def test_a_carriage_return_at_the_end_of_a_chunk_waits_for_the_next_byte() -> None:
    parser = Parser()
    assert parser.feed(b"data: a\r\r") == []
    assert parser.feed(b"d") == [Event("message", "a")]
    assert parser.feed(b"ata: b\r") == []
    assert parser.feed(b"\n") == []
    assert parser.feed(b"\r\n") == [Event("message", "b")]


def test_an_event_is_encoded_as_lines() -> None:
    assert encode(Event("delivery", "a\nb", "7")) == b"event: delivery\nid: 7\ndata: a\ndata: b\n\n"
    assert encode(Event("progress", "")) == b"event: progress\ndata: \n\n"


@pytest.mark.parametrize("line", [b"data: " + b"x" * 20, b"data: x\n" * 4, b"event: " + b"x" * 20])
def test_an_event_beyond_the_limit_is_rejected(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 20)
    parser = Parser()
    assert parser.feed(b"data: fits\n\n") == [Event("message", "fits")]
    with pytest.raises(GovernorError) as caught:
        [parser.feed(bytes([byte])) for byte in line]
    assert (caught.value.kind, caught.value.code) == (Kind.EXHAUSTED, "event-too-large")


@pytest.mark.parametrize(
    ("text", "spread_s"),
    [
        (with_spread(KEEPALIVE, 2.5), 2.5),
        (with_spread(KEEPALIVE, 0), 0.0),
        (b"retry: 4000\nretry: x\n\n", 4.0),
        (b"retry: 99999999999\n\n", 60.0),
        (with_spread(KEEPALIVE, 2.5) + b"retry: 0\n\n", 0.0),
    ],
)
def test_the_last_requested_spread_of_reconnects_counts_and_is_bounded(text: bytes, spread_s: float) -> None:
    parser = Parser()
    assert parser.feed(text) == []
    assert parser.spread_s == spread_s
