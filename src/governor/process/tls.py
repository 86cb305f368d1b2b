"""TLS contexts from files or from a pinned authority, and the rule that plain text never leaves the machine.

Issuing certificates is not here. Files are read when a context is made; a program that wants new files makes a new one.
"""

import asyncio
import hashlib
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any

from governor.errors import GovernorError, Kind, invalid
from governor.process.address import Address


def is_loopback(host: str) -> bool:
    """Whether ``host`` can only be this machine. Names other than localhost are not looked up: they may change."""
    if host.lower() == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def require_tls(host: str, *, protected: bool) -> None:
    """Refuse plain text to or from anything but loopback."""
    if not protected and not is_loopback(host):
        message = (
            f"{host} is not a loopback address, so it needs TLS: give a certificate or use https://, or use 127.0.0.1"
        )
        raise invalid("plain-text", message)


def server_context(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    """What a server shows: its certificate (with its chain) and the key to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate_file, key_file):
        _read(path)
    try:
        # An empty password makes an encrypted key an error; without one OpenSSL would ask on the terminal.
        context.load_cert_chain(certificate_file, key_file, password="")
    except ssl.SSLError as error:
        raise _bad_pair(certificate_file, key_file, error) from error
    return context


def client_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Trust the authorities of ``ca_file`` only, or without one those of the system."""
    if ca_file is None:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
    text = _read(ca_file)
    try:
        return _trusting(text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise invalid("tls-file", f"{ca_file} holds no PEM certificate of an authority") from error


async def pinned_context(address: Address, fingerprint: str, *, timeout_s: float = 10.0) -> ssl.SSLContext:
    """Trust only the authority whose SHA-256 is ``fingerprint``, taken from the chain that the server shows.

    The first connection is used for nothing but its certificates; all later ones are verified as usual, the name too.
    """
    wanted = _fingerprint_bytes(fingerprint)
    try:
        chain = await asyncio.to_thread(_shown_chain, address, timeout_s)
    except OSError as error:
        message = f"cannot read the certificates of {address}: {error}"
        raise GovernorError(Kind.UNAVAILABLE, "tls-connect", message) from error
    for certificate in chain:
        if hashlib.sha256(certificate).digest() == wanted:
            return _trusting(certificate)
    message = (
        f"no certificate that {address} shows has the SHA-256 fingerprint {fingerprint}: check both, do not connect"
    )
    raise GovernorError(Kind.UNAUTHENTICATED, "tls-pin", message)


def fingerprint_of(certificate_file: Path) -> str:
    """``sha256:`` and the hexadecimal hash of the last certificate in a PEM file, the one nearest to the authority."""
    text = _read(certificate_file).decode("ascii", errors="replace")
    start = text.rfind("-----BEGIN CERTIFICATE-----")
    try:
        certificate = ssl.PEM_cert_to_DER_cert(text[start:].strip()) if start >= 0 else b""
    except ValueError:
        certificate = b""
    if not certificate:
        raise invalid("tls-file", f"{certificate_file} holds no PEM certificate")
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def _trusting(authority: str | bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority)
    return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise invalid("tls-file", f"cannot read {path}: {error.strerror or error}") from error


def _bad_pair(certificate_file: Path, key_file: Path, error: ssl.SSLError) -> GovernorError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return invalid("tls-file", f"{key_file} is not the key to the certificate in {certificate_file}")
    return invalid("tls-file", f"{certificate_file} and {key_file} are not a PEM certificate and its unencrypted key")


def _fingerprint_bytes(text: str) -> bytes:
    digits = text.removeprefix("sha256:").replace(":", "")
    try:
        parsed = bytes.fromhex(digits)
    except ValueError:
        parsed = b""
    if len(parsed) != hashlib.sha256().digest_size:
        raise invalid("tls-pin", f"{text!r} is not a SHA-256 fingerprint: write sha256: and 64 hexadecimal digits")
    return parsed


def _shown_chain(address: Address, timeout_s: float) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((address.host, address.port), timeout=timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as protected,
    ):
        return _unverified_chain(protected)


def _unverified_chain(connection: Any) -> list[bytes]:
    # Public since Python 3.13; 3.11 and 3.12 have the same call on the inner object, with its own certificate type.
    if hasattr(connection, "get_unverified_chain"):
        return list(connection.get_unverified_chain())
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in connection._sslobj.get_unverified_chain()]  # noqa: SLF001
