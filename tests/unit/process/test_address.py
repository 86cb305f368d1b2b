"""Parsing ``host:port`` and binding it."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.process.address import Address, bound_address, listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:8080", "127.0.0.1", 8080), ("[::1]:0", "::1", 0), ("server.example:65535", "server.example", 65535)],
)
def test_an_address_is_parsed_and_formatted_alike(text: str, host: str, port: int) -> None:
    parsed = Address.parse(text)
    assert parsed == Address(host, port)
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host", "host:", "host:http", "host:65536", "host:-1", "::1:80"])
def test_an_invalid_address_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(GovernorError, match="host:port") as caught:
        Address.parse(text)
    assert caught.value.kind is Kind.INVALID


@given(st.text())
def test_any_text_is_an_address_or_rejected(text: str) -> None:
    try:
        parsed = Address.parse(text)
    except GovernorError as error:
        assert error.kind is Kind.INVALID  # noqa: PT017
    else:
        assert Address.parse(str(parsed)) == parsed


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_port_0_binds_a_free_port(host: str) -> None:
    with listen(Address(host, 0)) as listener:
        address = bound_address(listener)
        assert address.port > 0
        with socket.create_connection((address.host, address.port)) as connection:
            assert bound_address(listener).port == connection.getpeername()[1]


def test_a_taken_port_is_an_error_that_names_the_address() -> None:
    with listen(Address("127.0.0.1", 0)) as listener:
        taken = bound_address(listener)
        with pytest.raises(GovernorError, match=f"cannot listen on {taken}: Address already in use;") as caught:
            listen(taken)
    assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 70])
def test_an_unknown_host_is_an_error_that_names_the_address(host: str) -> None:
    with pytest.raises(GovernorError, match=f"cannot listen on {host}:1"):
        listen(Address(host, 1))
