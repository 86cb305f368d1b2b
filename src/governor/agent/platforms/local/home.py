"""The home of an agent on a machine: a locked state directory, and the sidecars of the settings."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp

from governor.agent.home import Identity
from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.platform import LocalPlatform
from governor.agent.platforms.local.sidecars import daprd
from governor.agent.platforms.local.sidecars.external import ExternalSidecar
from governor.agent.platforms.local.sidecars.preflight_runner import PreflightRunner
from governor.agent.platforms.local.sidecars.sidecar import Sidecar
from governor.agent.platforms.local.sidecars.verifier import AnySidecar
from governor.agent.platforms.local.storage import Storage
from governor.agent.settings import Settings
from governor.agent.state.file_blobs import FileBlobs
from governor.process.clock import Clock
from governor.process.telemetry.health import Checks
from governor.process.telemetry.instruments import Gauge, Registry


class LocalHome:
    """The state directory and the sidecars of one machine."""

    def __init__(self, settings: Settings, storage: Storage, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.storage = storage
        self.blobs = FileBlobs(storage.directory)
        self.epoch = 0
        self.sidecars: tuple[AnySidecar, ...] = ()
        self.inventory = None

    @contextlib.asynccontextmanager
    async def open(
        self,
        identity: Identity,
        on_change: Callable[[], None],
    ) -> AsyncIterator[LocalPlatform]:
        """Adopt the running sidecars and yield the platform."""
        async with aiohttp.ClientSession() as session:
            platform = self._platform(session, on_change)
            await platform.adopt(self.storage.directory)
            yield platform

    def _platform(self, session: aiohttp.ClientSession, on_change: Callable[[], None]) -> LocalPlatform:
        settings, storage, clock = self._settings, self.storage, self._clock
        directory = ResourceDirectory(settings.resources.absolute(), storage)
        directory.prepare()
        launch = daprd.Launch(
            daprd.find_program(settings.daprd),
            directory.resources,
            settings.namespace,
            storage.directory,
            stop_with_agent=settings.stop_sidecars_on_exit,
        )
        self.sidecars = tuple(
            ExternalSidecar(each, directory.resources, session, clock, on_change=on_change)
            if each.external
            else Sidecar(each, launch, storage, session, clock, on_change=on_change)
            for each in settings.sidecars
        )
        preflight = PreflightRunner(launch, storage.directory / "preflight", session, clock)
        return LocalPlatform(settings.namespace, directory, self.sidecars, preflight, clock, on_change=on_change)

    def add_checks(self, checks: Checks, registry: Registry) -> None:
        """Add a check of each sidecar: the agent is ready when all of them run, with or without a server."""
        help_text = "Whether the sidecar's process is running."
        up = Gauge("governor_agent_sidecar_up", help_text, ["app_id"], registry=registry)
        for each in self.sidecars:
            checks.ready(f"sidecar {each.app_id}", each.not_ready)
            up.labels(each.app_id).set_function(each.is_up)


@contextlib.contextmanager
def local_home(settings: Settings, clock: Clock) -> Iterator[LocalHome]:
    """Lock the state directory and yield the home."""
    storage = Storage(settings.state.absolute())
    storage.prepare()
    with storage.locked():
        yield LocalHome(settings, storage, clock)
