"""The server of kubelet's socket: accepts clients and runs a session for each."""

from governor.runtimeproxy.cri.session import Hooks, PeerSocket, Session
from governor.runtimeproxy.endpoint import Endpoint
from governor.runtimeproxy.http2.byte_copy import ByteCopy
from governor.runtimeproxy.http2.connection import Limits
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.held_budget import PROCESSING_BYTES, HeldBudget
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.serving import DRAIN_S, SessionServer
from governor.runtimeproxy.upstream import Upstreams


class Splice(SessionServer[Session]):
    """All client connections on one socket."""

    def __init__(self, endpoint: Endpoint, upstreams: Upstreams, hooks: Hooks, *, drain_s: float = DRAIN_S) -> None:
        super().__init__(endpoint, drain_s=drain_s)
        self.upstreams = upstreams
        self.hooks = hooks
        self.budget = HeldBudget(Limits().max_held_total - PROCESSING_BYTES)

    @property
    def can_copy(self) -> bool:
        """Whether bytes may be copied without parsing: nothing is hooked or tapped, and there is one upstream."""
        return not self.hooks.active and not self.upstreams.has_image_service

    @property
    def is_notifying(self) -> bool:
        """Whether work goes on for calls whose connection may be closed."""
        return self.hooks.is_notifying

    def count(self, *, copied: bool) -> int:
        """Return how many open connections are copied, or relayed."""
        return sum(isinstance(each.engine, ByteCopy) is copied for each in self._sessions if not each.is_probe)

    def held_bytes(self) -> int:
        """Return the size of all held messages."""
        return sum(each.engine.held_bytes for each in self._sessions if isinstance(each.engine, Relay))

    def streams(self) -> int:
        """Return the number of open streams on all connections."""
        return sum(each.engine.streams for each in self._sessions if each.engine is not None)

    def flow_controls(self, peer: Peer) -> list[FlowControl]:
        """Return the flow control of all relayed connections with a peer."""
        relays = [each.engine.flow_controls() for each in self._sessions if isinstance(each.engine, Relay)]
        return [by_peer[peer] for by_peer in relays if peer in by_peer]

    def hooks_changed(self) -> int:
        """Drain the copied connections that must be relayed from now on; return how many."""
        copied = [each for each in self._sessions if isinstance(each.engine, ByteCopy)] if not self.can_copy else []
        for session in copied:
            session.drain()
        return len(copied)

    def _accept(self) -> PeerSocket:
        session = Session(self)
        self._sessions.add(session)
        return session.client
