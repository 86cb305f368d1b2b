"""TLS contexts from files and pins, with real handshakes on loopback."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from governor.errors import GovernorError, Kind
from governor.process import tls
from governor.process.address import Address

DAY = datetime.timedelta(days=1)


class Files(msgspec.Struct, frozen=True):
    """A CA and a certificate for 127.0.0.1 that it signed; ``chain`` contains both."""

    ca: Path
    chain: Path
    key: Path


def _certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, *, is_ca: bool
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    name, by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (subject, issuer))
    builder = (
        x509.CertificateBuilder(by, name, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not is_ca:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def make_files(directory: Path) -> Files:
    directory.mkdir()
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("ca", ca_key, "ca", ca_key, is_ca=True)
    leaf = _certificate("server", key, "ca", ca_key, is_ca=False)
    files = Files(directory / "ca.pem", directory / "chain.pem", directory / "key.pem")
    files.ca.write_bytes(_pem(ca))
    files.chain.write_bytes(_pem(leaf) + _pem(ca))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path / "tls")


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[Address]:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])


async def greeting(address: Address, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_trusts_the_ca_is_served(files: Files) -> None:
    async with serving(tls.server_context(files.chain, files.key)) as address:
        assert await greeting(address, tls.client_context(files.ca)) == b"hello"


async def test_a_client_that_trusts_another_ca_rejects_the_server(files: Files, tmp_path: Path) -> None:
    other = make_files(tmp_path / "other")
    async with serving(tls.server_context(files.chain, files.key)) as address:
        for context in (tls.client_context(other.ca), tls.client_context()):
            with pytest.raises(ssl.SSLCertVerificationError):
                await greeting(address, context)


async def test_a_pinned_ca_is_read_from_the_chain_and_verified(files: Files) -> None:
    async with serving(tls.server_context(files.chain, files.key)) as address:
        context = await tls.pinned_context(address, tls.fingerprint_of(files.ca))
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert await greeting(address, context) == b"hello"


async def test_a_server_without_the_pinned_ca_is_rejected(files: Files, tmp_path: Path) -> None:
    other = make_files(tmp_path / "other")
    async with serving(tls.server_context(files.chain, files.key)) as address:
        with pytest.raises(GovernorError, match="no certificate of") as caught:
            await tls.pinned_context(address, tls.fingerprint_of(other.ca))
    assert caught.value.kind is Kind.UNAUTHENTICATED


async def test_a_pinned_server_that_is_down_is_unavailable(files: Files) -> None:
    async with serving(tls.server_context(files.chain, files.key)) as gone:
        pass
    with pytest.raises(GovernorError, match=f"certificates of {gone}") as caught:
        await tls.pinned_context(gone, tls.fingerprint_of(files.ca))
    assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize("fingerprint", ["", "sha256:12", "sha256:" + "z" * 64, "sha1:" + "0" * 40])
async def test_an_invalid_fingerprint_is_rejected(fingerprint: str) -> None:
    with pytest.raises(GovernorError, match="SHA-256 fingerprint") as caught:
        await tls.pinned_context(Address("127.0.0.1", 1), fingerprint)
    assert caught.value.kind is Kind.INVALID


def test_the_fingerprint_of_a_chain_is_that_of_its_ca(files: Files) -> None:
    assert tls.fingerprint_of(files.chain) == tls.fingerprint_of(files.ca)
    certificate = x509.load_pem_x509_certificate(files.ca.read_bytes())
    assert tls.fingerprint_of(files.ca) == f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3_are_supported(files: Files, version: ssl.TLSVersion) -> None:
    client = tls.client_context(files.ca)
    client.maximum_version = version
    async with serving(tls.server_context(files.chain, files.key)) as address:
        assert await greeting(address, client) == b"hello"


def test_every_context_requires_tls_1_2(files: Files) -> None:
    contexts = [
        tls.server_context(files.chain, files.key),
        tls.client_context(files.ca),
        tls.client_context(),
    ]
    assert {context.minimum_version for context in contexts} == {ssl.TLSVersion.TLSv1_2}


def test_a_key_of_another_certificate_is_named(files: Files, tmp_path: Path) -> None:
    other = make_files(tmp_path / "other")
    with pytest.raises(GovernorError, match=f"{other.key} is not the private key of the certificate in {files.chain}"):
        tls.server_context(files.chain, other.key)


def test_a_file_that_cannot_be_read_is_named(files: Files, tmp_path: Path) -> None:
    absent = tmp_path / "absent.pem"
    for certificate, key in [(absent, files.key), (files.chain, absent)]:
        with pytest.raises(GovernorError, match=f"cannot read {absent}: No such file"):
            tls.server_context(certificate, key)
    with pytest.raises(GovernorError, match=f"cannot read {absent}"):
        tls.client_context(absent)


@pytest.mark.parametrize("content", [b"", b"not PEM", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_file_without_a_certificate_is_rejected(files: Files, tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_bytes(content)
    with pytest.raises(GovernorError, match=f"{bad} contains no PEM certificate"):
        tls.client_context(bad)
    with pytest.raises(GovernorError, match=f"{bad} and {files.key} are not"):
        tls.server_context(bad, files.key)
    with pytest.raises(GovernorError, match=f"{bad} contains no PEM certificate"):
        tls.fingerprint_of(bad)


def test_an_encrypted_key_is_rejected_without_a_prompt(files: Files, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    protection = serialization.BestAvailableEncryption(b"password")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))
    with pytest.raises(GovernorError, match="unencrypted key"):
        tls.server_context(files.chain, locked)


LOOPBACK = ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"]
REMOTE = [
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "example.org",
    "localhost.example.org",
    "127.0.0.1.nip.io",
    "",
    "2130706433",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_may_use_plain_text(host: str) -> None:
    assert tls.is_loopback(host)
    tls.require_tls(host, protected=False)


@pytest.mark.parametrize("host", REMOTE)
def test_other_hosts_need_tls(host: str) -> None:
    assert not tls.is_loopback(host)
    tls.require_tls(host, protected=True)
    with pytest.raises(GovernorError, match="needs TLS") as caught:
        tls.require_tls(host, protected=False)
    assert caught.value.kind is Kind.INVALID
