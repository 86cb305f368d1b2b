"""Runs throw-away sidecars on this machine, which load a change before any application's sidecar does.

One at a time, each in a temporary directory and with a deadline. After a crash of the agent the next one stops its
process as an orphan and removes its directory. ``agent.preflight`` polls and judges them.
"""

import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from governor.agent.platform import Superseded
from governor.agent.platforms.local.plan import Observed, Plan
from governor.agent.platforms.local.sidecars import daprd
from governor.agent.platforms.local.sidecars.throw_away import ThrowAwaySidecar
from governor.agent.preflight import LatestResult, Trial, findings_of, time_limit_s, without_preflight
from governor.agent.redaction import Redactor
from governor.agent.verification.preflight_plan import (
    PreflightPlan,
    PreflightReading,
    PreflightResult,
    judge,
    plan_preflight,
)
from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import in_scope
from governor.domain.documents import Preflight, ResourceRef, resource_ref
from governor.process.clock import Clock
from governor.values.trees import Manifest

_NAME_LENGTH: Final = 32


class PreflightRunner:
    """Runs the preflights of one agent, below one directory."""

    def __init__(self, launch: daprd.Launch, directory: Path, session: aiohttp.ClientSession, clock: Clock) -> None:
        self.clock = clock
        self.latest = LatestResult()
        self._launch = launch
        self._directory = directory
        self._session = session

    def sweep(self) -> None:
        """Remove the files of a killed agent; call after its processes were stopped. Blocking."""
        for left in self._directory.iterdir() if self._directory.exists() else ():
            shutil.rmtree(left)

    async def start(self, app_id: str) -> ThrowAwaySidecar:
        """Start a throw-away sidecar; use it as a context."""
        return await ThrowAwaySidecar.start(self._launch, self._directory, app_id, self._session)


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
            return self._runner.latest.of(self._delivery)
        if self._delivery.apply.preflight is Preflight.OFF:
            result = without_preflight(changed, self._clock.now())
        else:
            result = await self._try(plan_preflight(changed, _loadable(planned, observed), self._app_id), redactor)
        if result.passed:
            self._runner.latest.keep(self._delivery, result)
        return result

    async def _try(self, plan: PreflightPlan, redactor: Redactor) -> PreflightResult:
        limit_s = time_limit_s(self._delivery.apply)
        trial = Trial(self._next_sidecar, self._clock, self._superseded, limit_s)
        reading = await trial.run(plan) if plan.tried else PreflightReading()
        if self._superseded():
            return PreflightResult(superseded=True)
        verdicts = judge(plan, reading, f"not initialised within {limit_s:.0f} s")
        return PreflightResult(findings_of(verdicts, plan.app_id, self._clock.now(), redactor))

    @asynccontextmanager
    async def _next_sidecar(self) -> AsyncIterator[ThrowAwaySidecar]:
        """Yield the sidecar that waits, then others; the context of this preflight stops the first one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            yield waiting
            return
        async with await self._runner.start(self._app_id) as sidecar:
            yield sidecar


def _loadable(planned: Plan, observed: Observed) -> Mapping[ResourceRef, Manifest]:
    """Return what is delivered to any sidecar, and the components in foreign files that a sidecar loads."""
    files = [file for key, file in observed.files.items() if key not in observed.journal.files]
    foreign = {resource_ref(each, observed.namespace): each for file in files for each in file.manifests}
    delivered = {each.ref: each.new for one in planned.sidecars for each in one.expected if each.new}
    return {**{ref: each for ref, each in foreign.items() if _is_loaded(ref, each, planned, observed)}, **delivered}


def _is_loaded(ref: ResourceRef, manifest: Manifest, planned: Plan, observed: Observed) -> bool:
    is_component = ref.kind == "Component" and ref.namespace == observed.namespace
    return is_component and any(in_scope(manifest, one.app_id) for one in planned.sidecars)
