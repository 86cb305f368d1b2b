"""Which proxy the environment selects for a server."""

import pytest

from governor.errors import GovernorError, Kind
from governor.process.address import Address
from governor.process.proxy import Proxy, environment_proxy, read_proxy
from governor.values.secret import Secret

PROXY = {"HTTPS_PROXY": "http://proxy.example:3128"}
SERVER = Address("governor.example.com", 8420)

BYPASSED = [
    ("*", SERVER),
    ("example.com", SERVER),
    (".example.com", SERVER),
    ("*.example.com", SERVER),
    ("a.example, GOVERNOR.example.com ", SERVER),
    ("governor.example.com:8420", SERVER),
    ("governor.example.com", Address("Governor.Example.COM.", 8420)),
    ("svc", Address("governor-server.fleet.svc", 8420)),
    ("10.0.0.0/8", Address("10.96.7.8", 8420)),
    ("10.96.7.8", Address("10.96.7.8", 8420)),
    ("10.96.7.8:8420", Address("10.96.7.8", 8420)),
    ("fd00::/8", Address("fd00::7", 8420)),
    ("[fd00::7]:8420", Address("fd00::7", 8420)),
    ("", Address("localhost", 8420)),
    ("", Address("127.0.0.1", 8420)),
    ("", Address("::1", 8420)),
]
PROXIED = [
    ("", SERVER),
    (",", SERVER),
    ("xample.com", SERVER),
    (".governor.example.com", SERVER),
    ("*.governor.example.com", SERVER),
    ("governor.example.com:443", SERVER),
    ("10.0.0.0/8", SERVER),
    ("10.0.0.0/8", Address("11.0.0.1", 8420)),
    ("10.0.0.0/99", Address("10.0.0.1", 8420)),
    ("10.96.7.8:443", Address("10.96.7.8", 8420)),
    ("96.7.8", Address("10.96.7.8", 8420)),
]


@pytest.mark.parametrize(("exceptions", "server"), BYPASSED)
def test_a_server_that_no_proxy_names_is_reached_directly(exceptions: str, server: Address) -> None:
    assert environment_proxy(server, {**PROXY, "NO_PROXY": exceptions}) is None
    assert environment_proxy(server, {"https_proxy": PROXY["HTTPS_PROXY"], "no_proxy": exceptions}) is None


@pytest.mark.parametrize(("exceptions", "server"), PROXIED)
def test_any_other_server_is_reached_through_the_proxy(exceptions: str, server: Address) -> None:
    expected = Proxy("http://proxy.example:3128")
    assert environment_proxy(server, {**PROXY, "NO_PROXY": exceptions}) == expected


def test_without_a_proxy_every_server_is_reached_directly() -> None:
    assert environment_proxy(SERVER, {}) is None
    assert environment_proxy(SERVER, {"HTTPS_PROXY": "", "HTTP_PROXY": "http://proxy.example:3128"}) is None


def test_user_and_password_become_a_header_and_are_not_shown() -> None:
    proxy = environment_proxy(SERVER, {"HTTPS_PROXY": "me:pass%40word@proxy.example:3128"})
    assert proxy == Proxy("http://proxy.example:3128", Secret("Basic bWU6cGFzc0B3b3Jk"))
    assert "bWU6" not in repr(proxy)


@pytest.mark.parametrize("text", ["socks5://me:secret@proxy:1080", "http://me:secret@", "http://pro xy:1", "http://:1"])
def test_what_is_not_an_http_proxy_is_rejected_without_its_password(text: str) -> None:
    assert read_proxy(text) is None
    with pytest.raises(GovernorError, match="HTTPS_PROXY is not the URL") as raised:
        environment_proxy(SERVER, {"HTTPS_PROXY": text})
    assert raised.value.kind is Kind.INVALID
    assert "secret" not in str(raised.value)


def test_a_proxy_with_tls_is_not_supported() -> None:
    with pytest.raises(GovernorError, match="not supported") as raised:
        environment_proxy(SERVER, {"HTTPS_PROXY": "https://proxy.example"})
    assert raised.value.kind is Kind.UNIMPLEMENTED
