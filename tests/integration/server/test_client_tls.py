"""The client and a real server over TLS: trusted by CA file or fingerprint, rejected otherwise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from governor.client import Client
from governor.errors import GovernorError, Kind
from governor.process.tls import fingerprint_of
from tests.integration.cli.bed import CommandLine
from tests.integration.server.bed import ServerBed, running


class Authority:
    """A certificate authority of one test."""

    def __init__(self, directory: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self._directory = directory
        self.file = directory / "ca.pem"
        self.certificate = self._issue(self._name, self._key.public_key(), is_authority=True)
        self.file.write_bytes(self.certificate)

    def server_files(self, address: str = "127.0.0.1", age: timedelta = timedelta(0)) -> tuple[Path, Path]:
        """Return the files of a certificate chain for an address and its key; a certificate is valid for two hours."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        certificate_file, key_file = self._directory / "server.pem", self._directory / "server.key"
        certificate_file.write_bytes(
            self._issue(name, key.public_key(), is_authority=False, address=address, age=age) + self.certificate
        )
        form = serialization.PrivateFormat.PKCS8
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return certificate_file, key_file

    def _issue(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        is_authority: bool,
        address: str = "127.0.0.1",
        age: timedelta = timedelta(0),
    ) -> bytes:
        now = datetime.now(UTC) - age
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class TlsBed(ServerBed):
    """A server with a certificate."""

    def __init__(self, plain: ServerBed) -> None:
        super().__init__(plain.services, plain.address, plain.directory)
        self.url = f"https://{plain.address}"


@asynccontextmanager
async def serving(authority: Authority, directory: Path, port: int = 0, **certificate: Any) -> AsyncIterator[TlsBed]:
    certificate_file, key_file = authority.server_files(**certificate)
    async with running(directory, port=port, tls_certificate=certificate_file, tls_key=key_file) as plain:
        yield TlsBed(plain)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def server(authority: Authority, tmp_path: Path) -> AsyncIterator[TlsBed]:
    async with serving(authority, tmp_path / "server") as bed:
        yield bed


def client(server: TlsBed, *, ca_file: Path | None = None, ca_fingerprint: str = "") -> Client:
    token = server.admin_token
    return Client(server.url, lambda: token, ca_file=ca_file, ca_fingerprint=ca_fingerprint)


async def rejection(connection: Client) -> GovernorError:
    async with connection:
        with pytest.raises(GovernorError) as raised:
            await connection.runtimes()
    return raised.value


async def test_a_server_is_trusted_by_ca_file_or_fingerprint(
    server: TlsBed, authority: Authority, tmp_path: Path
) -> None:
    async with client(server, ca_file=authority.file) as connection:
        assert await connection.runtimes() == ()
    async with client(server, ca_fingerprint=fingerprint_of(authority.file)) as connection:
        assert await connection.runtimes() == ()
    shown = await CommandLine(server, tmp_path).run("get", "runtimes", "--ca-file", str(authority.file))
    assert (shown.code, shown.err) == (0, "No runtimes found.\n")


async def test_the_authorities_of_the_system_can_be_replaced_as_the_agents_chart_does(
    server: TlsBed, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with client(server) as connection:
        assert await connection.runtimes() == ()


async def test_an_unknown_ca_is_rejected_before_the_token_is_sent(server: TlsBed, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    unknown = Authority(other)
    errors = [
        await rejection(client(server)),
        await rejection(client(server, ca_file=unknown.file)),
        await rejection(client(server, ca_fingerprint=fingerprint_of(unknown.file))),
    ]
    assert [error.code for error in errors] == ["tls-untrusted", "tls-untrusted", "tls-pin"]
    assert {error.kind for error in errors} == {Kind.UNAUTHENTICATED}
    assert all(server.admin_token_file.read_text().strip() not in str(error) for error in errors)


async def test_a_client_with_a_pinned_ca_can_be_created_before_the_server_runs(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(authority, tmp_path / "server") as server:
        pinned = client(server, ca_fingerprint=fingerprint_of(authority.file))
    async with pinned as connection:
        with pytest.raises(GovernorError) as raised:
            await connection.runtimes()
        assert raised.value.kind is Kind.UNAVAILABLE
        async with serving(authority, tmp_path / "server", server.address.port):
            assert await connection.runtimes() == ()


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        ({"age": timedelta(days=1)}, "certificate has expired; renew it, or correct the clock of this machine"),
        ({"age": timedelta(days=-1)}, "certificate is not yet valid; correct the clock of this machine"),
        ({"address": "127.0.0.2"}, "not valid for '127.0.0.1'; use an address that it is issued for"),
    ],
    ids=["expired", "not yet valid", "other address"],
)
async def test_a_certificate_that_is_not_valid_says_what_to_do(
    authority: Authority, tmp_path: Path, certificate: Any, reason: str
) -> None:
    async with serving(authority, tmp_path / "server", **certificate) as server:
        error = await rejection(client(server, ca_file=authority.file))
        shown = await CommandLine(server, tmp_path).run("get", "runtimes", "--ca-file", str(authority.file))
    assert (error.kind, error.code) == (Kind.UNAUTHENTICATED, "tls-invalid")
    assert reason in error.message
    assert reason in shown.err
    assert "next:" not in shown.err


async def test_a_replaced_ca_is_named_to_a_client_that_has_pinned_the_old_one(
    authority: Authority, tmp_path: Path
) -> None:
    pin = fingerprint_of(authority.file)
    async with serving(authority, tmp_path / "server") as server, client(server, ca_fingerprint=pin) as connection:
        assert await connection.runtimes() == ()
        other = tmp_path / "other"
        other.mkdir()
        files = Authority(other).server_files()
        certificate = server.services.certificate
        assert certificate is not None
        certificate.context.load_cert_chain(*files)
        await connection._transport.close()
        await connection._transport.open()
        with pytest.raises(GovernorError, match="if its CA was replaced, join again with a new token") as raised:
            await connection.runtimes()
    assert raised.value.code == "tls-untrusted"


async def test_the_wrong_scheme_of_an_address_is_named(server: TlsBed, tmp_path: Path) -> None:
    plain = await rejection(Client(f"http://{server.address}", None))
    async with running(tmp_path / "plain") as other:
        encrypted = await rejection(Client(f"https://{other.address}", None))
    assert "if the server uses TLS, its address begins with https://" in plain.message
    assert "it does not respond with TLS" in encrypted.message
    assert "Operation not permitted" not in encrypted.message
    assert {plain.kind, encrypted.kind} == {Kind.UNAVAILABLE}


async def test_an_unknown_host_is_named_as_the_reason() -> None:
    error = await rejection(Client("https://governor.invalid", None))
    assert error.code == "unreachable"
    assert "Unknown error" not in error.message
    assert "cannot reach https://governor.invalid: " in error.message
