"""A circuit breaker: after several failures in a row calls fail at once; from time to time one call probes the server.

| state | next state |
|---|---|
| closed: every call is allowed | open after ``failures`` failures in a row |
| open: no call is allowed | half-open for the first call after a delay from the backoff |
| half-open: only that call is allowed | closed on success; open, for longer, on failure; open without a result |

A cancelled call need not report a result: the next probe then waits for another delay. The breaker is a pure state
machine that starts no task and makes no call. The caller decides what counts as a failure.
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
    """The circuit to the server called ``name``; small, because there may be thousands."""

    __slots__ = ("_clock", "_failures", "_name", "_open", "_policy", "_rng")

    def __init__(self, name: str, policy: BreakerPolicy, clock: Clock, rng: random.Random) -> None:
        self._name = name
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._failures = 0
        self._open: _Open | None = None

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open, even if a call may probe it."""
        return self._open is not None

    def check(self) -> bool:
        """Return True if the call is the probe of an open circuit, False if the circuit is closed.

        Otherwise raise UNAVAILABLE ``circuit-open``. An allowed call reports its result with ``succeeded`` or
        ``failed``.
        """
        opened = self._open
        if opened is None:
            return False
        if self._clock.monotonic() < opened.retry_s:
            raise self._open_error(opened)
        opened.probing = True
        opened.retry_s = self._retry_s(opened.openings)
        return True

    def allow_probe(self) -> None:
        """Allow the next call as the probe of an open circuit, for example because the server was restarted."""
        if self._open is not None:
            self._open.retry_s = self._clock.monotonic()

    def open_reason(self) -> str:
        """Return why calls fail now, or ``""``; unlike ``check`` it does not start a probe."""
        opened = self._open
        return self._open_error(opened).message if opened and self._clock.monotonic() < opened.retry_s else ""

    def succeeded(self) -> None:
        """Record a success: close the circuit."""
        self._failures = 0
        self._open = None

    def failed(self, error: Exception) -> None:
        """Record a failure of the server (not of the caller)."""
        opened, reason = self._open, str(error) or type(error).__name__
        if opened is None:
            self._failures += 1
            if self._failures >= self._policy.failures:
                self._open = _Open(self._clock.now(), reason, self._retry_s(1))
        elif opened.probing:
            # Failures of calls that started before the circuit opened are ignored.
            opened.probing = False
            opened.last_error = reason
            opened.openings += 1
            opened.retry_s = self._retry_s(opened.openings)

    def _retry_s(self, openings: int) -> float:
        return self._clock.monotonic() + self._policy.backoff.delay_s(openings, self._rng)

    def _open_error(self, opened: "_Open") -> GovernorError:
        left_s = opened.retry_s - self._clock.monotonic()
        retry = self._clock.now() + datetime.timedelta(seconds=left_s)
        probe = "one call probes it now, the next" if opened.probing else "the next call probes it"
        return GovernorError(
            Kind.UNAVAILABLE,
            "circuit-open",
            f"the circuit to {self._name} has been open since {_timestamp(opened.since)}, after {self._failures} "
            f"failures in a row; {probe} at {_timestamp(retry)}. Last error: {opened.last_error}",
        )


class _Open:
    """State of an open circuit."""

    __slots__ = ("last_error", "openings", "probing", "retry_s", "since")

    def __init__(self, since: datetime.datetime, last_error: str, retry_s: float) -> None:
        self.since = since
        self.last_error = last_error
        self.retry_s = retry_s
        self.openings = 1
        self.probing = False


def _timestamp(when: datetime.datetime) -> str:
    return when.isoformat(timespec="seconds")
