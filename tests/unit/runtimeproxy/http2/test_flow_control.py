"""Flow control, checked against a model of what both peers sent."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from governor.runtimeproxy.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from governor.runtimeproxy.http2.flow_control import DEFAULT_WINDOW, MAX_WINDOW, FlowControl, StreamWindows

STREAMS = st.sampled_from((1, 3, 5))
SIZES = st.one_of(st.integers(0, 20), st.integers(0, 70_000))


def sendable(flow_control: FlowControl, windows: StreamWindows) -> int:
    """Return how many bytes of DATA a peer may send, as the writer of a connection computes it."""
    return min(flow_control.send_window, windows.send_window)


def send(flow_control: FlowControl, windows: StreamWindows, size: int) -> None:
    flow_control.send_window -= size
    windows.send_window -= size


class SenderAndReceiver(RuleBasedStateMachine):
    """The flow control of a sender and a receiver, with SETTINGS, DATA and credit in flight.

    The receiver's answer to DATA, SETTINGS and acknowledgements travel in order, in queues that a rule moves on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sender = FlowControl(connection_window=0, stream_window=0)
        self.receiver = FlowControl(connection_window=100_000, stream_window=20_000)
        self.to_receiver: list[tuple[str, int, int]] = []
        self.to_sender: list[tuple[str, int, int]] = [("settings", 0, 20_000)]
        self.unread: dict[int, int] = {}
        opening = self.receiver.take_initial_credit()
        self.to_sender.append(("credit", 0, opening))

    @rule(stream=STREAMS)
    def open(self, stream: int) -> None:
        if stream not in self.sender.streams and stream not in self.receiver.streams:
            self.sender.open_stream(stream)
            self.receiver.open_stream(stream)
            self.unread[stream] = 0

    @precondition(lambda self: self.sender.streams)
    @rule(stream=STREAMS, size=SIZES)
    def send(self, stream: int, size: int) -> None:
        windows = self.sender.streams.get(stream)
        if windows is None:
            return
        size = min(size, max(sendable(self.sender, windows), 0))
        send(self.sender, windows, size)
        assert self.sender.send_window >= 0
        self.to_receiver.append(("data", stream, size))

    @precondition(lambda self: self.to_receiver)
    @rule()
    def deliver_to_receiver(self) -> None:
        what, stream, size = self.to_receiver.pop(0)
        if what == "ack":
            self.receiver.settings_acknowledged()
            return
        self._credit(0, self.receiver.data_received(size))
        windows = self.receiver.streams.get(stream)
        if windows is not None:
            self.receiver.stream_data_received(windows, size)
            self.unread[stream] += size

    @rule(stream=STREAMS, part=st.floats(0, 1))
    def consume(self, stream: int, part: float) -> None:
        windows = self.receiver.streams.get(stream)
        if windows is None:
            return
        size = int(self.unread[stream] * part)
        self.unread[stream] -= size
        self.receiver.data_consumed(windows, size)
        self._credit(stream, self.receiver.take_stream_credit(windows))

    def _credit(self, stream: int, credit: int) -> None:
        if credit:
            self.to_sender.append(("credit", stream, credit))

    @precondition(lambda self: self.to_sender)
    @rule()
    def deliver_to_sender(self) -> None:
        what, stream, value = self.to_sender.pop(0)
        if what == "settings":
            self.sender.set_initial_send_window(value)
            self.to_receiver.append(("ack", 0, 0))
        elif stream:
            self.sender.stream_window_update(stream, value)
        else:
            self.sender.window_update(value)

    @rule(stream=STREAMS)
    def close_at_receiver(self, stream: int) -> None:
        self.receiver.close_stream(stream)
        self.unread.pop(stream, None)

    @rule(stream=STREAMS)
    def close_at_sender(self, stream: int) -> None:
        if not any(waits == stream for _, waits, _ in self.to_receiver):
            self.sender.close_stream(stream)
            self.close_at_receiver(stream)

    @invariant()
    def no_credit_is_lost_or_granted_twice(self) -> None:
        in_flight = sum(size for _, _, size in self.to_receiver)
        granted = sum(size for what, stream, size in self.to_sender if what == "credit" and not stream)
        assert self.sender.send_window + in_flight + granted == self.receiver.receive_window
        assert self.receiver.receive_window + self.receiver.credit_due == 100_000
        assert self.receiver.unread_bytes == sum(self.unread.values())
        for stream, windows in self.receiver.streams.items():
            assert windows.unread_bytes == self.unread[stream]

    def teardown(self) -> None:
        """Deliver and consume everything, then assert that every window is full."""
        while self.to_receiver or self.to_sender:
            while self.to_sender:
                self.deliver_to_sender()
            while self.to_receiver:
                self.deliver_to_receiver()
        for stream in list(self.receiver.streams):
            self.consume(stream, 1.0)
        assert self.receiver.is_full
        for stream, windows in self.receiver.streams.items():
            credit = sum(size for _, waits, size in self.to_sender if waits == stream)
            assert self.sender.streams[stream].send_window + credit == windows.receive_window


TestSenderAndReceiver = SenderAndReceiver.TestCase
TestSenderAndReceiver.settings = settings(stateful_step_count=50)


@pytest.fixture
def flow_control() -> FlowControl:
    flow_control = FlowControl(connection_window=DEFAULT_WINDOW, stream_window=1000)
    flow_control.settings_acknowledged()
    return flow_control


def test_settings_can_make_a_stream_window_negative_and_credit_restores_it(flow_control: FlowControl) -> None:
    windows = flow_control.open_stream(1)
    send(flow_control, windows, 60_000)
    flow_control.set_initial_send_window(10_000)
    assert sendable(flow_control, windows) == 10_000 - 60_000
    flow_control.stream_window_update(1, 50_001)
    assert sendable(flow_control, windows) == 1


def test_settings_do_not_change_the_connection_window(flow_control: FlowControl) -> None:
    flow_control.set_initial_send_window(5)
    assert flow_control.send_window == DEFAULT_WINDOW


def test_the_smaller_window_limits_what_can_be_sent(flow_control: FlowControl) -> None:
    first, second = flow_control.open_stream(1), flow_control.open_stream(3)
    send(flow_control, first, 65_000)
    assert (sendable(flow_control, first), sendable(flow_control, second)) == (535, 535)
    flow_control.window_update(10)
    assert (sendable(flow_control, first), sendable(flow_control, second)) == (535, 545)


def test_a_window_beyond_the_maximum_is_a_stream_or_connection_error(flow_control: FlowControl) -> None:
    flow_control.open_stream(1)
    with pytest.raises(Http2StreamError) as of_stream:
        flow_control.stream_window_update(1, MAX_WINDOW)
    with pytest.raises(Http2ConnectionError) as of_connection:
        flow_control.window_update(MAX_WINDOW)
    assert of_stream.value.code is of_connection.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_settings_that_raise_a_window_beyond_the_maximum_are_an_error(flow_control: FlowControl) -> None:
    flow_control.open_stream(1)
    flow_control.stream_window_update(1, 1)
    with pytest.raises(Http2ConnectionError) as caught:
        flow_control.set_initial_send_window(MAX_WINDOW)
    assert caught.value.code is ErrorCode.FLOW_CONTROL_ERROR
    with pytest.raises(Http2ConnectionError):
        flow_control.set_initial_send_window(MAX_WINDOW + 1)


def test_a_zero_increment_is_an_error(flow_control: FlowControl) -> None:
    with pytest.raises(Http2ConnectionError):
        flow_control.window_update(0)
    with pytest.raises(Http2StreamError):
        flow_control.stream_window_update(1, 0)


def test_data_beyond_the_window_is_an_error(flow_control: FlowControl) -> None:
    windows = flow_control.open_stream(1)
    flow_control.stream_data_received(windows, 1000)
    with pytest.raises(Http2ConnectionError) as of_stream:
        flow_control.stream_data_received(windows, 1)
    with pytest.raises(Http2ConnectionError) as of_connection:
        flow_control.data_received(DEFAULT_WINDOW + 1)
    assert of_stream.value.code is of_connection.value.code is ErrorCode.FLOW_CONTROL_ERROR


def test_empty_data_is_allowed_with_an_exhausted_window(flow_control: FlowControl) -> None:
    windows = flow_control.open_stream(1)
    flow_control.stream_data_received(windows, 1000)
    flow_control.stream_data_received(windows, 0)
    assert windows.receive_window == 0


def test_credit_is_granted_in_batches_of_half_a_window(flow_control: FlowControl) -> None:
    windows = flow_control.open_stream(1)
    flow_control.stream_data_received(windows, 1000)
    flow_control.data_consumed(windows, 499)
    assert flow_control.take_stream_credit(windows) == 0
    flow_control.data_consumed(windows, 1)
    assert flow_control.take_stream_credit(windows) == 500
    assert flow_control.take_stream_credit(windows) == 0
    assert (windows.receive_window, windows.unread_bytes) == (500, 500)


def test_closing_a_stream_drops_its_unread_bytes(flow_control: FlowControl) -> None:
    flow_control.stream_data_received(flow_control.open_stream(1), 700)
    assert flow_control.unread_bytes == 700
    flow_control.close_stream(1)
    flow_control.stream_window_update(1, 5)
    assert flow_control.unread_bytes == 0
    assert flow_control.is_full


def test_empty_data_is_allowed_with_a_negative_window() -> None:
    flow_control = FlowControl(connection_window=65_535, stream_window=100)
    windows = flow_control.open_stream(1)
    flow_control.stream_data_received(windows, 60_000)
    flow_control.settings_acknowledged()
    assert windows.receive_window < 0
    flow_control.stream_data_received(windows, 0)
    with pytest.raises(Http2ConnectionError, match="stream's window"):
        flow_control.stream_data_received(windows, 1)
