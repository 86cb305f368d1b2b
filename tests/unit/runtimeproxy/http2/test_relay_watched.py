"""A relay that is watched tells of every stream; one that is not tells only of what concerns hooks."""

from governor.runtimeproxy.http2.events import Ended, Event, Opened, Requested, Responded, Said
from tests.unit.runtimeproxy.http2.bed import HOOKED, OK, PLAIN, Bed, answer_all, request_fields


def told(bed: Bed) -> list[type[Event]]:
    return [type(event) for event in bed.events if isinstance(event, Opened | Said | Requested | Responded | Ended)]


def test_a_stream_is_announced_with_what_is_said_on_it() -> None:
    bed = Bed()
    bed.relay.watched = True
    answer_all(bed.runtime, b"the answer")
    bed.caller.open(request_fields(PLAIN), b"the request")
    bed.settle()
    opened, said, ended = (event for event in bed.events if isinstance(event, Opened | Said | Ended))
    assert isinstance(opened, Opened)
    assert (opened.path, opened.fields) == (PLAIN, request_fields(PLAIN))
    assert isinstance(said, Said)
    assert said.data == b"the request"
    assert isinstance(ended, Ended)
    assert {opened.stream, said.stream, ended.stream} == {1}
    bed.check_balanced()


def test_what_is_held_is_said_once() -> None:
    bed = Bed()
    bed.relay.watched = True
    bed.caller.open(request_fields(HOOKED), b"held")
    bed.settle()
    assert told(bed) == [Opened, Requested]


def test_nothing_is_told_while_nobody_watches() -> None:
    bed = Bed()
    answer_all(bed.runtime, b"the answer")
    call = bed.caller.open(request_fields(PLAIN), b"the request")
    bed.settle()
    assert call.trailers == OK
    assert told(bed) == [Ended]
