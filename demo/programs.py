"""The programs of the scenario as test bed servers: each runs as its own process, with its command line."""

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
    """Return whether a GET succeeds."""
    try:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            return answer.status < 400
    except (aiohttp.ClientError, TimeoutError):
        return False


class Program(Server):
    """A Python program of this repository."""

    def environment(self) -> dict[str, str]:
        """Add the repository to the path: the demo is not part of the distribution."""
        return {**super().environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


class GovernorServer(Program):
    """``governor server`` with an empty data directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__("governor-server", directory, ["api", "health"])

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self.ports['api']}"

    @property
    def data_dir(self) -> Path:
        """Its data directory."""
        return self.directory / "data"

    @property
    def admin_token_file(self) -> Path:
        """The file with the admin token."""
        return self.data_dir / "admin.token"

    def client(self) -> Client:
        """Return a client with the admin token."""
        token = Secret(self.admin_token_file.read_text().strip())
        return Client(self.url, lambda: token)

    def command(self) -> list[str]:
        """Return the command line."""
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
        """Return whether ``/readyz`` succeeds."""
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
        """Write the one-time token to the file that the settings name."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.join_token_file.touch(mode=0o600)
        self.join_token_file.write_text(token + "\n")

    def settings(self) -> dict[str, Any]:
        """Return the content of the settings file."""
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
        """Write the settings file and return the command line."""
        file = self.directory / "agent.yaml"
        file.write_text(yamltext.dump(self.settings()))
        return [sys.executable, "-m", "governor.cli.main", "agent", f"--config={file}"]

    async def is_ready(self) -> bool:
        """Return whether it is alive; the scenario reads the runtime's state from the server."""
        return await answers(f"http://127.0.0.1:{self.ports['health']}/healthz")


class OrderApp(Program):
    """The order application. It chooses its sidecar's port, before the sidecar exists."""

    def __init__(self, directory: Path) -> None:
        super().__init__("order-app", directory, ["app", "dapr"])

    @property
    def url(self) -> str:
        """The URL of the application."""
        return f"http://127.0.0.1:{self.ports['app']}"

    def command(self) -> list[str]:
        """Return the command line."""
        ports = [f"--port={self.ports['app']}", f"--dapr-port={self.ports['dapr']}"]
        return [sys.executable, "-m", "demo.order_app", *ports]

    async def is_ready(self) -> bool:
        """Return whether it listens; orders need its sidecar, which starts later."""
        return await answers(f"{self.url}/healthz")


class OrderDesk(Program):
    """The external order service behind the HTTP binding."""

    def __init__(self, directory: Path, redis: Redis) -> None:
        super().__init__("order-desk", directory, ["desk"])
        self._redis = redis

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://127.0.0.1:{self.ports['desk']}"

    def environment(self) -> dict[str, str]:
        """Add the password: a command line is readable by other users."""
        return {**super().environment(), "ORDER_DESK_REDIS_PASSWORD": self._redis.password}

    def command(self) -> list[str]:
        """Return the command line."""
        ports = [f"--port={self.ports['desk']}", f"--redis-port={self._redis.port}"]
        return [sys.executable, "-m", "demo.order_desk", *ports]

    async def is_ready(self) -> bool:
        """Return whether it reaches its Redis."""
        return await answers(f"{self.url}/order")
