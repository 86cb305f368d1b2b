"""Ports of sidecars: given, kept or free ones; nobody else takes them, and who shares addresses may listen there."""

import socket
from collections.abc import Iterator

import msgspec
import pytest

from governor.agent.platforms.local import ports
from governor.agent.platforms.local.ports import ReservedPorts, preferred_ports
from governor.agent.settings import SidecarSettings
from governor.agent.storage import Ports
from governor.errors import GovernorError

APP = SidecarSettings(app_id="app")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Another program, which listens somewhere."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def listen_as_daprd_does(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def test_given_ports_come_before_kept_ones_and_nothing_is_chosen_for_those_that_are_neither() -> None:
    given = SidecarSettings(app_id="app", http_port=9)
    assert preferred_ports(given, Ports(1, 2, 3, 4, 5)) == Ports(9, 2, 3, 4, 5)
    assert preferred_ports(given, None) == Ports(9, 0, 0, 0, 0)


def test_ports_that_are_neither_given_nor_kept_are_free_and_different() -> None:
    with ReservedPorts(APP) as held:
        chosen = msgspec.structs.astuple(held.ports)
        assert len(set(chosen)) == len(chosen)
        assert all(port in range(10_000, 32_768) for port in chosen)


def test_a_held_port_is_taken_for_everybody_but_who_shares_addresses() -> None:
    with ReservedPorts(APP) as held:
        port = held.ports.http
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with listen_as_daprd_does(port) as sidecar, socket.create_connection(("127.0.0.1", port)):
            sidecar.accept()[0].close()


def test_two_that_look_for_ports_at_once_never_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_RANGE", range(20_000, 20_200))
    held = [ReservedPorts(APP) for _ in range(20)]
    chosen = [port for each in held for port in msgspec.structs.astuple(each.ports)]
    for each in held:
        each.close()
    assert len(set(chosen)) == len(chosen)


def test_without_a_free_port_nothing_is_held_and_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with ReservedPorts(APP) as free:
        few = free.ports
    monkeypatch.setattr(ports, "_candidates", lambda: iter([few.http, few.grpc]))
    with pytest.raises(GovernorError, match="give its ports in the settings"):
        ReservedPorts(APP)
    listen_as_daprd_does(few.http).close()


def test_a_kept_port_that_another_program_has_taken_is_replaced_unless_it_was_given(listener: socket.socket) -> None:
    port = port_of(listener)
    given = SidecarSettings(app_id="app", http_port=port)
    with ReservedPorts(given, Ports(http=port, grpc=port, internal_grpc=0, public=0, metrics=0)) as held:
        assert held.ports.http == port
        assert held.ports.grpc != port


def test_a_kept_port_stays_though_connections_of_the_last_process_have_just_ended() -> None:
    with ReservedPorts(APP) as before:
        kept = before.ports
        with listen_as_daprd_does(kept.http) as sidecar, socket.create_connection(("127.0.0.1", kept.http)) as caller:
            sidecar.accept()[0].close()  # who closes first waits for late packets
            assert caller.recv(1) == b""
    with ReservedPorts(APP, kept) as after:
        assert after.ports == kept
