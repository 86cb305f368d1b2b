"""Sockets inherited from a service manager or from the proxy that is replaced."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from governor.errors import GovernorError
from governor.process.address import Address, bound_address, listen
from governor.runtimeproxy.endpoint import claim
from governor.runtimeproxy.inheritance import HANDOVER, Handover, Inheritance


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield listener


def handed_over(*listeners: socket.socket, owned: tuple[str, ...] = ()) -> Inheritance:
    """Return what a successor inherits, with descriptors of its own."""
    with socket.socket(socket.AF_UNIX) as channel:
        descriptors = tuple(each.dup().detach() for each in listeners)
        handover = Handover(channel.dup().detach(), descriptors, owned)
    inheritance = Inheritance.from_environment({HANDOVER: msgspec.json.encode(handover).decode()})
    assert inheritance.channel is not None
    inheritance.channel.close()
    return inheritance


@pytest.mark.parametrize("has_taken_over", [True, False])
def test_an_inherited_socket_is_used_and_removed_only_after_taking_over(
    tmp_path: Path, listener: socket.socket, has_taken_over: bool
) -> None:
    path = tmp_path / "s"
    inheritance = handed_over(listener, owned=(str(path),))
    endpoint = claim(path, inheritance)
    with endpoint.listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        endpoint.listener.accept()[0].close()
        assert endpoint.unreachable() == ""
        if has_taken_over:
            endpoint.own()
        endpoint.remove()
    assert inheritance.owns(path)
    assert path.exists() is not has_taken_over


def test_a_socket_is_found_by_another_spelling_of_its_path(tmp_path: Path, listener: socket.socket) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    inheritance = handed_over(listener)
    found = inheritance.at_path(tmp_path / "link" / "s")
    assert found is not None
    found.close()
    assert inheritance.close_rest() == []


def test_sockets_that_no_setting_names_are_closed(tmp_path: Path, listener: socket.socket) -> None:
    inheritance = handed_over(listener)
    assert inheritance.at_path(tmp_path / "other") is None
    assert inheritance.close_rest() == [str(tmp_path / "s")]


@pytest.mark.parametrize("asked", ["same", "any"])
def test_a_port_is_kept(asked: str) -> None:
    with listen(Address("127.0.0.1", 0)) as first:
        address = bound_address(first)
        inheritance = handed_over(first)
        with inheritance.at_address(address if asked == "same" else Address("127.0.0.1", 0)) as second:
            assert bound_address(second) == address


def test_systemds_sockets_are_for_the_process_that_it_started(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "kubelet"}
    assert Inheritance.from_environment(environ).at_path(tmp_path / "s") is None
    assert environ == {}

    descriptor = listener.dup().detach()
    monkeypatch.setattr("governor.runtimeproxy.inheritance._FIRST_DESCRIPTOR", descriptor)
    own = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    inheritance = Inheritance.from_environment(own)
    assert not inheritance.owns(tmp_path / "s")
    found = inheritance.at_path(tmp_path / "s")
    assert found is not None
    with found:
        assert (found.fileno(), found.get_inheritable()) == (descriptor, False)


@pytest.mark.parametrize("text", ["", "{", '{"channel":3,"listeners":[],"owned":[],"format":2}'])
def test_another_format_is_rejected(text: str) -> None:
    if not text:
        assert Inheritance.from_environment({HANDOVER: text}).channel is None
        return
    with pytest.raises(GovernorError, match="stop the running proxy"):
        Inheritance.from_environment({HANDOVER: text})
