"""A certificate authority for one control plane: certificates, service-account tokens and kubeconfigs.

Everything is generated in memory, for tests only; ``put`` writes files.
"""

import base64
import ipaddress
import json
import ssl
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY_S = 86_400.0
ISSUER = "https://kubernetes.default.svc"
_CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def put(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write both files atomically and return their paths."""
        return put(directory / f"{name}.crt", self.certificate), put(directory / f"{name}.key", self.key)

    def load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Load the certificate into a context; OpenSSL reads it from a file only."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(self.certificate + self.key)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def put(file: Path, content: bytes) -> Path:
    """Write a file atomically, readable by its owner only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}")
    scratch.touch(mode=0o600)
    scratch.write_bytes(content)
    return scratch.replace(file)


class Authority:
    """A certificate authority for servers and clients."""

    def __init__(self, name: str = "testbed") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name, ())
        public = self._key.public_key()
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        built = (
            _builder(self._name, self._name, public, DAY_S)
            .add_extension(constraints, critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        self.certificate = built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def issue(
        self, name: str, *, groups: Iterable[str] = (), hosts: Iterable[str] = (), valid_for_s: float = DAY_S
    ) -> Pair:
        """Issue a certificate for a user in these groups, or for a server with these names and addresses.

        With a negative ``valid_for_s`` it has expired already.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        built = (
            _builder(_subject(name, groups), self._name, key.public_key(), valid_for_s)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(purposes, critical=False)
            .add_extension(authority, critical=False)
        )
        if names := [_alternative(host) for host in hosts]:
            built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Pair(built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), _pem(key))

    def client_context(self, user: Pair | None = None) -> ssl.SSLContext:
        """Return a context for a client that trusts this authority only and presents the user's certificate."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        return user.load(context) if user else context

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a server on loopback with a new certificate, without client authentication."""
        return self.issue_serving().load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def issue_serving(self, *others: str) -> Pair:
        """Issue a certificate for a server on loopback and these other addresses."""
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        return self.issue("testbed-server", hosts=dict.fromkeys(["127.0.0.1", *others, *names]))


class TokenKey:
    """The key with which the API server signs service-account tokens, and the test bed those it would not issue."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.private = _pem(self._key)
        self.public = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, account: dict[str, Any], expires_at_s: float) -> str:
        """Return a token for a ServiceAccount (as the API returns it) that expires at this Unix time."""
        metadata = account["metadata"]
        claims = {
            "iss": ISSUER,
            "aud": [ISSUER],
            "iat": int(time.time()) - int(DAY_S),
            "exp": int(expires_at_s),
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
            "kubernetes.io": {
                "namespace": metadata["namespace"],
                "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
            },
        }
        return jwt.encode(claims, self.private, algorithm="ES256")


def kubeconfig(server: str, authority: bytes, user: Pair | str) -> bytes:
    """Return a kubeconfig for a user with a certificate or a token, as JSON, which is valid YAML."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
        "clusters": [
            {"name": "testbed", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}
        ],
        "users": [{"name": "testbed", "user": _credential(user)}],
    }
    return json.dumps(content, indent=1).encode()


def _credential(user: Pair | str) -> dict[str, str]:
    if isinstance(user, str):
        return {"token": user}
    return {"client-certificate-data": _base64(user.certificate), "client-key-data": _base64(user.key)}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for_s: float
) -> x509.CertificateBuilder:
    end = datetime.now(UTC) + timedelta(seconds=valid_for_s)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(end, datetime.now(UTC)) - _CLOCK_SKEW)
        .not_valid_after(end)
    )


def _subject(name: str, groups: Iterable[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


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
