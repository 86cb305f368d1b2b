"""The circuit breaker: when it opens, who may try while it is open, and what closes it."""

import random

import pytest
from hypothesis import settings
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

    def refused(self) -> bool:
        try:
            self.breaker.check()
        except GovernorError as error:
            return (error.kind, error.code) == (Kind.UNAVAILABLE, "circuit-open")
        return False

    def refusal(self) -> str:
        with pytest.raises(GovernorError) as caught:
            self.breaker.check()
        return caught.value.message


async def test_failures_in_a_row_open_the_circuit() -> None:
    circuit = Circuit(failures=3)
    circuit.fail(2)
    assert not circuit.refused()
    circuit.fail(1)
    assert circuit.refused()


async def test_a_success_between_failures_keeps_it_closed() -> None:
    circuit = Circuit(failures=3)
    circuit.fail(2)
    circuit.breaker.succeeded()
    circuit.fail(2)
    assert not circuit.refused()


async def test_the_refusal_says_what_is_left_alone_since_when_why_and_until_when() -> None:
    circuit = Circuit(failures=3)
    await circuit.clock.advance(90)
    circuit.fail(3)
    await circuit.clock.advance(5)
    message = circuit.refusal()
    assert message.startswith("cluster-7 failed 3 times in a row and is left alone since 2026-01-01T00:01:30+00:00; ")
    assert "it is tried again at 2026-01-01T00:01:4" in message
    assert message.endswith("Last error: connection refused")


async def test_an_error_without_a_text_is_named_by_its_type() -> None:
    circuit = Circuit(failures=1)
    circuit.breaker.failed(TimeoutError())
    assert circuit.refusal().endswith("Last error: TimeoutError")


async def test_after_the_wait_one_caller_tries_and_its_success_closes_the_circuit() -> None:
    circuit = Circuit()
    circuit.fail(3)
    await circuit.clock.advance(9.9)
    assert circuit.refused()
    await circuit.clock.advance(10.1)
    assert [circuit.refused() for _ in range(5)] == [False, True, True, True, True]
    assert "one call tries it now" in circuit.refusal()
    circuit.breaker.succeeded()
    circuit.fail(2)
    assert not circuit.refused()


async def test_a_failed_try_opens_it_again_for_longer_and_the_last_error_is_told() -> None:
    circuit, waits = Circuit(), list[int]()
    circuit.fail(3)
    for attempt in range(6):
        waited_s = 0
        while circuit.refused():
            await circuit.clock.advance(1)
            waited_s += 1
        waits.append(waited_s)
        circuit.breaker.failed(OSError(f"attempt {attempt}"))
        refusal = circuit.refusal()
        assert refusal.endswith(f"Last error: attempt {attempt}")
        assert "one call tries it now" not in refusal
    assert all(10 <= wait <= BACKOFF.ceiling_s(times) + 1 for times, wait in enumerate(waits, start=1))
    assert max(waits) > 20


async def test_a_try_that_never_tells_how_it_went_leaves_the_next_one_after_another_wait() -> None:
    circuit = Circuit()
    circuit.fail(3)
    await circuit.clock.advance(20)
    assert not circuit.refused()
    assert circuit.refused()
    await circuit.clock.advance(20)
    assert not circuit.refused()


async def test_calls_that_began_before_the_circuit_opened_do_not_make_it_wait_longer() -> None:
    circuit = Circuit()
    circuit.fail(3)
    for _ in range(50):
        circuit.breaker.failed(DOWN)
    await circuit.clock.advance(20)
    assert not circuit.refused()


def test_a_circuit_that_opens_without_a_failure_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more failures"):
        BreakerPolicy(0, BACKOFF)


def test_a_breaker_keeps_nothing_beside_its_slots() -> None:
    assert not hasattr(Circuit().breaker, "__dict__")


class BreakerMachine(RuleBasedStateMachine):
    """However calls and outcomes fall: no more than one try per wait while open, and never closed for good."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.failures = 0
        self.open = False
        self.last_try_s = 0.0
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
            assert self.now_s - self.last_try_s < BACKOFF.max_s
            return
        if self.open:
            assert self.now_s - self.last_try_s >= BACKOFF.initial_s
            self.last_try_s = self.now_s

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
            self.open, self.last_try_s = True, self.now_s

    @precondition(lambda self: self.open and self.last_try_s == self.now_s)
    @rule()
    def fail_at_once(self) -> None:
        self.breaker.failed(DOWN)

    @invariant()
    def closed_lets_everybody_pass(self) -> None:
        if not self.open:
            self.breaker.check()


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=100, deadline=None)


async def test_whoever_only_looks_takes_nobodys_try() -> None:
    circuit = Circuit(failures=1)
    assert circuit.breaker.open_reason() == ""
    circuit.fail(1)
    assert circuit.breaker.open_reason() == circuit.refusal()
    await circuit.clock.advance(BACKOFF.max_s)
    assert [circuit.breaker.open_reason(), circuit.breaker.open_reason()] == ["", ""]
    assert not circuit.refused()
