"""The platform contract on a machine: real daprd with files."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from governor.agent.home import Home, Identity
from governor.agent.platform import Platform
from governor.agent.platforms.local.home import local_home
from governor.agent.settings import Settings, SidecarSettings
from governor.domain.documents import Drift
from governor.domain.reports import SIDECAR, WorkloadRef
from governor.process.clock import SystemClock
from governor.values.trees import Manifest
from governor.yamltext import dump
from tests.contract.agent.platforms.bed import RUNTIME, Deliveries, ref, running_agent, store, texts
from tests.contract.agent.platforms.cases import PlatformCases
from tests.integration.agent.bed import fingerprint


class LocalBed:
    """Sidecars that the agent starts, and their files."""

    namespace = "default"

    def __init__(self, directory: Path, program: Path) -> None:
        suffix = secrets.token_hex(4)
        self.alpha, self.beta = f"alpha-{suffix}", f"beta-{suffix}"
        self.replicas = {self.alpha: 1, self.beta: 1}
        self._settings = Settings(
            state_dir=directory / "state",
            resources_dir=directory / "resources",
            daprd=program,
            sidecars=tuple(SidecarSettings(app_id=each) for each in self.replicas),
        )

    @asynccontextmanager
    async def open(self, on_change: Callable[[], None]) -> AsyncIterator[tuple[Home, Platform]]:
        """Open the home and the platform; the sidecars keep running afterwards."""
        with local_home(self._settings, SystemClock()) as home:
            async with home.open(Identity(RUNTIME, b""), on_change) as platform:
                yield home, platform

    async def stop(self) -> None:
        """Stop the sidecars: an agent without any stops those of an earlier one."""
        self._settings = Settings(state_dir=self._settings.state_dir, daprd=self._settings.daprd)
        async with self.open(lambda: None):
            pass

    def workload(self, app_id: str) -> WorkloadRef:
        """Return the sidecar with this app id."""
        return WorkloadRef(self.namespace, SIDECAR, app_id)

    async def settled(self) -> None:
        """Do nothing: a sidecar starts or ends only while the agent converges."""

    async def live_spec(self, name: str) -> Manifest | None:
        """Return the spec in a Component's file."""
        file = self._file(name)
        return yaml.safe_load(file.read_text())["spec"] if file.exists() else None

    async def versions(self) -> dict[str, str]:
        """Return what changes with each write of a file."""
        return {file.name: repr(fingerprint(file)) for file in self._settings.resources.iterdir()}

    async def tamper(self, name: str, value: str) -> None:
        """Edit a Component's file; with its former value it is the same text again."""
        content = yaml.safe_load(self._file(name).read_text())
        content["spec"]["metadata"][0]["value"] = value
        self._file(name).write_text(dump(content))

    def _file(self, name: str) -> Path:
        return self._settings.resources / f"component.{name}.yaml"


@pytest.fixture
async def bed(tmp_path: Path, daprd_binary: Path) -> AsyncIterator[LocalBed]:
    bed = LocalBed(tmp_path, daprd_binary)
    yield bed
    await bed.stop()


class TestLocalPlatform(PlatformCases):
    """All cases, and those that need a new process though nothing is written: in a cluster no pod is restarted."""

    async def test_drift_that_is_over_is_found_once_after_a_failure(self, bed: LocalBed) -> None:
        one, other = store("one", "1", bed.namespace, bed.alpha), store("other", "1", bed.namespace, bed.beta)
        async with running_agent(bed) as agent:
            delivery = Deliveries().next(one, other)
            assert (await agent.converge(delivery)).verified
            assert await agent.platform.find_drift(delivery, after_failure=True) is None
            await bed.tamper("one", "tampered")
            await bed.tamper("one", "1")
            assert await agent.platform.find_drift(delivery) is None
            past = await agent.platform.find_drift(delivery, after_failure=True)
            assert past is not None
            assert (past.is_past, list(past.texts), past.workloads) == (True, [ref(one)], (bed.workload(bed.alpha),))
            assert await agent.platform.find_drift(delivery, after_failure=True) is None
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            assert await agent.platform.find_drift(delivery, after_failure=True) is None

    async def test_drift_that_is_to_be_ignored_is_found_after_a_failure_until_it_is_over(self, bed: LocalBed) -> None:
        one = store("one", "1", bed.namespace, bed.alpha)
        async with running_agent(bed) as agent:
            delivery = Deliveries().next(one, drift=Drift.OFF)
            assert (await agent.converge(delivery)).verified
            await bed.tamper("one", "tampered")
            assert await agent.platform.find_drift(delivery) is None
            for after_failure in (True, False):
                drift = await agent.platform.find_drift(delivery, after_failure=after_failure)
                assert drift is not None
                assert (drift.is_past, list(drift.texts)) == (False, [ref(one)])
            await bed.tamper("one", "1")
            assert await agent.platform.find_drift(delivery) is None
            found = await agent.converge(delivery)
            assert found.verified, texts(found)
            await bed.tamper("one", "tampered")
            assert await agent.platform.find_drift(delivery) is None
