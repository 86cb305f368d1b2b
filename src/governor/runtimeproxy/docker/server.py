"""The server of the Docker Engine API: accepts clients and runs a session for each."""

from governor.runtimeproxy.docker.held import DockerHooks
from governor.runtimeproxy.docker.session import DockerSession
from governor.runtimeproxy.docker.sockets import PeerSocket
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.serving import DRAIN_S, SessionServer
from governor.runtimeproxy.upstream import Upstreams


class DockerServer(SessionServer[DockerSession]):
    """All client connections on one socket."""

    def __init__(
        self, endpoint: Endpoint, upstreams: Upstreams, hooks: DockerHooks, *, drain_s: float = DRAIN_S
    ) -> None:
        super().__init__(endpoint, drain_s=drain_s)
        self.upstreams = upstreams
        self.hooks = hooks
        self.budget = hooks.budget

    def count(self, *, copied: bool) -> int:
        """Return how many open connections there are; none is copied unread."""
        return 0 if copied else sum(not each.is_probe for each in self._sessions)

    def held_bytes(self) -> int:
        """Return the size of all held requests."""
        return sum(each.held.held_bytes for each in self._sessions if each.held is not None)

    def streams(self) -> int:
        """Return the number of requests in progress."""
        return sum(each.route is not None for each in self._sessions)

    def hooks_changed(self) -> int:
        """Return 0: every request is read, so no connection has to be replaced."""
        return 0

    def _accept(self) -> PeerSocket:
        session = DockerSession(self)
        self._sessions.add(session)
        return session.client
