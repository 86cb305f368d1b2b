"""Hostile addresses and kubeconfigs: none redirects traffic, uses plain text or reaches this machine's own ports."""

from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.config.access import Access
from governor.kube.config.kubeconfig_format import parse
from governor.process.proxy import Proxy
from tests.unit.kube.config.test_kubeconfig import config, encoded, rejection


@pytest.mark.parametrize(
    "server",
    [
        "https://h/x HTTP/1.1\r\nX-Evil: 1",
        "https://h\n.evil.example",
        "https://h/\ttab",
        "https://h/#",
        "https://h?",
        "https://a..b",
        "https://.x",
        f"https://{'a' * 70}.example",
    ],
)
def test_an_ambiguous_server_address_is_rejected(server: str) -> None:
    with pytest.raises(GovernorError) as caught:
        Access(server)
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("name", ["a..b", ".x", "x" * 300, "a\0b", "a b", "\ud800"])
def test_an_invalid_tls_server_name_is_rejected(name: str) -> None:
    with pytest.raises(GovernorError, match="tls-server-name"):
        Access("https://h", tls_server_name=name)


@pytest.mark.parametrize("url", ["http://a..b", "http://h\r\nX: 1", "http://h/#x", "http://h:99999"])
def test_an_ambiguous_proxy_address_is_rejected(url: str) -> None:
    error = rejection(config(lambda cluster, user: cluster.update({"proxy-url": url})))
    assert "clusters[c].cluster.proxy-url" in str(error)


def test_a_token_is_never_sent_to_a_proxy_in_plain_text() -> None:
    with pytest.raises(GovernorError, match="https"):
        Access("http://localhost:8001", proxy=Proxy("http://169.254.169.254"))


@pytest.mark.parametrize("server", ["http://127.0.0.1:10248", "http://localhost", "HTTP://[::1]"])
def test_a_kubeconfig_from_a_secret_cannot_use_plain_text_on_loopback(server: str) -> None:
    error = rejection(config(lambda cluster, user: cluster.update({"server": server})))
    assert error.kind is Kind.DENIED
    assert "clusters[c].cluster.server" in str(error)


def test_a_blank_authority_does_not_mean_the_system_authorities() -> None:
    error = rejection(config(lambda cluster, user: cluster.update({"certificate-authority-data": "  "})))
    assert "certificate-authority-data" in str(error)


def test_the_repr_of_a_kubeconfig_contains_no_secret() -> None:
    def change(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster["proxy-url"] = "http://me:hidden-1@proxy"
        user.update({"token": "hidden-2", "client-key-data": encoded("hidden-3"), "password": "hidden-4"})
        user["exec"] = {"args": ["hidden-5"], "env": [{"name": "A", "value": "hidden-6"}]}

    shown = repr(parse(config(change), "file"))
    assert "hidden" not in shown
    assert encoded("hidden-3") not in shown
