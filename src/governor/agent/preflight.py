"""Preflight of one delivery in throw-away sidecars: run one, poll it, repeat what is inconclusive.

The platform starts the sidecars. ``verification.preflight_plan`` decides what they load, and what that proves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from governor.agent.platform import Superseded
from governor.agent.redaction import Redactor
from governor.agent.verification.findings import AGENT
from governor.agent.verification.preflight_plan import (
    PreflightPlan,
    PreflightReading,
    PreflightResult,
    conclusive,
    passed,
)
from governor.agent.verification.verdicts import Verdicts
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.reports import Evidence, Finding, State
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.values.trees import Manifest

IMPOSSIBLE: Final = "preflight-impossible"
"""Code of the error that a preflight could not run, so that nothing was applied; it is retried."""

_SHARE: Final = 0.5
"""The share of the verification window that a preflight may take, within the limits below."""
_MIN_S: Final = 10.0
_MAX_S: Final = 60.0
_ATTEMPTS: Final = 2
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
_PAUSE_GROWTH: Final = 1.05
_SETTLE_S: Final = 0.5
"""How long a healthy sidecar may take to list everything, or to exit after all."""


class ThrowAway(Protocol):
    """A throw-away sidecar that has loaded nothing yet."""

    async def load(self, copies: Sequence[Manifest]) -> None:
        """Let it load these resources, among them one Configuration."""
        ...

    async def read(self) -> PreflightReading:
        """Return its state at this moment."""
        ...

    async def finish(self, reading: PreflightReading) -> PreflightReading:
        """Return the last reading with what the sidecar has logged; it may be stopped for that."""
        ...


Start: TypeAlias = Callable[[], AbstractAsyncContextManager[ThrowAway]]
"""Returns the next throw-away sidecar, as a context that removes it."""


def time_limit_s(policy: ApplyPolicy) -> float:
    """Return how long the resources of a delivery may take to initialise in a preflight."""
    return min(max(policy.verify_window_seconds * _SHARE, _MIN_S), _MAX_S)


class Trial:
    """Tries one plan in throw-away sidecars, one after another; loading is not counted in ``limit_s``."""

    def __init__(self, start: Start, clock: Clock, superseded: Superseded, limit_s: float) -> None:
        self._start = start
        self._clock = clock
        self._superseded = superseded
        self._left_s = limit_s

    async def run(self, plan: PreflightPlan) -> PreflightReading:
        """Return a reading about the change: retry an exit with another cause, then compare with an empty sidecar."""
        reading = PreflightReading()
        for _ in range(_ATTEMPTS):
            reading = await self._run_once(plan)
            if conclusive(plan, reading) or self._superseded():
                return reading
        empty = await self._run_once(plan.emptied)
        if empty.healthy or self._superseded():
            return reading
        raise impossible(empty.exit_message or "daprd did not become healthy")

    async def _run_once(self, plan: PreflightPlan) -> PreflightReading:
        async with self._start() as sidecar:
            await sidecar.load(plan.copies)
            return await sidecar.finish(await self._poll(sidecar, plan))

    async def _poll(self, sidecar: ThrowAway, plan: PreflightPlan) -> PreflightReading:
        """Poll until the sidecar is healthy with everything loaded, has exited, or the time is over."""
        began, healthy_since = self._clock.monotonic(), None
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = await sidecar.read()
            now = self._clock.monotonic()
            if healthy_since is None and reading.healthy:
                healthy_since = now
            is_settled = healthy_since is not None and now - healthy_since > _SETTLE_S
            is_late = now - began > self._left_s
            is_over = reading.exit_message is not None or is_settled or is_late or self._superseded()
            if is_over or passed(plan, reading):
                self._left_s -= now - began
                return reading
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)


class LatestResult:
    """The result of the delivery that passed last: a repeated run of it reports the same."""

    def __init__(self) -> None:
        self._latest: tuple[tuple[int, int], PreflightResult] | None = None

    def of(self, delivery: Delivery) -> PreflightResult:
        """Return the result that a delivery passed with, or an empty one."""
        return self._latest[1] if self._latest and self._latest[0] == _version(delivery) else PreflightResult()

    def keep(self, delivery: Delivery, result: PreflightResult) -> None:
        """Remember the result that a delivery passed with."""
        self._latest = _version(delivery), result


def impossible(reason: str) -> GovernorError:
    """Return the error that a preflight could not run, which is no verdict on the change."""
    message = f"the preflight could not run, so nothing was applied: {reason}"
    return GovernorError(Kind.UNAVAILABLE, IMPOSSIBLE, message)


def without_preflight(changed: Iterable[ResourceRef], now: datetime, reason: str = "") -> PreflightResult:
    """Return the result for a change that is not tried, and why."""
    text = f"applied without a preflight: {reason}" if reason else "applied without a preflight"
    finding = Finding(state=State.RECEIVED, evidence=(Evidence(AGENT, now, text),))
    return PreflightResult(dict.fromkeys(changed, finding))


def findings_of(verdicts: Verdicts, app_id: str, now: datetime, redactor: Redactor) -> Mapping[ResourceRef, Finding]:
    """Return the verdicts of one throw-away sidecar as findings."""
    source = f"preflight {app_id}"
    return {
        ref: Finding(state=each.state, evidence=(Evidence(source, now, redactor.redact(each.text)),))
        for ref, each in verdicts.items()
    }


def _version(delivery: Delivery) -> tuple[int, int]:
    return delivery.sequence, delivery.attempt
