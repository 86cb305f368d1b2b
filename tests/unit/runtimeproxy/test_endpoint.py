"""Claiming and removing the proxy's listening socket."""

import socket
from pathlib import Path

import pytest

from governor.errors import GovernorError
from governor.runtimeproxy.endpoint import claim
from governor.runtimeproxy.inheritance import Inheritance

NOTHING = Inheritance()


def test_a_claimed_socket_is_removed(tmp_path: Path) -> None:
    endpoint = claim(tmp_path / "deep" / "down" / "s", NOTHING)
    with endpoint.listener:
        assert endpoint.path.is_socket()
        endpoint.remove()
        endpoint.remove()

    assert not endpoint.path.exists()


def test_a_socket_in_use_is_not_claimed(tmp_path: Path) -> None:
    first = claim(tmp_path / "s", NOTHING)
    with first.listener, pytest.raises(GovernorError, match="another program serves"):
        claim(tmp_path / "s", NOTHING)

    assert first.path.is_socket()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    first = claim(tmp_path / "s", NOTHING)
    first.listener.close()
    second = claim(tmp_path / "s", NOTHING)
    with second.listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(second.path))


def test_a_socket_replaced_by_another_process_is_not_removed(tmp_path: Path) -> None:
    first = claim(tmp_path / "s", NOTHING)
    first.path.unlink()
    second = claim(tmp_path / "s", NOTHING)
    with first.listener, second.listener:
        first.remove()
        assert second.path.exists()


def test_a_path_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match="cannot serve on"):
        claim(tmp_path / ("x" * 120), NOTHING)
