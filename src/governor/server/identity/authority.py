"""The server's own certificate authority, used if no certificate is configured. Blocking.

The CA is generated once and stays in the data directory, because agents pin it and users copy it. It issues server
certificates as often as needed; ``certificates`` decides which one is served.
"""

import ipaddress
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from governor.errors import GovernorError, Kind, invalid
from governor.process.files import write_atomic

VALID_FOR: Final = timedelta(days=90)
"""Validity of a server certificate."""
_AUTHORITY_VALID_FOR: Final = timedelta(days=20 * 365)
_CLOCK_SKEW: Final = timedelta(hours=1)
_NAME: Final = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.IGNORECASE)


class Authority(NamedTuple):
    """A CA certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def issue(self, names: tuple[str, ...], now: datetime) -> bytes:
        """Return a new private key, a server certificate for it and the CA certificate, all as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = (
            _builder("runtime-governor server", self.certificate.subject, key, now, VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(alternatives, critical=False)
            .add_extension(signer, critical=False)
        )
        return _pem(key) + built.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM) + self.pem()

    def pem(self) -> bytes:
        """Return the CA certificate, which is public, as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)


def open_authority(file: Path, now: datetime) -> Authority:
    """Read the CA from a file; generate it if the file does not exist."""
    if not file.exists():
        authority = _generate(now)
        write_atomic(file, _pem(authority.key) + authority.pem(), 0o600)
    return read_authority(file)


def read_authority(file: Path) -> Authority:
    """Read the CA from a file; raise if it is unusable or readable by others."""
    try:
        text = file.read_bytes()
        key, certificate = load_pem_private_key(text, None), x509.load_pem_x509_certificate(text)
    except (OSError, ValueError) as error:
        raise _unusable(f"{file} cannot be read ({type(error).__name__})") from error
    if file.stat().st_mode & 0o077:
        raise GovernorError(Kind.PRECONDITION, "key-exposed", f"{file} can be read by others; run chmod 600 on it")
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise _unusable(f"{file} does not contain the CA that the server generated")
    return Authority(certificate, key)


def _generate(now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # A unique subject, because a client may trust the CAs of several servers.
    name = f"runtime-governor {identifier.digest.hex()[:16]}"
    built = (
        _builder(name, _subject(name), key, now, _AUTHORITY_VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return Authority(built.sign(key, hashes.SHA256()), key)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, valid_for: timedelta
) -> x509.CertificateBuilder:
    serial = x509.random_serial_number()
    begin, end = now - _CLOCK_SKEW, now + valid_for
    return x509.CertificateBuilder(issuer, _subject(name), key.public_key(), serial, begin, end)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        if not _NAME.fullmatch(name):
            message = f"tls-names: {name!r} is neither a host name nor an IP address"
            raise invalid("settings", message) from None
        return x509.DNSName(name)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _unusable(reason: str) -> GovernorError:
    message = f"{reason}; restore it from a backup, or remove it and let all agents join again"
    return GovernorError(Kind.PRECONDITION, "authority-unusable", message)
