"""The flow-control accounts, held against a model that knows only what both peers said."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.flow_control import DEFAULT_WINDOW, LARGEST_WINDOW, FlowControl

STREAMS = st.sampled_from((1, 3, 5))
SIZES = st.one_of(st.integers(0, 20), st.integers(0, 70_000))


class TwoLedgers(RuleBasedStateMachine):
    """A sender's ledger and a receiver's, with settings and credit under way between them.

    The receiver's answer to DATA, SETTINGS and acknowledgements travel in order, in queues that a rule moves on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sender = FlowControl(connection_window=0, stream_window=0)
        self.receiver = FlowControl(connection_window=100_000, stream_window=20_000)
        self.to_receiver: list[tuple[str, int, int]] = []
        self.to_sender: list[tuple[str, int, int]] = [("settings", 0, 20_000)]
        self.unread: dict[int, int] = {}
        opening = self.receiver.take_opening()
        self.to_sender.append(("credit", 0, opening))

    @rule(stream=STREAMS)
    def open(self, stream: int) -> None:
        if stream not in self.sender.flows and stream not in self.receiver.flows:
            self.sender.open(stream)
            self.receiver.open(stream)
            self.unread[stream] = 0

    @precondition(lambda self: self.sender.flows)
    @rule(stream=STREAMS, size=SIZES)
    def send(self, stream: int, size: int) -> None:
        flow = self.sender.flows.get(stream)
        if flow is None:
            return
        size = min(size, max(self.sender.allowance(flow), 0))
        self.sender.spend(flow, size)
        assert self.sender.send >= 0
        self.to_receiver.append(("data", stream, size))

    @precondition(lambda self: self.to_receiver)
    @rule()
    def arrive(self) -> None:
        what, stream, size = self.to_receiver.pop(0)
        if what == "ack":
            self.receiver.agree()
            return
        self.receiver.receive_bytes(size)
        self._credit(0, self.receiver.take_credit())
        flow = self.receiver.flows.get(stream)
        if flow is not None:
            self.receiver.receive_on(flow, size)
            self.unread[stream] += size

    @rule(stream=STREAMS, part=st.floats(0, 1))
    def pass_on(self, stream: int, part: float) -> None:
        flow = self.receiver.flows.get(stream)
        if flow is None:
            return
        size = int(self.unread[stream] * part)
        self.unread[stream] -= size
        self.receiver.pass_on(flow, size)
        self._credit(stream, self.receiver.take_stream_credit(flow))

    def _credit(self, stream: int, credit: int) -> None:
        if credit:
            self.to_sender.append(("credit", stream, credit))

    @precondition(lambda self: self.to_sender)
    @rule()
    def hear(self) -> None:
        what, stream, value = self.to_sender.pop(0)
        if what == "settings":
            self.sender.restart(value)
            self.to_receiver.append(("ack", 0, 0))
        elif stream:
            self.sender.grant_stream(stream, value)
        else:
            self.sender.grant(value)

    @rule(stream=STREAMS)
    def close_at_receiver(self, stream: int) -> None:
        self.receiver.close(stream)
        self.unread.pop(stream, None)

    @rule(stream=STREAMS)
    def close_at_sender(self, stream: int) -> None:
        if not any(waits == stream for _, waits, _ in self.to_receiver):
            self.sender.close(stream)
            self.close_at_receiver(stream)

    @invariant()
    def nothing_is_granted_twice_or_lost(self) -> None:
        under_way = sum(size for _, _, size in self.to_receiver)
        granted = sum(size for what, stream, size in self.to_sender if what == "credit" and not stream)
        assert self.sender.send + under_way + granted == self.receiver.receive
        assert self.receiver.receive + self.receiver.due == 100_000
        assert self.receiver.outstanding == sum(self.unread.values())
        for stream, flow in self.receiver.flows.items():
            assert flow.unread == self.unread[stream]

    def teardown(self) -> None:
        """When all arrived and was passed on, every window is whole again."""
        while self.to_receiver or self.to_sender:
            while self.to_sender:
                self.hear()
            while self.to_receiver:
                self.arrive()
        for stream in list(self.receiver.flows):
            self.pass_on(stream, 1.0)
        assert self.receiver.whole
        for stream, flow in self.receiver.flows.items():
            credit = sum(size for _, waits, size in self.to_sender if waits == stream)
            assert self.sender.flows[stream].send + credit == flow.receive


TestTwoLedgers = TwoLedgers.TestCase
TestTwoLedgers.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.fixture
def ledger() -> FlowControl:
    ledger = FlowControl(connection_window=DEFAULT_WINDOW, stream_window=1000)
    ledger.agree()
    return ledger


def test_settings_can_make_a_stream_window_negative_and_credit_mends_it(ledger: FlowControl) -> None:
    flow = ledger.open(1)
    ledger.spend(flow, 60_000)
    ledger.restart(10_000)
    assert ledger.allowance(flow) == 10_000 - 60_000
    ledger.grant_stream(1, 50_001)
    assert ledger.allowance(flow) == 1


def test_settings_do_not_change_the_connection_window(ledger: FlowControl) -> None:
    ledger.restart(5)
    assert ledger.send == DEFAULT_WINDOW


def test_the_smaller_of_both_windows_counts(ledger: FlowControl) -> None:
    first, second = ledger.open(1), ledger.open(3)
    ledger.spend(first, 65_000)
    assert (ledger.allowance(first), ledger.allowance(second)) == (535, 535)
    ledger.grant(10)
    assert (ledger.allowance(first), ledger.allowance(second)) == (535, 545)


def test_a_window_beyond_the_largest_is_a_fault_of_the_stream_or_of_the_connection(ledger: FlowControl) -> None:
    ledger.open(1)
    with pytest.raises(Http2StreamError) as of_stream:
        ledger.grant_stream(1, LARGEST_WINDOW)
    with pytest.raises(Http2ConnectionError) as of_connection:
        ledger.grant(LARGEST_WINDOW)
    assert of_stream.value.code is of_connection.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_settings_that_open_a_window_beyond_the_largest_are_a_fault(ledger: FlowControl) -> None:
    ledger.open(1)
    ledger.grant_stream(1, 1)
    with pytest.raises(Http2ConnectionError) as caught:
        ledger.restart(LARGEST_WINDOW)
    assert caught.value.code is ErrorCode.FLOW_CONTROL_ERROR
    with pytest.raises(Http2ConnectionError):
        ledger.restart(LARGEST_WINDOW + 1)


def test_credit_of_nothing_is_a_fault(ledger: FlowControl) -> None:
    with pytest.raises(Http2ConnectionError):
        ledger.grant(0)
    with pytest.raises(Http2StreamError):
        ledger.grant_stream(1, 0)


def test_more_than_was_granted_is_a_fault(ledger: FlowControl) -> None:
    flow = ledger.open(1)
    ledger.receive_on(flow, 1000)
    with pytest.raises(Http2ConnectionError) as of_stream:
        ledger.receive_on(flow, 1)
    with pytest.raises(Http2ConnectionError) as of_connection:
        ledger.receive_bytes(DEFAULT_WINDOW + 1)
    assert of_stream.value.code is of_connection.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_nothing_at_all_is_always_allowed(ledger: FlowControl) -> None:
    flow = ledger.open(1)
    ledger.receive_on(flow, 1000)
    ledger.receive_on(flow, 0)
    assert flow.receive == 0


def test_credit_is_given_in_batches_of_half_a_window(ledger: FlowControl) -> None:
    flow = ledger.open(1)
    ledger.receive_on(flow, 1000)
    ledger.pass_on(flow, 499)
    assert ledger.take_stream_credit(flow) == 0
    ledger.pass_on(flow, 1)
    assert ledger.take_stream_credit(flow) == 500
    assert ledger.take_stream_credit(flow) == 0
    assert (flow.receive, flow.unread) == (500, 500)


def test_a_stream_that_is_over_owes_nothing(ledger: FlowControl) -> None:
    ledger.receive_on(ledger.open(1), 700)
    assert ledger.outstanding == 700
    ledger.close(1)
    ledger.grant_stream(1, 5)
    assert ledger.outstanding == 0
    assert ledger.whole


def test_an_empty_frame_needs_no_window() -> None:
    ledger = FlowControl(connection_window=65_535, stream_window=100)
    flow = ledger.open(1)
    ledger.receive_on(flow, 60_000)
    ledger.agree()
    assert flow.receive < 0
    ledger.receive_on(flow, 0)
    with pytest.raises(Http2ConnectionError, match="stream's window"):
        ledger.receive_on(flow, 1)
