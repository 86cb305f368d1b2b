"""A circuit breaker: after failures in a row, nobody waits for a broken server; now and then one caller tries it.

| state | left when |
|---|---|
| closed: all may pass | so many calls in a row failed: open |
| open: none may pass | a wait drawn from the backoff is over, and a caller comes: half-open |
| half-open: only that caller may try | it succeeds: closed; it fails: open, for longer; it tells nothing: open |

A caller that is cancelled need not say so: it only costs another wait. A pure state machine: it starts no task and
makes no call, and what counts as a failure is the caller's to decide.
"""

import datetime
import random

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff


class BreakerPolicy(msgspec.Struct, frozen=True):
    """How many failures in a row open the circuit, and how long it stays open."""

    failures: int
    backoff: Backoff

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"a circuit opens after 1 or more failures, not after {self.failures}")


class Breaker:
    """The circuit to one thing, which ``name`` names for people; slim, because there is one for each of thousands."""

    __slots__ = ("_clock", "_failures", "_name", "_open", "_policy", "_rng")

    def __init__(self, name: str, policy: BreakerPolicy, clock: Clock, rng: random.Random) -> None:
        self._name = name
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._failures = 0
        self._open: _Open | None = None

    def check(self) -> bool:
        """Return if the caller may try now, and then tells how it went; otherwise UNAVAILABLE ``circuit-open``.

        Whether the circuit is open, and the caller the one who tries it.
        """
        opened = self._open
        if opened is None:
            return False
        if self._clock.monotonic() < opened.retry_s:
            raise self._open_error(opened)
        opened.trying = True
        opened.retry_s = self._after_wait_s(opened.times)
        return True

    def open_reason(self) -> str:
        """Why nobody may try now, or nothing; unlike ``check`` it only looks."""
        opened = self._open
        return self._open_error(opened).message if opened and self._clock.monotonic() < opened.retry_s else ""

    def succeeded(self) -> None:
        """It worked: the circuit is closed."""
        self._failures = 0
        self._open = None

    def failed(self, error: Exception) -> None:
        """It did not work, for the server's reasons and not for the caller's."""
        opened, why = self._open, str(error) or type(error).__name__
        if opened is None:
            self._failures += 1
            if self._failures >= self._policy.failures:
                self._open = _Open(self._clock.now(), why, self._after_wait_s(1))
        elif opened.trying:
            # Others that began before the circuit opened fail late; they say nothing new.
            opened.trying = False
            opened.why = why
            opened.times += 1
            opened.retry_s = self._after_wait_s(opened.times)

    def _after_wait_s(self, times: int) -> float:
        return self._clock.monotonic() + self._policy.backoff.delay_s(times, self._rng)

    def _open_error(self, opened: "_Open") -> GovernorError:
        left_s = opened.retry_s - self._clock.monotonic()
        retry = self._clock.now() + datetime.timedelta(seconds=left_s)
        who = "one call tries it now; if that does not help, it" if opened.trying else "it"
        return GovernorError(
            Kind.UNAVAILABLE,
            "circuit-open",
            f"{self._name} failed {self._failures} times in a row and is left alone since {_moment(opened.since)}; "
            f"{who} is tried again at {_moment(retry)}. Last error: {opened.why}",
        )


class _Open:
    """What is known while the circuit is open; only then is it kept."""

    __slots__ = ("retry_s", "since", "times", "trying", "why")

    def __init__(self, since: datetime.datetime, why: str, retry_s: float) -> None:
        self.since = since
        self.why = why
        self.retry_s = retry_s
        self.times = 1
        self.trying = False


def _moment(when: datetime.datetime) -> str:
    return when.isoformat(timespec="seconds")
