"""A throw-away daprd on this machine that loads a change before any application's sidecar does.

One at a time, in a directory of its own, for a bounded time. The process of a killed agent is ended as any stray at the
next start, then its directory is swept. What goes in and what comes out is decided by ``agent.preflight``.
"""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from governor.agent.platforms.local import daprd
from governor.agent.platforms.local.files import CONFIG, RESOURCES, resource_file
from governor.agent.platforms.local.plan import Observed, Plan
from governor.agent.platforms.local.ports import ReservedPorts
from governor.agent.platforms.local.verifier import Superseded
from governor.agent.redaction import Redactor
from governor.agent.settings import SidecarSettings
from governor.agent.storage import Ports
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
from governor.agent.verification.sidecar_api import SidecarApi
from governor.agent.verification.verdicts import Verdict
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, Preflight, ResourceRef, resource_ref
from governor.domain.reports import Evidence, Finding, State
from governor.errors import GovernorError, Kind
from governor.process.child import child
from governor.process.child.child import Child
from governor.process.clock import Clock
from governor.values.trees import Manifest

_SHARE: Final = 0.5
"""The part of the verification window that a preflight may take, within the limits below."""
_LEAST_S: Final = 10.0
_MOST_S: Final = 60.0
_ATTEMPTS: Final = 2
_POLL_S: Final = 0.015
_SETTLE_S: Final = 0.5
"""How long a sidecar that says it is up may take until it lists everything, or ends."""
_STOP_GRACE_S: Final = 2.0
_NAME_LENGTH: Final = 32
_LOG: Final = "daprd.log"


class PreflightRunner:
    """Starts throw-away sidecars, one after another, below a directory of its own."""

    def __init__(self, launch: daprd.Launch, directory: Path, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._launch = launch
        self._directory = directory
        self._session = session
        self._clock = clock
        self._latest: tuple[tuple[int, int], PreflightResult] | None = None

    def sweep(self) -> None:
        """Remove what an agent that was killed has left here, once its processes are ended. Blocking."""
        for place in self._directory.iterdir() if self._directory.exists() else ():
            shutil.rmtree(place)

    async def check(
        self, planned: Plan, observed: Observed, delivery: Delivery, redactor: Redactor, superseded: Superseded
    ) -> PreflightResult:
        """Try what a plan changes. Looking again when nothing is left to change finds what was found before."""
        this = (delivery.sequence, delivery.attempt)
        changed = {each.ref for one in planned.sidecars for each in one.expected if each.changed and each.new}
        if not changed:
            return self._latest[1] if self._latest and self._latest[0] == this else PreflightResult()
        if delivery.apply.preflight is Preflight.OFF:
            result = self._off(changed)
        else:
            app_id = f"{planned.sidecars[0].app_id[:_NAME_LENGTH]}-preflight-{secrets.token_hex(4)}"
            plan = plan_preflight(changed, _loadable(planned, observed), app_id)
            result = await self._try(plan, delivery.apply, redactor, superseded)
        if result.passed:
            self._latest = this, result
        return result

    def _off(self, changed: Iterable[ResourceRef]) -> PreflightResult:
        evidence = Evidence(AGENT, self._clock.now(), "goes to the sidecars without a preflight")
        return PreflightResult(dict.fromkeys(changed, Finding(state=State.RECEIVED, evidence=(evidence,))))

    async def _try(
        self, plan: PreflightPlan, policy: ApplyPolicy, redactor: Redactor, superseded: Superseded
    ) -> PreflightResult:
        limit_s = min(max(policy.verify_window_seconds * _SHARE, _LEAST_S), _MOST_S)
        deadline = self._clock.monotonic() + limit_s
        seen = await self._conclusive(plan, deadline, superseded) if plan.tried else PreflightReading()
        if superseded():
            return PreflightResult(stopped=True)
        source, now = f"preflight {plan.app_id}", self._clock.now()
        verdicts = judge(plan, seen, f"not initialised within {limit_s:.0f} s")
        return PreflightResult({ref: _finding(verdict, source, now, redactor) for ref, verdict in verdicts.items()})

    async def _conclusive(self, plan: PreflightPlan, deadline: float, superseded: Superseded) -> PreflightReading:
        """What a throw-away sidecar showed of the change; an end that may have other reasons is looked into."""
        seen = PreflightReading()
        for _ in range(_ATTEMPTS):
            seen = await self._run(plan, deadline, superseded)
            if conclusive(plan, seen) or superseded():
                return seen
        alone = await self._run(PreflightPlan(plan.app_id), deadline, superseded)
        if alone.healthy or superseded():
            return seen
        message = (
            f"the preflight could not run, so nothing was applied: {alone.exit_message or 'daprd does not come up'}"
        )
        raise GovernorError(Kind.UNAVAILABLE, "preflight-impossible", message)

    async def _run(self, plan: PreflightPlan, deadline: float, superseded: Superseded) -> PreflightReading:
        """Start a sidecar with everything in place, look at it, end it and leave nothing behind."""
        async with self._files(plan) as place:
            settings = SidecarSettings(plan.app_id)
            with ReservedPorts(settings) as held:
                running = await self._start(settings, held.ports, place)
                try:
                    seen = await self._watch(plan, running, held.ports, deadline, superseded)
                finally:
                    await running.stop(_STOP_GRACE_S)
            errors = await asyncio.to_thread(daprd.errors, place / _LOG, 0)
            warnings = await asyncio.to_thread(daprd.warnings, place / _LOG, 0)
        return msgspec.structs.replace(seen, errors=errors, warnings=warnings)

    @asynccontextmanager
    async def _files(self, plan: PreflightPlan) -> AsyncIterator[Path]:
        place = await asyncio.to_thread(self._make)
        try:
            await asyncio.to_thread(self._write, plan, place)
            yield place
        finally:
            await asyncio.to_thread(shutil.rmtree, place)

    def _make(self) -> Path:
        """A new directory for its owner only."""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self._directory))
        except OSError as error:
            raise _unwritable(self._directory, error) from error

    def _write(self, plan: PreflightPlan, place: Path) -> None:
        """Everything that a sidecar will load, for its owner only, before it starts."""
        try:
            for role in (RESOURCES, CONFIG):
                (place / role).mkdir(mode=0o700)
            for copy in plan.copies:
                file = resource_file(copy, self._launch.namespace)
                (place / file.key).touch(mode=0o600)
                (place / file.key).write_bytes(file.content)
        except OSError as error:
            raise _unwritable(place, error) from error

    async def _start(self, settings: SidecarSettings, ports: Ports, place: Path) -> Child:
        launch = msgspec.structs.replace(self._launch, resources=place / RESOURCES)
        config = next((place / CONFIG).iterdir(), None)
        words = daprd.argv(launch, settings, ports, config)
        return await child.start(words, env=daprd.environment(launch), log_file=place / _LOG)

    async def _watch(
        self, plan: PreflightPlan, running: Child, ports: Ports, deadline: float, superseded: Superseded
    ) -> PreflightReading:
        """Ask until the sidecar is up with everything, has ended, or its time is over."""
        api = SidecarApi(self._session, f"http://127.0.0.1:{ports.public}", f"http://127.0.0.1:{ports.metrics}")
        up_since: float | None = None
        while True:
            seen = PreflightReading(await api.get_status())
            now = self._clock.monotonic()
            if not running.running:
                ended = await running.wait()
                return PreflightReading(
                    exit_message=daprd.describe_exit(ended), external_cause=daprd.has_external_cause(ended)
                )
            if up_since is None and seen.healthy:
                up_since = now
            is_settled = up_since is not None and now - up_since > _SETTLE_S
            if passed(plan, seen) or is_settled or now > deadline or superseded():
                return seen
            await self._clock.sleep(_POLL_S)


def _loadable(planned: Plan, observed: Observed) -> Mapping[ResourceRef, Manifest]:
    """What is delivered to any of the sidecars, and the components that they find in foreign files beside it."""
    files = [file for key, file in observed.files.items() if key not in observed.journal.files]
    foreign = {resource_ref(each, observed.namespace): each for file in files for each in file.manifests}
    delivered = {each.ref: each.new for one in planned.sidecars for each in one.expected if each.new}
    return {**{ref: each for ref, each in foreign.items() if _is_found(ref, each, planned, observed)}, **delivered}


def _is_found(ref: ResourceRef, manifest: Manifest, planned: Plan, observed: Observed) -> bool:
    mine = ref.kind == "Component" and ref.namespace == observed.namespace
    return mine and any(in_scope(manifest, one.app_id) for one in planned.sidecars)


def _finding(verdict: Verdict, source: str, now: datetime, redactor: Redactor) -> Finding:
    return Finding(state=verdict.state, evidence=(Evidence(source, now, redactor.redact(verdict.text)),))


def _unwritable(place: Path, error: OSError) -> GovernorError:
    message = f"cannot write below {place}: {error.strerror}; free space there, or make it writable"
    return GovernorError(Kind.PRECONDITION, "preflight-files", message)
