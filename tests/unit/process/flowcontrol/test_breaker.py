"""The circuit breaker: when it opens, which calls probe it, and what closes it."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from governor.errors import GovernorError, Kind
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import Breaker, BreakerPolicy

BACKOFF = Backoff(initial_s=10, max_s=60)
DOWN = OSError("connection refused")


class Circuit:
    """A breaker on a virtual clock."""

    def __init__(self, failures: int = 3) -> None:
        self.clock = VirtualClock()
        self.breaker = Breaker("cluster-7", BreakerPolicy(failures, BACKOFF), self.clock, random.Random(1))

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.breaker.check()
            self.breaker.failed(DOWN)

    def rejected(self) -> bool:
        try:
            self.breaker.check()
        except GovernorError as error:
            return (error.kind, error.code) == (Kind.UNAVAILABLE, "circuit-open")
        return False

    def rejection(self) -> str:
        with pytest.raises(GovernorError) as caught:
            self.breaker.check()
        return caught.value.message


async def test_failures_in_a_row_open_the_circuit() -> None:
    circuit = Circuit(failures=3)
    circuit.fail(2)
    assert not circuit.rejected()
    circuit.fail(1)
    assert circuit.rejected()


async def test_a_success_between_failures_keeps_it_closed() -> None:
    circuit = Circuit(failures=3)
    circuit.fail(2)
    circuit.breaker.succeeded()
    circuit.fail(2)
    assert not circuit.rejected()


async def test_the_error_names_the_server_the_times_and_the_last_error() -> None:
    circuit = Circuit(failures=3)
    await circuit.clock.advance(90)
    circuit.fail(3)
    await circuit.clock.advance(5)
    message = circuit.rejection()
    assert message.startswith(
        "the circuit to cluster-7 has been open since 2026-01-01T00:01:30+00:00, after 3 failures in a row; "
    )
    assert "the next call probes it at 2026-01-01T00:01:4" in message
    assert message.endswith("Last error: connection refused")


async def test_an_error_without_a_text_is_named_by_its_type() -> None:
    circuit = Circuit(failures=1)
    circuit.breaker.failed(TimeoutError())
    assert circuit.rejection().endswith("Last error: TimeoutError")


async def test_after_the_delay_one_call_probes_and_its_success_closes_the_circuit() -> None:
    circuit = Circuit()
    circuit.fail(3)
    await circuit.clock.advance(9.9)
    assert circuit.rejected()
    await circuit.clock.advance(10.1)
    assert [circuit.rejected() for _ in range(5)] == [False, True, True, True, True]
    assert "one call probes it now" in circuit.rejection()
    circuit.breaker.succeeded()
    circuit.fail(2)
    assert not circuit.rejected()


async def test_a_failed_probe_opens_it_for_longer_and_its_error_is_the_last_error() -> None:
    circuit, waits = Circuit(), list[int]()
    circuit.fail(3)
    for attempt in range(6):
        waited_s = 0
        while circuit.rejected():
            await circuit.clock.advance(1)
            waited_s += 1
        waits.append(waited_s)
        circuit.breaker.failed(OSError(f"attempt {attempt}"))
        message = circuit.rejection()
        assert message.endswith(f"Last error: attempt {attempt}")
        assert "one call probes it now" not in message
    assert all(10 <= wait <= BACKOFF.ceiling_s(times) + 1 for times, wait in enumerate(waits, start=1))
    assert max(waits) > 20


async def test_a_probe_without_a_result_is_followed_by_another_after_a_delay() -> None:
    circuit = Circuit()
    circuit.fail(3)
    await circuit.clock.advance(20)
    assert not circuit.rejected()
    assert circuit.rejected()
    await circuit.clock.advance(20)
    assert not circuit.rejected()


async def test_late_failures_do_not_extend_the_delay() -> None:
    circuit = Circuit()
    circuit.fail(3)
    for _ in range(50):
        circuit.breaker.failed(DOWN)
    await circuit.clock.advance(20)
    assert not circuit.rejected()


def test_a_policy_without_failures_is_rejected() -> None:
    with pytest.raises(ValueError, match="1 or more failures"):
        BreakerPolicy(0, BACKOFF)


def test_a_breaker_keeps_nothing_beside_its_slots() -> None:
    assert not hasattr(Circuit().breaker, "__dict__")


class BreakerMachine(RuleBasedStateMachine):
    """While open at most one probe per delay is allowed, and the circuit never stays open for good."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.failures = 0
        self.open = False
        self.last_probe_s = 0.0
        self.breaker = Breaker("it", BreakerPolicy(2, BACKOFF), self, random.Random(1))

    def monotonic(self) -> float:
        return self.now_s

    now = staticmethod(VirtualClock().now)
    sleep = staticmethod(VirtualClock().sleep)

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule()
    def call(self) -> None:
        try:
            self.breaker.check()
        except GovernorError:
            assert self.open
            assert self.now_s - self.last_probe_s < BACKOFF.max_s
            return
        if self.open:
            assert self.now_s - self.last_probe_s >= BACKOFF.initial_s
            self.last_probe_s = self.now_s

    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()
        self.failures, self.open = 0, False

    @precondition(lambda self: not self.open)
    @rule()
    def fail(self) -> None:
        self.breaker.failed(DOWN)
        self.failures += 1
        if self.failures == 2:
            self.open, self.last_probe_s = True, self.now_s

    @precondition(lambda self: self.open and self.last_probe_s == self.now_s)
    @rule()
    def fail_at_once(self) -> None:
        self.breaker.failed(DOWN)

    @invariant()
    def a_closed_circuit_allows_every_call(self) -> None:
        if not self.open:
            self.breaker.check()


TestBreakerMachine = BreakerMachine.TestCase


async def test_a_probe_can_be_allowed_before_its_time() -> None:
    circuit = Circuit(failures=1)
    circuit.breaker.allow_probe()
    circuit.fail(1)
    assert circuit.rejected()

    circuit.breaker.allow_probe()

    assert circuit.breaker.check()
    assert circuit.rejected()


async def test_open_reason_does_not_start_a_probe() -> None:
    circuit = Circuit(failures=1)
    assert circuit.breaker.open_reason() == ""
    circuit.fail(1)
    assert circuit.breaker.open_reason() == circuit.rejection()
    await circuit.clock.advance(BACKOFF.max_s)
    assert [circuit.breaker.open_reason(), circuit.breaker.open_reason()] == ["", ""]
    assert not circuit.rejected()
