"""The real command line against the real server, with scripted agents: the subject is what users see.

Commands run in the test process. Those that are interrupted, need a terminal or use TLS run in processes of their own.
"""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias
from unittest import mock

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from demo.programs import GovernorServer
from governor import yamltext
from governor.cli import main as command_line
from governor.client import Client, WatchSession
from governor.domain.bundles import Delivery, DeliveryPosition, refs
from governor.domain.documents import API_VERSION
from governor.domain.reports import Cause, Evidence, Report, ResourceReport, State
from governor.process.exit_codes import SUCCESS
from governor.values.secret import Secret
from governor.wire.credentials import encode_public_key, mint, read_join_token, read_public_key
from governor.wire.deliveries import open_delivery
from governor.wire.rest import EnrolRequest, TokenRequest
from testbed.commands import Outcome, Running
from tests.integration.server.bed import ServerBed

AnyServer: TypeAlias = GovernorServer | ServerBed
WITHIN_S = 60
UNREACHABLE = "http://127.0.0.1:1"
"""A URL at which no server listens."""


class _Captured(io.TextIOWrapper):
    """A standard stream that keeps what the thread that made it writes; a server in the same process may log."""

    def __init__(self, stream: TextIO) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def text(self) -> str:
        """Return what the thread has written."""
        self.flush()
        return self._bytes.getvalue().decode()


class CommandLine:
    """Runs ``governor`` in a directory with a token file."""

    def __init__(self, server: AnyServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.token_file = server.admin_token_file

    def write(self, name: str, *documents: Mapping[str, Any]) -> Path:
        """Write documents into one file."""
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("---\n".join(yamltext.dump(dict(each)) for each in documents))
        return file

    async def start(self, *words: str, **environment: str) -> Running:
        """Start one command in a process of its own."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "governor.cli.main", *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.directory,
            env=self._environment(environment),
        )
        return Running(process)

    async def run(self, *words: str, **environment: str) -> Outcome:
        """Run one command to its end; an empty environment variable is unset. One at a time."""
        if self.server.url.startswith("https:"):
            # Its event loop ends while a TLS connection closes, which only in a longer process is a warning.
            return await (await self.start(*words, **environment)).ended()
        return await asyncio.to_thread(self._run, words, self._environment(environment))

    def _run(self, words: Sequence[str], environment: Mapping[str, str]) -> Outcome:
        out, err = _Captured(sys.stdout), _Captured(sys.stderr)
        with (
            contextlib.chdir(self.directory),
            mock.patch.dict(os.environ, environment, clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = command_line.run(words)
        return Outcome(code, out.text(), err.text())

    async def run_on_terminal(self, *words: str) -> tuple[int, str]:
        """Run one command on a pseudo-terminal; return its exit code and its output."""
        return await asyncio.to_thread(self._on_terminal, words)

    def _on_terminal(self, words: Iterable[str]) -> tuple[int, str]:
        master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        command = [sys.executable, "-m", "governor.cli.main", *words]
        environment = self._environment({"TERM": "xterm"})
        with subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=self.directory, env=environment
        ) as process:
            os.close(slave)
            shown = b"".join(iter(lambda: _read_terminal(master), b""))
            os.close(master)
            return process.wait(WITHIN_S), shown.decode()

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        settings = {"GOVERNOR_SERVER": self.server.url, "GOVERNOR_TOKEN_FILE": str(self.token_file), **given}
        variables = {name: value for name, value in settings.items() if value}
        return {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **variables}


def _read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the last writer has closed the terminal
        return b""


class ScriptedAgent:
    """An agent that enrols as a runtime and reports given states for each delivery."""

    def __init__(self, server: AnyServer, runtime: str) -> None:
        self.runtime = runtime
        self._server = server
        self._key = Ed25519PrivateKey.generate()
        self._delivery_key = self._key.public_key()
        self._session = self._reports = 0
        self.cause: Cause | None = None
        self.waits = False
        """Whether the windows and the hold of a delivery restrain it."""

    @asynccontextmanager
    async def reporting(self, *states: State, after: int = 0) -> AsyncIterator[None]:
        """Watch inside the block and report each of ``states`` in order for each delivery after ``after``."""
        opened = asyncio.Event()
        task = asyncio.create_task(self._watch(states, after, lambda _: opened.set()))
        try:
            async with asyncio.timeout(WITHIN_S):
                await opened.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def enrol(self) -> None:
        """Enrol with a one-time token."""
        async with self._server.client() as admin:
            join = read_join_token(Secret((await admin.create_token(TokenRequest(runtime=self.runtime))).text))
        async with Client(join.server, None) as client:
            request = EnrolRequest(self.runtime, join.secret, encode_public_key(self._key.public_key()))
            self._delivery_key = read_public_key((await client.enrol(request)).delivery_key)

    async def _watch(self, states: Iterable[State], after: int, on_open: Callable[[WatchSession], None]) -> None:
        credential = partial(mint, self.runtime, self._key)

        def opened(session: WatchSession) -> None:
            self._session = session.number
            on_open(session)

        held = DeliveryPosition("", after)
        async with (
            Client(self._server.url, lambda: credential(datetime.now(UTC))) as client,
            aclosing(client.watch(self.runtime, held, on_open=opened)) as deliveries,
        ):
            async for signed in deliveries:
                delivery = open_delivery(signed, self._delivery_key)
                for state in states:
                    await client.report(self._report(delivery, state))

    def _report(self, delivery: Delivery, state: State) -> Report:
        self._reports += 1
        now = datetime.now(UTC)
        evidence = (Evidence("scripted sidecar", now, f"seen as {state}"),)
        cause = self.cause if state is State.FAILED else None
        found = tuple(
            ResourceReport(state=state, evidence=evidence, resource=ref, cause=cause)
            for ref in refs(delivery.resources)
        )
        return Report(
            runtime=self.runtime,
            sequence=delivery.sequence,
            attempt=delivery.attempt,
            digest=delivery.digest,
            session=self._session,
            n=self._reports,
            time=now,
            agent="scripted",
            resources=found,
            workloads=(),
            restraint=delivery.restart_restraint(now) if self.waits else None,
        )


async def governed(governor: CommandLine, name: str) -> ScriptedAgent:
    """Create a runtime with the command line and enrol an agent for it; the agent reports nothing yet."""
    governor.write(f"{name}.runtime.yaml", runtime(name))
    created = await governor.run("apply", "-f", f"{name}.runtime.yaml", "--no-wait")
    assert created.code == SUCCESS, created.err
    agent = ScriptedAgent(governor.server, name)
    await agent.enrol()
    return agent


def runtime(name: str) -> dict[str, Any]:
    """Return a Runtime document."""
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": {"name": name}, "spec": {"platform": "local"}}


def profile(name: str, selected: str | None, value: str = "one", **spec: Any) -> dict[str, Any]:
    """Return a Profile with one component, for one runtime or for all."""
    component = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": "store"},
        "spec": {"type": "state.in-memory", "version": "v1", "metadata": [{"name": "note", "value": value}]},
    }
    contents = {"selector": {"runtime": selected} if selected else {}, "resources": [component], **spec}
    return {"apiVersion": API_VERSION, "kind": "Profile", "metadata": {"name": name}, "spec": contents}
