"""What is owed while streams are open: nothing, once all that was read has been passed on or held."""

import random

import pytest

from governor.runtimeproxy.http2.streams import Side
from tests.unit.runtimeproxy.http2.bed import ANSWER, HOOKED, PLAIN, Bed, request_fields


def check_nothing_is_owed(bed: Bed, streams: int) -> None:
    """Streams are open at both peers, and each may send on them and on the connection what it could at first."""
    endpoints = {Side.CLIENT: bed.caller, Side.RUNTIME: bed.runtime}
    for side, ledger in bed.relay.ledgers().items():
        assert len(ledger.flows) == streams
        assert ledger.outstanding == 0
        assert ledger.whole
        for stream, flow in ledger.flows.items():
            told = endpoints[side].connection.local_flow_control_window(stream)
            assert min(flow.receive, ledger.receive) == told


@pytest.mark.parametrize("padded", [False, True])
def test_an_open_stream_owes_nothing_for_what_was_passed_on(padded: bool) -> None:
    bed = Bed(chance=random.Random(1))
    bed.caller.padded = bed.runtime.padded = padded
    bed.runtime.on_request = lambda message: bed.runtime.send(message, ANSWER, bytes(300_000), ends=False)
    calls = [bed.caller.open(request_fields(PLAIN), bytes(200_000), ends=False) for _ in range(2)]
    bed.settle()
    assert [len(call.body) for call in calls] == [300_000, 300_000]
    assert [len(message.body) for message in bed.runtime.messages.values()] == [200_000, 200_000]
    check_nothing_is_owed(bed, 2)


@pytest.mark.parametrize("padded", [False, True])
def test_a_request_that_is_held_and_not_complete_owes_nothing(padded: bool) -> None:
    bed = Bed(chance=random.Random(1))
    bed.caller.padded = padded
    bed.caller.open(request_fields(HOOKED), bytes(300_000), ends=False)
    bed.settle()
    assert bed.relay.held_bytes == 300_000
    ledger = bed.relay.ledgers()[Side.CLIENT]
    assert ledger.outstanding == 0
    assert ledger.whole
