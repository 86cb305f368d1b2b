"""The programs of the scenario as servers of the test bed: each a process of its own, started as a person would."""

import sys
from pathlib import Path
from typing import Any

import aiohttp

from governor import yamltext
from governor.client import Client
from governor.values.secret import Secret
from testbed.redis import Redis
from testbed.server import Server

ROOT = Path(__file__).parents[1]
APP_ID = "nodeapp"


async def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return answer.status < 400
    except (aiohttp.ClientError, TimeoutError):
        return False


class Program(Server):
    """A Python program of this repository."""

    def environment(self) -> dict[str, str]:
        """Programs of the demo are modules of the repository, not of the distribution."""
        return {**super().environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


class GovernorServer(Program):
    """``governor server`` with an empty data directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__("governor-server", directory, ["api", "health"])

    @property
    def url(self) -> str:
        """Where its API answers."""
        return f"http://127.0.0.1:{self.ports['api']}"

    @property
    def data_dir(self) -> Path:
        """What it keeps."""
        return self.directory / "data"

    @property
    def admin_token_file(self) -> Path:
        """The file with the first token."""
        return self.data_dir / "admin.token"

    def client(self) -> Client:
        """A client with the first admin's rights."""
        token = Secret(self.admin_token_file.read_text().strip())
        return Client(self.url, lambda: token)

    def command(self) -> list[str]:
        """The server on the ports chosen."""
        listen = {
            "listen": f"127.0.0.1:{self.ports['api']}",
            "health-listen": f"127.0.0.1:{self.ports['health']}",
            "data-dir": self.data_dir,
        }
        return [
            sys.executable,
            "-m",
            "governor.cli.main",
            "server",
            *(f"--{key}={text}" for key, text in listen.items()),
        ]

    async def is_ready(self) -> bool:
        """Whether it says so itself."""
        return await answers(f"http://127.0.0.1:{self.ports['health']}/readyz")


class GovernorAgent(Program):
    """``governor agent --platform local`` with one sidecar for the order application."""

    def __init__(self, directory: Path, daprd: Path, app_port: int, dapr_port: int) -> None:
        super().__init__("governor-agent", directory, ["health", "grpc", "metrics", "public"])
        self._daprd = daprd
        self._app_port = app_port
        self._dapr_port = dapr_port
        self.join_token_file = directory / "join.token"
        self.state_dir = directory / "state"

    def join_with(self, token: str) -> None:
        """Leave the one-time token where the agent's settings point."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.join_token_file.touch(mode=0o600)
        self.join_token_file.write_text(token + "\n")

    def settings(self) -> dict[str, Any]:
        """The agent's settings file as a person would write it."""
        sidecar = {
            "app-id": APP_ID,
            "app-port": self._app_port,
            "http-port": self._dapr_port,
            "grpc-port": self.ports["grpc"],
            "metrics-port": self.ports["metrics"],
            "public-port": self.ports["public"],
        }
        return {
            "platform": "local",
            "state-dir": str(self.state_dir),
            "join-token-file": str(self.join_token_file),
            "daprd": str(self._daprd),
            "health-listen": f"127.0.0.1:{self.ports['health']}",
            "sidecars": [sidecar],
            "stop-sidecars-on-exit": True,
        }

    def command(self) -> list[str]:
        """The agent with its settings file."""
        file = self.directory / "agent.yaml"
        file.write_text(yamltext.dump(self.settings()))
        return [sys.executable, "-m", "governor.cli.main", "agent", f"--config={file}"]

    async def is_ready(self) -> bool:
        """Whether it lives; whether its runtime is as wanted is what the scenario asks the server."""
        return await answers(f"http://127.0.0.1:{self.ports['health']}/healthz")


class OrderApp(Program):
    """The order application. It chooses the port of its sidecar, which is not there yet when it starts."""

    def __init__(self, directory: Path) -> None:
        super().__init__("order-app", directory, ["app", "dapr"])

    @property
    def url(self) -> str:
        """Where it takes orders."""
        return f"http://127.0.0.1:{self.ports['app']}"

    def command(self) -> list[str]:
        """The application in front of its sidecar."""
        ports = [f"--port={self.ports['app']}", f"--dapr-port={self.ports['dapr']}"]
        return [sys.executable, "-m", "demo.order_app", *ports]

    async def is_ready(self) -> bool:
        """Whether it listens; it has no orders to give before it has a sidecar."""
        return await answers(f"{self.url}/healthz")


class OrderDesk(Program):
    """The external order service behind the HTTP binding."""

    def __init__(self, directory: Path, redis: Redis) -> None:
        super().__init__("order-desk", directory, ["desk"])
        self._redis = redis

    @property
    def url(self) -> str:
        """Where it keeps orders."""
        return f"http://127.0.0.1:{self.ports['desk']}"

    def environment(self) -> dict[str, str]:
        """A password has no place on a command line."""
        return {**super().environment(), "ORDER_DESK_REDIS_PASSWORD": self._redis.password}

    def command(self) -> list[str]:
        """The desk in front of its Redis."""
        ports = [f"--port={self.ports['desk']}", f"--redis-port={self._redis.port}"]
        return [sys.executable, "-m", "demo.order_desk", *ports]

    async def is_ready(self) -> bool:
        """Whether it reaches its Redis."""
        return await answers(f"{self.url}/order")
