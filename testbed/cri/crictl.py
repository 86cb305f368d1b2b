"""crictl, the command line that people debug nodes with, as it is: built from its Go module."""

import asyncio
import re
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

from testbed.recipes import provide
from testbed.waiting import until
from toolchain.errors import TestbedError

_ANSWER_WITHIN_S = 120.0
_CALL_WITHIN_S = 60
"""For each call of the runtime, of which crictl makes some; by itself it gives a call two seconds."""


class Crictl:
    """crictl on one socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def __call__(self, *arguments: str) -> str:
        """Run a command and return its output; raise if it fails."""
        process = await self.start(*arguments)
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            printed, complaints = await process.communicate()
        if process.returncode != 0:
            raise TestbedError(f"crictl {' '.join(arguments)} failed: {complaints.decode()}{printed.decode()}")
        return printed.decode()

    async def read_from_port(self, pod_id: str, port: int) -> bytes:
        """Return what a port-forwarded connection to a port of a pod reads, once a server listens there."""
        return await until(lambda: self._read_from_port(pod_id, port))

    async def _read_from_port(self, pod_id: str, port: int) -> bytes:
        forward = await self.start("port-forward", pod_id, f":{port}")
        if forward.stdout is None:
            raise TestbedError("crictl port-forward has no output")
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                told = await forward.stdout.readline()
                local = re.search(rb"127\.0\.0\.1:(\d+)", told)
                if local is None:
                    raise TestbedError(f"crictl port-forward does not say where: {told!r}")
                return await _read(int(local[1]))
        finally:
            with suppress(ProcessLookupError):  # it ends itself when it cannot connect to the pod
                forward.kill()
            await forward.communicate()

    async def start(self, *arguments: str) -> Process:
        """Start a command with pipes."""
        endpoint = f"unix://{self._socket}"
        endpoints = [f"--runtime-endpoint={endpoint}", f"--image-endpoint={endpoint}"]
        options = ["--config=/dev/null", f"--timeout={_CALL_WITHIN_S}s", *endpoints]
        binary = str(provide(["crictl"])["crictl"])
        return await asyncio.create_subprocess_exec(
            binary, *options, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env={}
        )


async def _read(local_port: int) -> bytes:
    """Return everything received; empty if the other end refuses the connection."""
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection("127.0.0.1", local_port)
        try:
            return await reader.read()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    return b""
