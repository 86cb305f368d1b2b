"""Where an agent is at home: its durable state and its platform. One implementation for each platform."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from governor.agent.platform import InventorySource, Platform
from governor.agent.state.agent_state import Blobs
from governor.process.telemetry.health import Checks
from governor.process.telemetry.instruments import Registry


class Identity(NamedTuple):
    """The runtime of an agent, and the private key of its identity."""

    runtime: str
    key: bytes


class Home(Protocol):
    """The durable state of an agent, and the platform that it manages."""

    @property
    def epoch(self) -> int:
        """A number that increases with each process that takes over the state; 0 where a process has it alone."""
        ...

    @property
    def blobs(self) -> Blobs:
        """The named values of the agent's durable state."""
        ...

    @property
    def inventory(self) -> InventorySource | None:
        """The inventory of the open platform; None if the platform has none."""
        ...

    def open(self, identity: Identity, on_change: Callable[[], None]) -> AbstractAsyncContextManager[Platform]:
        """Open the platform; ``on_change`` is called when it must be reconciled."""
        ...

    def add_checks(self, checks: Checks, registry: Registry) -> None:
        """Add the health checks of the open platform, and its metrics."""
        ...
