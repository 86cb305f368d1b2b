"""A runtime proxy process in front of a runtime."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import aiohttp

from testbed.commands import Outcome, Running
from testbed.cri.control import Json
from testbed.server import Server, short_socket
from testbed.waiting import until
from toolchain.errors import TestbedError

_POLL_S = 0.05
"""The metrics are rendered for each poll; the proxy itself polls its plugin directory every half second."""
_PLUGIN_WITHIN_S = 30
"""Default timeout of plugins: the proxy's own default of two seconds is too short on a busy machine."""


class RuntimeProxy(Server):
    """``governor runtime-proxy`` in front of a runtime, with directories for plugins and policies."""

    def __init__(self, directory: Path, runtime: Path, *arguments: str) -> None:
        super().__init__("runtime-proxy", directory, ["health"])
        self.socket = short_socket(directory / "proxy.sock", "-control")
        self.plugins = directory / "hookserver.d"
        self.policies = directory / "policies.d"
        self._runtime = runtime
        self._arguments = arguments
        self.variables: dict[str, str] = {}
        self._shown_from = 0
        self._successor = 0
        """The process that replaced the one started here; it is not a child of this process."""

    @property
    def pid(self) -> int:
        """The process id of the proxy that serves."""
        return self._successor or super().pid

    async def upgrade(self) -> int:
        """Replace the proxy by another process, and return the id of the replaced one when the new one serves."""
        replaced = self.pid
        outcome = await self.run_command("upgrade")
        if outcome.code != 0:
            raise TestbedError(f"the proxy was not replaced: {outcome.err}")
        self._successor = int(outcome.out.split()[1])
        return replaced

    async def stop(self) -> None:
        """Terminate the proxy, and the processes that it was replaced by."""
        await self._signal_successor(signal.SIGTERM)
        await super().stop()

    async def kill(self) -> None:
        """Kill the proxy, and the processes that it was replaced by."""
        await self._signal_successor(signal.SIGKILL)
        await super().kill()

    async def _signal_successor(self, number: signal.Signals) -> None:
        pid, self._successor = self._successor, 0
        if pid:
            os.kill(pid, number)
            await ended(pid)

    def environment(self) -> dict[str, str]:
        """Add the variables that a service manager would set."""
        return {**super().environment(), **self.variables}

    def command(self) -> list[str]:
        """Return the command line."""
        return [
            *(sys.executable, "-m", "governor.cli.main", "runtime-proxy"),
            f"--koord-runtimeproxy-endpoint=unix://{self.socket}",
            f"--remote-runtime-service-endpoint={self._runtime}",
            f"--hook-server-dir={self.plugins}",
            f"--policy-dir={self.policies}",
            f"--plugin-timeout={_PLUGIN_WITHIN_S}",
            f"--health-listen=127.0.0.1:{self.ports['health']}",
            *self._arguments,
        ]

    async def start_command(self, *words: str) -> Running:
        """Start a subcommand that connects to the proxy, with the proxy's own flags."""
        process = await asyncio.create_subprocess_exec(
            *(*self.command(), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.environment(), "PYTHONUNBUFFERED": "1"},
        )
        return Running(process)

    async def run_command(self, *words: str) -> Outcome:
        """Run such a subcommand to its end."""
        return await (await self.start_command(*words)).ended()

    async def is_ready(self) -> bool:
        """Return whether the proxy serves; the runtime may be unavailable."""
        return self.socket.exists() and b'"serving"' in self.log.read_bytes()[self._log_start :]

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a GET on the health server."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.ports['health']}{path}") as answer,
        ):
            return answer.status, await answer.text()

    async def metric(self, name: str) -> float:
        """Return the value of a metric, named with its labels as exposed; 0 if missing."""
        return (await self.metrics()).get(name, 0.0)

    async def metrics(self) -> dict[str, float]:
        """Return the values of all metrics, named with their labels as exposed."""
        _, text = await self.get("/metrics")
        return {name: float(value) for name, value in re.findall(r"^([^#\s].*) (\S+)$", text, re.MULTILINE)}

    async def wait_for_metric(self, name: str, value: float) -> None:
        """Wait until a metric has this value."""

        async def has_value() -> bool:
            return await self.metric(name) == value

        await until(has_value, every_s=_POLL_S)

    async def wait_for_plugins(self, plugins: int) -> None:
        """Wait until this many plugins are registered."""
        await self.wait_for_metric("governor_proxy_plugins", plugins)

    async def wait_for_policies(self, policies: int) -> None:
        """Wait until this many policies are in force."""
        await self.wait_for_metric("governor_proxy_policies", policies)

    def logged(self) -> str:
        """Return the log, of which a new user of a running proxy sees only what follows ``forget_log``."""
        return self.log.read_bytes()[self._shown_from :].decode()

    def forget_log(self) -> None:
        """Leave out the log up to now."""
        self._shown_from = self.log.stat().st_size

    def lines(self, event: str) -> list[Json]:
        """Return the log lines of one event."""
        whole = self.logged().rpartition("\n")[0]  # the last line may be incomplete
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    async def wait_for_lines(self, event: str, count: int = 1) -> list[Json]:
        """Wait until an event was logged this many times, and return its lines; the proxy writes them in a thread."""

        async def logged() -> list[Json] | None:
            lines = self.lines(event)
            return lines if len(lines) >= count else None

        return await until(logged) or []

    def resident_bytes(self) -> int:
        """Return the resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmRSS:")[2].split()[0])

    async def wait_for_exit(self) -> int:
        """Wait until the proxy exits, and return its exit code."""
        if self._process is None:
            raise AssertionError("the proxy is not running")
        async with asyncio.timeout(120):
            return await self._process.wait()


async def ended(pid: int) -> None:
    """Wait until a process has exited that need not be a child of this one."""

    async def is_gone() -> bool:
        return _has_exited(pid)

    await until(is_gone)


def _has_exited(pid: int) -> bool:
    """Return whether a process has exited, even if its parent does not know yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
