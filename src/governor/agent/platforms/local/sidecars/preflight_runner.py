"""Runs throw-away sidecars on this machine, which load a change before any application's sidecar does.

One at a time, each in a temporary directory and with a deadline. After a crash of the agent the next one stops its
process as an orphan and removes its directory. ``verification.preflight_plan`` decides what it loads and proves.
"""

import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import aiohttp

from governor.agent.platform import Superseded
from governor.agent.platforms.local.files import resource_file
from governor.agent.platforms.local.plan import Observed, Plan
from governor.agent.platforms.local.sidecars import daprd
from governor.agent.platforms.local.sidecars.throw_away import ThrowAwaySidecar
from governor.agent.redaction import Redactor
from governor.agent.verification.findings import AGENT
from governor.agent.verification.preflight_plan import (
    PreflightPlan,
    PreflightReading,
    PreflightResult,
    conclusive,
    judge,
    passed,
    plan_preflight,
)
from governor.agent.verification.resources import in_scope
from governor.agent.verification.verdicts import Verdict
from governor.domain.bundles import Delivery
from governor.domain.documents import Preflight, ResourceRef, resource_ref
from governor.domain.reports import Evidence, Finding, State
from governor.errors import GovernorError, Kind
from governor.process.clock import Clock
from governor.values.trees import Manifest

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
_NAME_LENGTH: Final = 32


class PreflightRunner:
    """Runs the preflights of one agent, below one directory."""

    def __init__(self, launch: daprd.Launch, directory: Path, session: aiohttp.ClientSession, clock: Clock) -> None:
        self.namespace = launch.namespace
        self.clock = clock
        self._launch = launch
        self._directory = directory
        self._session = session
        self._latest: tuple[tuple[int, int], PreflightResult] | None = None

    def sweep(self) -> None:
        """Remove the files of a killed agent; call after its processes were stopped. Blocking."""
        for left in self._directory.iterdir() if self._directory.exists() else ():
            shutil.rmtree(left)

    async def start(self, app_id: str) -> ThrowAwaySidecar:
        """Start a throw-away sidecar; use it as a context."""
        return await ThrowAwaySidecar.start(self._launch, self._directory, app_id, self._session)

    def latest(self, delivery: Delivery) -> PreflightResult:
        """Return the result that a delivery passed with, or an empty one."""
        return self._latest[1] if self._latest and self._latest[0] == _version(delivery) else PreflightResult()

    def keep(self, delivery: Delivery, result: PreflightResult) -> None:
        """Remember the result that a delivery passed with."""
        self._latest = _version(delivery), result


@asynccontextmanager
async def preflight(
    runner: PreflightRunner,
    delivery: Delivery,
    app_ids: Iterable[str],
    superseded: Superseded,
    *,
    early: bool,
) -> AsyncIterator["DeliveryPreflight"]:
    """Start the sidecar that a new delivery will need, so that it starts while the delivery is planned.

    Without ``early`` it is not started until it turns out to be needed. Leaving the context stops it.
    """
    app_id = f"{next(iter(app_ids), '')[:_NAME_LENGTH]}-preflight-{secrets.token_hex(4)}"
    if not early or delivery.apply.preflight is Preflight.OFF:
        yield DeliveryPreflight(runner, delivery, app_id, None, superseded)
        return
    async with await runner.start(app_id) as sidecar:
        yield DeliveryPreflight(runner, delivery, app_id, sidecar, superseded)


class DeliveryPreflight:
    """The preflight of one delivery, with a sidecar that waits for it, or None."""

    def __init__(
        self,
        runner: PreflightRunner,
        delivery: Delivery,
        app_id: str,
        waiting: ThrowAwaySidecar | None,
        superseded: Superseded,
    ) -> None:
        self._runner = runner
        self._delivery = delivery
        self._app_id = app_id
        self._waiting = waiting
        self._superseded = superseded
        self._clock = runner.clock

    async def check(self, planned: Plan, observed: Observed, redactor: Redactor) -> PreflightResult:
        """Try what a plan changes. Without changes, return the earlier result of the same delivery."""
        changed = {each.ref for one in planned.sidecars for each in one.expected if each.changed and each.new}
        if not changed:
            return self._runner.latest(self._delivery)
        if self._delivery.apply.preflight is Preflight.OFF:
            result = self._off(changed)
        else:
            result = await self._try(plan_preflight(changed, _loadable(planned, observed), self._app_id), redactor)
        if result.passed:
            self._runner.keep(self._delivery, result)
        return result

    def _off(self, changed: Iterable[ResourceRef]) -> PreflightResult:
        evidence = Evidence(AGENT, self._clock.now(), "applied without a preflight")
        return PreflightResult(dict.fromkeys(changed, Finding(state=State.RECEIVED, evidence=(evidence,))))

    async def _try(self, plan: PreflightPlan, redactor: Redactor) -> PreflightResult:
        limit_s = min(max(self._delivery.apply.verify_window_seconds * _SHARE, _MIN_S), _MAX_S)
        deadline = self._clock.monotonic() + limit_s
        reading = await self._conclusive(plan, deadline) if plan.tried else PreflightReading()
        if self._superseded():
            return PreflightResult(superseded=True)
        source, now = f"preflight {plan.app_id}", self._clock.now()
        verdicts = judge(plan, reading, f"not initialised within {limit_s:.0f} s")
        return PreflightResult({ref: _finding(verdict, source, now, redactor) for ref, verdict in verdicts.items()})

    async def _conclusive(self, plan: PreflightPlan, deadline: float) -> PreflightReading:
        """Return a reading about the change: retry an exit with another cause, then compare with an empty sidecar."""
        reading = PreflightReading()
        for _ in range(_ATTEMPTS):
            reading = await self._run(plan, deadline)
            if conclusive(plan, reading) or self._superseded():
                return reading
        empty = await self._run(PreflightPlan(plan.app_id), deadline)
        if empty.healthy or self._superseded():
            return reading
        reason = empty.exit_message or "daprd did not become healthy"
        message = f"the preflight could not run, so nothing was applied: {reason}"
        raise GovernorError(Kind.UNAVAILABLE, "preflight-impossible", message)

    async def _run(self, plan: PreflightPlan, deadline: float) -> PreflightReading:
        """Run a sidecar with the plan's files until it can be judged: the waiting one, then others."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            return await self._load(waiting, plan, deadline)
        async with await self._runner.start(plan.app_id) as sidecar:
            return await self._load(sidecar, plan, deadline)

    async def _load(self, sidecar: ThrowAwaySidecar, plan: PreflightPlan, deadline: float) -> PreflightReading:
        await sidecar.load(resource_file(each, self._runner.namespace) for each in plan.copies)
        return await sidecar.finish(await self._poll(sidecar, plan, deadline))

    async def _poll(self, sidecar: ThrowAwaySidecar, plan: PreflightPlan, deadline: float) -> PreflightReading:
        """Poll until the sidecar is healthy with everything loaded, has exited, or the deadline has passed."""
        healthy_since: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = await sidecar.read()
            now = self._clock.monotonic()
            if healthy_since is None and reading.healthy:
                healthy_since = now
            is_settled = healthy_since is not None and now - healthy_since > _SETTLE_S
            is_over = reading.exit_message is not None or is_settled or now > deadline or self._superseded()
            if is_over or passed(plan, reading):
                return reading
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)


def _version(delivery: Delivery) -> tuple[int, int]:
    return delivery.sequence, delivery.attempt


def _loadable(planned: Plan, observed: Observed) -> Mapping[ResourceRef, Manifest]:
    """Return what is delivered to any sidecar, and the components in foreign files that a sidecar loads."""
    files = [file for key, file in observed.files.items() if key not in observed.journal.files]
    foreign = {resource_ref(each, observed.namespace): each for file in files for each in file.manifests}
    delivered = {each.ref: each.new for one in planned.sidecars for each in one.expected if each.new}
    return {**{ref: each for ref, each in foreign.items() if _is_loaded(ref, each, planned, observed)}, **delivered}


def _is_loaded(ref: ResourceRef, manifest: Manifest, planned: Plan, observed: Observed) -> bool:
    is_component = ref.kind == "Component" and ref.namespace == observed.namespace
    return is_component and any(in_scope(manifest, one.app_id) for one in planned.sidecars)


def _finding(verdict: Verdict, source: str, now: datetime, redactor: Redactor) -> Finding:
    return Finding(state=verdict.state, evidence=(Evidence(source, now, redactor.redact(verdict.text)),))
