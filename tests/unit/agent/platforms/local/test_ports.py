"""Ports of sidecars: configured, kept or free; reserved against other programs, but bindable by daprd."""

import socket
from collections.abc import Iterator

import msgspec
import pytest

from governor.agent.platforms.local.sidecars import ports
from governor.agent.platforms.local.sidecars.ports import ReservedPorts, preferred_ports
from governor.agent.platforms.local.storage import Ports
from governor.agent.settings import SidecarSettings
from governor.errors import GovernorError

APP = SidecarSettings(app_id="app")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Yield a socket of another program that listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def listen_like_daprd(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def test_configured_ports_are_preferred_to_kept_ones() -> None:
    given = SidecarSettings(app_id="app", http_port=9)
    assert preferred_ports(given, Ports(1, 2, 3, 4, 5)) == Ports(9, 2, 3, 4, 5)
    assert preferred_ports(given, None) == Ports(9, 0, 0, 0, 0)


def test_chosen_ports_are_free_and_distinct() -> None:
    with ReservedPorts(APP) as reserved:
        chosen = msgspec.structs.astuple(reserved.ports)
        assert len(set(chosen)) == len(chosen)
        assert all(port in range(10_000, 32_768) for port in chosen)


def test_a_reserved_port_can_be_bound_only_with_reuseaddr() -> None:
    with ReservedPorts(APP) as reserved:
        port = reserved.ports.http
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with listen_like_daprd(port) as sidecar, socket.create_connection(("127.0.0.1", port)):
            sidecar.accept()[0].close()


def test_concurrent_reservations_never_share_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_RANGE", range(20_000, 20_200))
    reservations = [ReservedPorts(APP) for _ in range(20)]
    chosen = [port for each in reservations for port in msgspec.structs.astuple(each.ports)]
    for each in reservations:
        each.close()
    assert len(set(chosen)) == len(chosen)


def test_without_a_free_port_nothing_is_reserved_and_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReservedPorts(APP) as free:
        few = free.ports
    monkeypatch.setattr(ports, "_candidates", lambda: iter([few.http, few.grpc]))
    with pytest.raises(GovernorError, match="set its ports in the settings"):
        ReservedPorts(APP)
    listen_like_daprd(few.http).close()


def test_a_kept_port_in_use_is_replaced_but_a_configured_one_is_not(listener: socket.socket) -> None:
    port = port_of(listener)
    given = SidecarSettings(app_id="app", http_port=port)
    with ReservedPorts(given, Ports(http=port, grpc=port, internal_grpc=0, public=0, metrics=0)) as reserved:
        assert reserved.ports.http == port
        assert reserved.ports.grpc != port


def test_a_kept_port_with_connections_in_time_wait_is_reserved_again() -> None:
    with ReservedPorts(APP) as before:
        kept = before.ports
        with listen_like_daprd(kept.http) as sidecar, socket.create_connection(("127.0.0.1", kept.http)) as caller:
            sidecar.accept()[0].close()  # the side that closes first enters TIME_WAIT
            assert caller.recv(1) == b""
    with ReservedPorts(APP, kept) as after:
        assert after.ports == kept
