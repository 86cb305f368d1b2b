"""One throw-away sidecar: a daprd that is started before it is decided what it loads.

Half of daprd's start is over before it reads its flags, so the agent starts it at once and decides meanwhile. daprd
waits at its Configuration, which is a named pipe, until the resources are written and the Configuration is sent.
"""

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec

from governor.agent.platforms.local.files import RESOURCES, is_config, resource_file
from governor.agent.platforms.local.sidecars import daprd
from governor.agent.platforms.local.sidecars.ports import ReservedPorts
from governor.agent.settings import SidecarSettings
from governor.agent.verification.preflight_plan import PreflightReading
from governor.agent.verification.sidecar_api import SidecarApi, get_over_http
from governor.errors import GovernorError, Kind
from governor.process.child import detached
from governor.process.child.detached import Detached
from governor.values.trees import Manifest

_STOP_GRACE_S: Final = 2.0
_LOG: Final = "daprd.log"
_PIPE: Final = "config.yaml"


class ThrowAwaySidecar:
    """A running throw-away sidecar. Leaving the context stops it and removes its files."""

    def __init__(
        self,
        namespace: str,
        directory: Path,
        reserved: ReservedPorts,
        running: Detached,
        session: aiohttp.ClientSession,
    ) -> None:
        self._namespace = namespace
        self._directory = directory
        self._reserved = reserved
        self._running = running
        self._api = SidecarApi(get_over_http(session), f"http://127.0.0.1:{reserved.ports.public}", metrics="")
        self._waits = True
        self._unsent = b""
        self._pipe: int | None = None

    @classmethod
    async def start(cls, launch: daprd.Launch, below: Path, app_id: str, session: aiohttp.ClientSession) -> Self:
        """Start one in a new directory that only this user can read."""
        directory = await asyncio.to_thread(_make_directory, below)
        settings = SidecarSettings(app_id)
        own = msgspec.structs.replace(launch, resources=directory / RESOURCES)
        try:
            reserved = ReservedPorts(settings)
        except BaseException:
            shutil.rmtree(directory)
            raise
        try:
            argv = daprd.argv(own, settings, reserved.ports, directory / _PIPE)
            # Not a child: asyncio forks, which copies the agent's page tables.
            running = await detached.start(argv, env=daprd.throw_away_environment(own), log_file=directory / _LOG)
        except BaseException:
            reserved.close()
            shutil.rmtree(directory)
            raise
        return cls(launch.namespace, directory, reserved, running, session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            # Until it has its Configuration it waits in a system call and does not respond to SIGTERM.
            await self._running.stop(0.0 if self._waits else _STOP_GRACE_S)
        finally:
            self._close_pipe()
            self._reserved.close()
            await asyncio.to_thread(shutil.rmtree, self._directory)

    async def load(self, copies: Sequence[Manifest]) -> None:
        """Write what it loads; ``read`` sends the Configuration, of which there must be one."""
        files = (resource_file(each, self._namespace) for each in copies)
        resources = {each.key: each.content for each in files}
        self._unsent = next(resources.pop(key) for key in tuple(resources) if is_config(key))
        await asyncio.to_thread(self._write, resources)

    def _write(self, contents: dict[str, bytes]) -> None:
        try:
            for key, content in contents.items():
                (self._directory / key).touch(mode=0o600)
                (self._directory / key).write_bytes(content)
        except OSError as error:
            raise _unwritable(self._directory, error) from error

    async def read(self) -> PreflightReading:
        """Return its state at this moment."""
        reading = PreflightReading(await self._api.get_status() if self._is_configured() else None)
        if self._running.running:
            return reading
        exited = await self._running.wait()
        return PreflightReading(
            exit_message=daprd.describe_exit(exited), external_cause=daprd.has_external_cause(exited)
        )

    def _is_configured(self) -> bool:
        """Send the rest of the Configuration as far as daprd takes it; return whether it has all of it."""
        try:
            if self._unsent and self._pipe is None:
                self._pipe = os.open(self._directory / _PIPE, os.O_WRONLY | os.O_NONBLOCK)
            if self._unsent and self._pipe is not None:
                self._unsent = self._unsent[os.write(self._pipe, self._unsent) :]
        except BlockingIOError:
            return False
        except OSError as error:
            # It has not opened the pipe yet, or it has exited, which the next reading shows.
            if error.errno not in (errno.ENXIO, errno.EPIPE):
                raise
            return False
        if self._unsent:
            return False
        self._waits = False
        self._close_pipe()
        return True

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    async def finish(self, reading: PreflightReading) -> PreflightReading:
        """Stop it and return the last reading with what it has logged; its files stay until the context is left."""
        _, (errors, warnings) = await asyncio.gather(
            self._running.stop(_STOP_GRACE_S), asyncio.to_thread(_logged, self._directory / _LOG)
        )
        return msgspec.structs.replace(reading, errors=errors, warnings=warnings)


def _make_directory(below: Path) -> Path:
    try:
        below.mkdir(mode=0o700, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=below))
        (directory / RESOURCES).mkdir(mode=0o700)
        os.mkfifo(directory / _PIPE, mode=0o600)
    except OSError as error:
        raise _unwritable(below, error) from error
    return directory


def _logged(log_file: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the errors and the warnings in a log. Blocking."""
    return daprd.errors(log_file, 0), daprd.warnings(log_file, 0)


def _unwritable(directory: Path, error: OSError) -> GovernorError:
    message = f"cannot write below {directory}: {error.strerror}; free space there, or make it writable"
    return GovernorError(Kind.PRECONDITION, "preflight-files", message)
