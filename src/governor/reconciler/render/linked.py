"""The linked renderer: a process with the engine of Helm, which renders one chart after the other."""

import asyncio
import os
import signal
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.process.child import piped
from governor.process.child.piped import Piped
from governor.reconciler.render import frames, generated
from governor.reconciler.render.documents import checked
from governor.reconciler.render.lanes import TIMEOUT_CODE
from governor.reconciler.render.request import LookupCall, Rendered, Request

PROGRAM: Final = "governor-renderer"
_MEMORY_EXIT_CODE: Final = 3
_START_S: Final = 30.0
EXITED: Final = "renderer-exited"
"""Code of the error for a renderer that ended by itself or was killed."""
_STOP_S: Final = 1.0


class Limits(msgspec.Struct, frozen=True):
    """Limits of one rendering."""

    timeout_s: float = 30.0
    memory_mib: int = 512


def out_of_memory(limits: Limits) -> GovernorError:
    """Return the error for a chart that needs more memory than allowed."""
    message = f"rendering the chart needs more than {limits.memory_mib} MiB of memory"
    return GovernorError(Kind.EXHAUSTED, "render-memory", message)


def timed_out(limits: Limits) -> GovernorError:
    """Return the error for a chart that takes longer than allowed."""
    message = f"the chart is not rendered within {limits.timeout_s:g} s: look for a loop in its templates"
    return GovernorError(Kind.DEADLINE, TIMEOUT_CODE, f"{message}, or for lookups in a slow cluster")


async def start(program: str, limits: Limits) -> "RendererProcess":
    """Start a renderer and wait until it is ready."""
    # One thread suffices, and UTC makes dates equal on every machine.
    env = {"PATH": os.defpath, "GOMAXPROCS": "1", "GOTRACEBACK": "none", "TZ": "UTC"}
    child = await piped.start([program, f"-memory-mib={limits.memory_mib}"], env=env)
    process = RendererProcess(child, limits)
    try:
        async with asyncio.timeout(_START_S):
            frames.check_ready(await process.receive())
    except TimeoutError as error:
        await process.stop()
        raise GovernorError(Kind.UNAVAILABLE, "renderer-start", f"{program} does not become ready") from error
    except BaseException:
        await process.stop()
        raise
    return process


class RendererProcess:
    """A running renderer. After an error that is not the chart's, ``is_usable`` is False: stop it."""

    def __init__(self, child: Piped, limits: Limits) -> None:
        self.pid = child.process.pid
        self.is_usable = True
        self.has_answered = False
        """Whether it has answered the present request at all."""
        self._child = child
        self._limits = limits

    async def render(self, request: Request) -> Rendered:
        """Render a chart within the limits."""
        recording = generated.read_recording(request.recording)
        rendered = await self._render(request)
        if not recording.leaves or rendered.recording is None:
            return rendered
        # Recorded by Helm's command: what differs without a recording is generated, and keeps its value.
        fresh = await self._render(msgspec.structs.replace(request, recording=None))
        return generated.keep(rendered, fresh, recording)

    async def _render(self, request: Request) -> Rendered:
        frame = frames.encode_request(request)
        self.is_usable = self.has_answered = False
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                body = await self._converse(request, frame)
        except TimeoutError as error:
            raise timed_out(self._limits) from error
        self.is_usable = True
        return checked(frames.decode_result(body))

    async def _converse(self, request: Request, frame: bytes) -> bytes:
        """Send a request, answer the lookups that it causes, and return the last frame."""
        while True:
            await self._send(frame)
            body = await self.receive()
            call = frames.decode_call(body)
            if call is None:
                return body
            frame = await _answer(request, call)

    async def receive(self) -> bytes:
        """Return the body of the next frame."""
        reader = self._child.reader
        try:
            body = await reader.readexactly(frames.body_length(await reader.readexactly(frames.HEAD_BYTES)))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._ended() from error
        self.has_answered = True
        return body

    async def _send(self, frame: bytes) -> None:
        try:
            self._child.writer.write(frame)
            await self._child.writer.drain()
        except ConnectionError as error:
            raise await self._ended() from error

    async def _ended(self) -> GovernorError:
        """Return the error for a renderer that has exited."""
        ended = await self._child.stop(_STOP_S)
        if ended.code == _MEMORY_EXIT_CODE:
            return out_of_memory(self._limits)
        return GovernorError(Kind.UNAVAILABLE, EXITED, f"the renderer {ended.summary}")

    @property
    def is_running(self) -> bool:
        """Whether the process has not exited."""
        return self._child.process.running

    def kill(self) -> None:
        """Kill the process without waiting for its end: it has nothing to save."""
        self._child.writer.close()
        self._child.process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        """Kill the process: it has nothing to save."""
        await self._child.stop(0)


async def _answer(request: Request, call: LookupCall) -> bytes:
    if request.lookup is None:
        raise GovernorError(
            Kind.INTERNAL, "renderer-protocol", "the renderer requested an object although it may look up none"
        )
    try:
        return frames.encode_answer(await request.lookup(call))
    except GovernorError as error:
        if error.kind in (Kind.UNAVAILABLE, Kind.DEADLINE):
            raise
        return frames.encode_answer(None, str(error))
