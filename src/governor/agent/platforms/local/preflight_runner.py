"""Runs throw-away sidecars on this machine, which load a change before any application's sidecar does.

One at a time, each in a temporary directory and with a deadline. After a crash of the agent the next one stops its
process as an orphan and removes its directory. ``verification.preflight_plan`` decides what it loads and proves.
"""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
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
from governor.process.child import detached
from governor.process.child.detached import Detached
from governor.process.clock import Clock
from governor.values.trees import Manifest

_SHARE: Final = 0.5
"""The share of the verification window that a preflight may take, within the limits below."""
_MIN_S: Final = 10.0
_MAX_S: Final = 60.0
_ATTEMPTS: Final = 2
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.05
_PAUSE_GROWTH: Final = 1.05
_SETTLE_S: Final = 0.5
"""How long a healthy sidecar may take to list everything, or to exit after all."""
_STOP_GRACE_S: Final = 2.0
_NAME_LENGTH: Final = 32
_LOG: Final = "daprd.log"


class PreflightRunner:
    """Runs the preflights of one agent, below one directory."""

    def __init__(self, launch: daprd.Launch, directory: Path, session: aiohttp.ClientSession, clock: Clock) -> None:
        self._launch = launch
        self._directory = directory
        self._session = session
        self._clock = clock
        self._latest: tuple[tuple[int, int], PreflightResult] | None = None

    def sweep(self) -> None:
        """Remove the files of a killed agent; call after its processes were stopped. Blocking."""
        for left in self._directory.iterdir() if self._directory.exists() else ():
            shutil.rmtree(left)

    async def check(
        self, planned: Plan, observed: Observed, delivery: Delivery, redactor: Redactor, superseded: Superseded
    ) -> PreflightResult:
        """Try what a plan changes. Without changes, return the earlier result of the same delivery."""
        attempt = (delivery.sequence, delivery.attempt)
        changed = {each.ref for one in planned.sidecars for each in one.expected if each.changed and each.new}
        if not changed:
            return self._latest[1] if self._latest and self._latest[0] == attempt else PreflightResult()
        if delivery.apply.preflight is Preflight.OFF:
            result = self._off(changed)
        else:
            app_id = f"{planned.sidecars[0].app_id[:_NAME_LENGTH]}-preflight-{secrets.token_hex(4)}"
            plan = plan_preflight(changed, _loadable(planned, observed), app_id)
            result = await self._try(plan, delivery.apply, redactor, superseded)
        if result.passed:
            self._latest = attempt, result
        return result

    def _off(self, changed: Iterable[ResourceRef]) -> PreflightResult:
        evidence = Evidence(AGENT, self._clock.now(), "applied without a preflight")
        return PreflightResult(dict.fromkeys(changed, Finding(state=State.RECEIVED, evidence=(evidence,))))

    async def _try(
        self, plan: PreflightPlan, policy: ApplyPolicy, redactor: Redactor, superseded: Superseded
    ) -> PreflightResult:
        limit_s = min(max(policy.verify_window_seconds * _SHARE, _MIN_S), _MAX_S)
        deadline = self._clock.monotonic() + limit_s
        reading = await self._conclusive(plan, deadline, superseded) if plan.tried else PreflightReading()
        if superseded():
            return PreflightResult(superseded=True)
        source, now = f"preflight {plan.app_id}", self._clock.now()
        verdicts = judge(plan, reading, f"not initialised within {limit_s:.0f} s")
        return PreflightResult({ref: _finding(verdict, source, now, redactor) for ref, verdict in verdicts.items()})

    async def _conclusive(self, plan: PreflightPlan, deadline: float, superseded: Superseded) -> PreflightReading:
        """Return a reading about the change: retry an exit with another cause, then compare with an empty sidecar."""
        reading = PreflightReading()
        for _ in range(_ATTEMPTS):
            reading = await self._run(plan, deadline, superseded)
            if conclusive(plan, reading) or superseded():
                return reading
        empty = await self._run(PreflightPlan(plan.app_id), deadline, superseded)
        if empty.healthy or superseded():
            return reading
        reason = empty.exit_message or "daprd did not become healthy"
        message = f"the preflight could not run, so nothing was applied: {reason}"
        raise GovernorError(Kind.UNAVAILABLE, "preflight-impossible", message)

    async def _run(self, plan: PreflightPlan, deadline: float, superseded: Superseded) -> PreflightReading:
        """Run a sidecar with the plan's files until it can be judged, then stop it and remove its files."""
        directory = await asyncio.to_thread(self._make_directory)
        try:
            await asyncio.to_thread(self._write, plan, directory)
            settings = SidecarSettings(plan.app_id)
            with ReservedPorts(settings) as reserved:
                running = await self._start(settings, reserved.ports, directory)
                try:
                    reading = await self._poll(plan, running, reserved.ports, deadline, superseded)
                finally:
                    await running.stop(_STOP_GRACE_S)
            errors, warnings = await asyncio.to_thread(_logged, directory / _LOG)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory)
        return msgspec.structs.replace(reading, errors=errors, warnings=warnings)

    def _make_directory(self) -> Path:
        """Create a temporary directory, mode 0700."""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self._directory))
        except OSError as error:
            raise _unwritable(self._directory, error) from error

    def _write(self, plan: PreflightPlan, directory: Path) -> None:
        """Write everything that the sidecar will load, mode 0600."""
        try:
            for role in (RESOURCES, CONFIG):
                (directory / role).mkdir(mode=0o700)
            for copy in plan.copies:
                file = resource_file(copy, self._launch.namespace)
                (directory / file.key).touch(mode=0o600)
                (directory / file.key).write_bytes(file.content)
        except OSError as error:
            raise _unwritable(directory, error) from error

    async def _start(self, settings: SidecarSettings, ports: Ports, directory: Path) -> Detached:
        launch = msgspec.structs.replace(self._launch, resources=directory / RESOURCES)
        config = next((directory / CONFIG).iterdir())
        argv = daprd.argv(launch, settings, ports, config)
        # Not a child: asyncio forks, which copies the agent's page tables.
        return await detached.start(argv, env=daprd.throw_away_environment(launch), log_file=directory / _LOG)

    async def _poll(
        self, plan: PreflightPlan, running: Detached, ports: Ports, deadline: float, superseded: Superseded
    ) -> PreflightReading:
        """Poll until the sidecar is healthy with everything loaded, has exited, or the deadline has passed."""
        api = SidecarApi(self._session, f"http://127.0.0.1:{ports.public}", metrics="")
        healthy_since: float | None = None
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = PreflightReading(await api.get_status())
            now = self._clock.monotonic()
            if not running.running:
                exited = await running.wait()
                return PreflightReading(
                    exit_message=daprd.describe_exit(exited), external_cause=daprd.has_external_cause(exited)
                )
            if healthy_since is None and reading.healthy:
                healthy_since = now
            is_settled = healthy_since is not None and now - healthy_since > _SETTLE_S
            if passed(plan, reading) or is_settled or now > deadline or superseded():
                return reading
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)


def _loadable(planned: Plan, observed: Observed) -> Mapping[ResourceRef, Manifest]:
    """Return what is delivered to any sidecar, and the components in foreign files that a sidecar loads."""
    files = [file for key, file in observed.files.items() if key not in observed.journal.files]
    foreign = {resource_ref(each, observed.namespace): each for file in files for each in file.manifests}
    delivered = {each.ref: each.new for one in planned.sidecars for each in one.expected if each.new}
    return {**{ref: each for ref, each in foreign.items() if _is_loaded(ref, each, planned, observed)}, **delivered}


def _is_loaded(ref: ResourceRef, manifest: Manifest, planned: Plan, observed: Observed) -> bool:
    is_component = ref.kind == "Component" and ref.namespace == observed.namespace
    return is_component and any(in_scope(manifest, one.app_id) for one in planned.sidecars)


def _logged(log_file: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the errors and the warnings in a log. Blocking."""
    return daprd.errors(log_file, 0), daprd.warnings(log_file, 0)


def _finding(verdict: Verdict, source: str, now: datetime, redactor: Redactor) -> Finding:
    return Finding(state=verdict.state, evidence=(Evidence(source, now, redactor.redact(verdict.text)),))


def _unwritable(directory: Path, error: OSError) -> GovernorError:
    message = f"cannot write below {directory}: {error.strerror}; free space there, or make it writable"
    return GovernorError(Kind.PRECONDITION, "preflight-files", message)
