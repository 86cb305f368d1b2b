"""The client and a real server behind a real forward proxy, which alone resolves the server's name."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.client import Client
from governor.errors import GovernorError, Kind
from governor.process.tls import fingerprint_of
from testbed.kube.pki import Authority, put
from testbed.proxies.tunnels import TunnelProxy
from testbed.server import free_ports
from tests.integration.server.bed import ServerBed, running

NAME = "governor.example.invalid"


class Bed:
    """A server with TLS whose name nobody but the proxy knows."""

    def __init__(self, server: ServerBed, authority: Path, proxy: TunnelProxy) -> None:
        self.server = server
        self.authority = authority
        self.proxy = proxy
        self.target = f"{NAME}:{server.address.port}"

    def client(self, name: str = NAME, *, pinned: bool = False) -> Client:
        token, url = self.server.admin_token, f"https://{name}:{self.server.address.port}"
        if pinned:
            return Client(url, lambda: token, ca_fingerprint=fingerprint_of(self.authority))
        return Client(url, lambda: token, ca_file=self.authority)


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    authority = Authority()
    file = put(tmp_path / "authority.crt", authority.certificate)
    pair = authority.issue("server", hosts=[NAME, "localhost"])
    certificate, key = pair.put(tmp_path, "server")
    put(certificate, pair.certificate + authority.certificate)
    async with (
        running(tmp_path / "data", tls_certificate=certificate, tls_key=key) as server,
        TunnelProxy({NAME: "127.0.0.1"}) as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        yield Bed(server, file, proxy)


async def rejection(client: Client) -> GovernorError:
    async with client:
        with pytest.raises(GovernorError) as raised:
            await client.runtimes()
    return raised.value


@pytest.mark.parametrize("pinned", [False, True], ids=["ca-file", "pinned"])
async def test_requests_and_the_pinned_certificate_pass_through_the_tunnel(bed: Bed, *, pinned: bool) -> None:
    async with bed.client(pinned=pinned) as client:
        assert await client.runtimes() == ()
        assert await client.runtimes() == ()
    # The first of a pinned client reads the certificates; a connection is used for several requests.
    assert bed.proxy.targets == [bed.target] * (2 if pinned else 1)


async def test_the_password_of_the_proxy_is_sent_to_the_proxy_only(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", bed.proxy.url.replace("://", "://me:hunter2@"))
    async with bed.client(pinned=True) as client:
        assert await client.runtimes() == ()
    assert bed.proxy.authorizations == ["Basic bWU6aHVudGVyMg=="] * 2
    bed.proxy.rejection = "407 Proxy Authentication Required"
    errors = [await rejection(bed.client(pinned=pinned)) for pinned in (False, True)]
    assert [error.kind for error in errors] == [Kind.UNAVAILABLE] * 2
    assert all("407" in str(error) and bed.proxy.url in str(error) for error in errors)
    assert not any("hunter2" in str(error) or "aHVudGVy" in str(error) for error in errors)


async def test_exceptions_and_loopback_are_reached_directly(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bed.client("localhost") as client:
        assert await client.runtimes() == ()
    monkeypatch.setenv("NO_PROXY", ".svc,.invalid")
    error = await rejection(bed.client())
    assert error.code == "unreachable", error
    assert bed.proxy.connections == 0


async def test_a_proxy_that_does_not_run_is_named(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    error = await rejection(bed.client())
    assert (error.kind, error.code) == (Kind.UNAVAILABLE, "proxy")
    assert f"cannot reach the proxy http://127.0.0.1:{port}: Connection refused; check HTTPS_PROXY" in str(error)
