"""A relay that is watched tells of every stream; one that is not tells only of what concerns hooks."""

from governor.runtimeproxy.http2.events import (
    RelayEvent,
    RequestData,
    RequestHeld,
    ResponseHeld,
    StreamClosed,
    StreamOpened,
)
from tests.unit.runtimeproxy.http2.bed import HOOKED, OK, PLAIN, Bed, answer_all, request_fields


def told(bed: Bed) -> list[type[RelayEvent]]:
    return [
        type(event)
        for event in bed.events
        if isinstance(event, StreamOpened | RequestData | RequestHeld | ResponseHeld | StreamClosed)
    ]


def test_a_stream_is_announced_with_what_is_said_on_it() -> None:
    bed = Bed()
    bed.relay.tapped = True
    answer_all(bed.runtime, b"the answer")
    bed.caller.open(request_fields(PLAIN), b"the request")
    bed.settle()
    opened, said, ended = (
        event for event in bed.events if isinstance(event, StreamOpened | RequestData | StreamClosed)
    )
    assert isinstance(opened, StreamOpened)
    assert (opened.path, opened.fields) == (PLAIN, request_fields(PLAIN))
    assert isinstance(said, RequestData)
    assert said.data == b"the request"
    assert isinstance(ended, StreamClosed)
    assert {opened.stream_id, said.stream_id, ended.stream_id} == {1}
    bed.check_balanced()


def test_what_is_held_is_said_once() -> None:
    bed = Bed()
    bed.relay.tapped = True
    bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    assert told(bed) == [StreamOpened, RequestHeld]


def test_nothing_is_told_while_nobody_watches() -> None:
    bed = Bed()
    answer_all(bed.runtime, b"the answer")
    call = bed.caller.open(request_fields(PLAIN), b"the request")
    bed.settle()
    assert call.trailers == OK
    assert told(bed) == [StreamClosed]
