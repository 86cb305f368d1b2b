"""Server and agent with a stderr that nothing reads. Tests of the runtime proxy's calls are in its own directory."""

import signal
import sys
from pathlib import Path

import pytest

from demo.programs import answers
from governor.wire.credentials import JoinToken
from testbed.pytest_plugin import StartServer
from testbed.server import Server
from tests.integration.unread_pipe import UnreadPipe

PROGRAMS = {
    "server": ["--listen=127.0.0.1:0", "--data-dir={tmp}/data"],
    "agent": ["--state-dir={tmp}/state", "--config={tmp}/agent.yaml", "--join-token-file={tmp}/join.token"],
}


class UnreadProgram(Server):
    """A program of ours whose stderr is a full pipe."""

    def __init__(self, program: str, directory: Path, pipe: UnreadPipe, daprd: Path) -> None:
        super().__init__(program, directory, ["health"])
        self._pipe = pipe
        self._arguments = [each.format(tmp=directory) for each in PROGRAMS[program]]
        if program == "agent":
            self._arguments.append(f"--daprd={daprd}")

    def command(self) -> list[str]:
        listen = f"--health-listen=127.0.0.1:{self.ports['health']}"
        command = [sys.executable, "-m", "governor.cli.main", self.name, listen, *self._arguments]
        return self._pipe.as_stderr(command)

    async def is_ready(self) -> bool:
        return await answers(f"http://127.0.0.1:{self.ports['health']}/healthz")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_whose_stderr_is_not_read_serves_and_stops(
    program: str, tmp_path: Path, daprd_binary: Path, start_server: StartServer
) -> None:
    (tmp_path / "agent.yaml").write_text("sidecars: []\n")
    (tmp_path / "join.token").write_text(JoinToken("http://127.0.0.1:9", "nowhere", "a-secret").encode().reveal())
    with UnreadPipe(tmp_path / "stderr") as pipe:
        pipe.fill()
        running = await start_server(UnreadProgram(program, tmp_path, pipe, daprd_binary))
        running.signal(signal.SIGTERM)

        assert await running.ended() == 0
        assert pipe.events() == []
