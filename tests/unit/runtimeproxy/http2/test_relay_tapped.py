"""A tapped relay emits events for every stream, others only for held messages and closed streams."""

from governor.runtimeproxy.http2.events import (
    RelayEvent,
    RequestData,
    RequestHeld,
    ResponseHeld,
    StreamClosed,
    StreamOpened,
)
from tests.unit.runtimeproxy.http2.bed import HOOKED, OK, PLAIN, Bed, answer_all, request_fields


def emitted(bed: Bed) -> list[type[RelayEvent]]:
    return [
        type(event)
        for event in bed.events
        if isinstance(event, StreamOpened | RequestData | RequestHeld | ResponseHeld | StreamClosed)
    ]


def test_a_tapped_relay_reports_a_stream_and_its_request_data() -> None:
    bed = Bed()
    bed.relay.tapped = True
    answer_all(bed.runtime, b"the answer")
    bed.caller.open(request_fields(PLAIN), b"the request")
    bed.settle()
    opened, data, closed = (
        event for event in bed.events if isinstance(event, StreamOpened | RequestData | StreamClosed)
    )
    assert isinstance(opened, StreamOpened)
    assert (opened.path, opened.fields) == (PLAIN, request_fields(PLAIN))
    assert isinstance(data, RequestData)
    assert data.data == b"the request"
    assert isinstance(closed, StreamClosed)
    assert {opened.stream_id, data.stream_id, closed.stream_id} == {1}
    bed.check_balanced()


def test_a_held_request_is_reported_once() -> None:
    bed = Bed()
    bed.relay.tapped = True
    bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    assert emitted(bed) == [StreamOpened, RequestHeld]


def test_an_untapped_relay_reports_only_closed_streams() -> None:
    bed = Bed()
    answer_all(bed.runtime, b"the answer")
    call = bed.caller.open(request_fields(PLAIN), b"the request")
    bed.settle()
    assert call.trailers == OK
    assert emitted(bed) == [StreamClosed]
