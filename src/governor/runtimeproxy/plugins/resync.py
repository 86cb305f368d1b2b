"""What plugins have missed: notifications delivered late, and the state of the node after they have connected.

A plugin with failure policy ``Ignore`` at a hook after a call is not notified again by kubelet. If it certainly did not
receive a notification, because it could not be reached or its circuit was open, the notification is kept and delivered
when the plugin can be reached. What may have been received is not sent again; it is counted, and so is what does not
fit.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from governor.errors import GovernorError
from governor.process.clock import Clock
from governor.process.telemetry import logging
from governor.runtimeproxy.grpc.unary import UnaryClient
from governor.wire.hooks.points import Hook

SYNCHRONIZE: Final = "/governor.hooks.v1alpha1.Synchronization/Synchronize"
_CAPACITY: Final = 256
_UNSENT: Final = frozenset({"unreachable", "circuit-open"})
_STATUS: Final = "grpc-status"
_POLL_S: Final = 1.0
_TIMEOUT_S: Final = 10.0

_log = logging.get_logger(__name__)


class ResyncMetrics(Protocol):
    """Counters of notifications."""

    def count_missed(self, plugin: str, hook: Hook) -> None:
        """Count a notification that a plugin will never receive, or may not have received."""

    def count_late(self, plugin: str, hook: Hook) -> None:
        """Count a notification that was delivered late."""


class Backlog:
    """Notifications of one plugin that it did not receive, oldest first."""

    def __init__(self, plugin: str, metrics: ResyncMetrics) -> None:
        self._plugin = plugin
        self._metrics = metrics
        self._kept: deque[tuple[Hook, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, hook: Hook, message: bytes, error: GovernorError) -> None:
        """Keep a notification that failed, or count it."""
        if error.code not in _UNSENT:
            self._metrics.count_missed(self._plugin, hook)
            return
        if len(self._kept) == _CAPACITY:
            self._metrics.count_missed(self._plugin, self._kept.popleft()[0])
        self._kept.append((hook, message))

    def drop(self) -> None:
        """Count all: the plugin is no longer registered."""
        while self._kept:
            self._metrics.count_missed(self._plugin, self._kept.popleft()[0])

    async def deliver(self, client: UnaryClient) -> None:
        """Deliver all, as long as the plugin receives them; raise if it does not."""
        while self._kept:
            hook, message = self._kept[0]
            try:
                await client.call(hook.path, message, timeout_s=_TIMEOUT_S)
            except GovernorError as error:
                if error.code in _UNSENT:
                    raise
                self._metrics.count_missed(self._plugin, hook)
            else:
                self._metrics.count_late(self._plugin, hook)
            self._kept.popleft()


class Resynced(Protocol):
    """A plugin's client, as far as it is resynchronized."""

    @property
    def name(self) -> str:
        """The plugin's name."""

    @property
    def synchronizes(self) -> bool:
        """Whether the plugin asks for the state of the node."""

    @property
    def connection(self) -> UnaryClient:
        """The connection to the plugin."""

    @property
    def backlog(self) -> Backlog:
        """What the plugin has missed."""

    def circuit_open(self) -> str:
        """Return why the plugin must not be called now, or ``""``."""


class Resync:
    """Brings plugins up to date that can be reached again."""

    def __init__(self, clients: Callable[[], list[Resynced]], state: Callable[[], bytes], clock: Clock) -> None:
        self._clients = clients
        self._state = state
        self._clock = clock
        self._synchronized: dict[UnaryClient, int] = {}
        """The number of the connection on which a plugin has received the state."""
        self._last_errors: dict[str, str] = {}

    async def run(self) -> None:
        """Look after all plugins until cancelled."""
        while True:
            await self._clock.sleep(_POLL_S)
            await self.poll()

    async def poll(self) -> None:
        """Bring all plugins up to date that need it and can be called."""
        clients = self._clients()
        connections = {each.connection for each in clients}
        self._synchronized = {each: number for each, number in self._synchronized.items() if each in connections}
        for each in clients:
            if not each.circuit_open():
                await self._update(each)

    async def _update(self, client: Resynced) -> None:
        try:
            if client.synchronizes and not self._is_synchronized(client.connection):
                await self._synchronize(client)
            await client.backlog.deliver(client.connection)
        except GovernorError as error:
            self._log_once(client.name, error.message)
        else:
            self._last_errors.pop(client.name, None)

    async def _synchronize(self, client: Resynced) -> None:
        try:
            await client.connection.call(SYNCHRONIZE, self._state(), timeout_s=_TIMEOUT_S)
        except GovernorError as error:
            if error.code != _STATUS:
                raise
            # It has received the state; sending it again would not help.
            _log.warning("plugin rejected the state of the node", plugin=client.name, error=error.message)
        self._synchronized[client.connection] = client.connection.connections

    def _is_synchronized(self, connection: UnaryClient) -> bool:
        return connection.connected and self._synchronized.get(connection) == connection.connections

    def _log_once(self, plugin: str, error: str) -> None:
        if self._last_errors.get(plugin) != error:
            _log.warning("plugin cannot be resynchronized", plugin=plugin, error=error)
        self._last_errors[plugin] = error
