"""TLS contexts from files or from a pinned CA, and the rule that plain text is for loopback only.

Files are read once, when a context is created. Issuing certificates is not done here.
"""

import asyncio
import hashlib
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from governor.errors import GovernorError, Kind, invalid
from governor.process.address import Address

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect: TypeAlias = Callable[[Address], Awaitable[Streams]]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is localhost or a loopback address. Other names are not resolved: the result may change."""
    if host.lower() == "localhost":
        return True
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def require_tls(host: str, *, protected: bool) -> None:
    """Raise an error for plain text to or from any host but loopback."""
    if not protected and not is_loopback(host):
        message = (
            f"{host} is not a loopback address and needs TLS: configure a certificate, use https://, or use 127.0.0.1"
        )
        raise invalid("plain-text", message)


def server_context(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    """Return a server context with a certificate chain and its private key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (certificate_file, key_file):
        _read(path)
    try:
        # Without a password OpenSSL would prompt on the terminal; an empty one makes an encrypted key an error.
        context.load_cert_chain(certificate_file, key_file, password="")
    except ssl.SSLError as error:
        raise _pair_error(certificate_file, key_file, error) from error
    return context


def client_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Return a client context that trusts the CAs in ``ca_file`` only, or by default those of the system."""
    if ca_file is None:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context
    text = _read(ca_file)
    try:
        return _context_trusting(text.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise invalid("tls-file", f"{ca_file} contains no PEM certificate of a CA") from error


async def pinned_context(
    address: Address, fingerprint: str, *, connect: Connect | None = None, timeout_s: float = 10.0
) -> ssl.SSLContext:
    """Return a context that trusts only the CA with this SHA-256 ``fingerprint``, read from the server's chain.

    The first connection only reads the certificates; later ones verify the chain and the host name as usual.
    ``connect`` opens it, by default directly.
    """
    expected = _fingerprint_bytes(fingerprint)
    try:
        async with asyncio.timeout(timeout_s):
            chain = await _read_chain(address, connect or _connect)
    except OSError as error:
        message = f"cannot read the certificates of {address}: {str(error) or 'no response in time'}"
        raise GovernorError(Kind.UNAVAILABLE, "tls-connect", message) from error
    for certificate in chain:
        if hashlib.sha256(certificate).digest() == expected:
            return _context_trusting(certificate)
    message = (
        f"no certificate of {address} has the SHA-256 fingerprint {fingerprint}: check the address and the fingerprint"
    )
    raise GovernorError(Kind.UNAUTHENTICATED, "tls-pin", message)


def fingerprint_of(certificate_file: Path) -> str:
    """Return ``sha256:`` and the hex digest of the last certificate in a PEM file, the one closest to the root."""
    text = _read(certificate_file).decode("ascii", errors="replace")
    start = text.rfind("-----BEGIN CERTIFICATE-----")
    try:
        certificate = ssl.PEM_cert_to_DER_cert(text[start:].strip()) if start >= 0 else b""
    except ValueError:
        certificate = b""
    if not certificate:
        raise invalid("tls-file", f"{certificate_file} contains no PEM certificate")
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def _context_trusting(ca: str | bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    return context


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise invalid("tls-file", f"cannot read {path}: {error.strerror or error}") from error


def _pair_error(certificate_file: Path, key_file: Path, error: ssl.SSLError) -> GovernorError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return invalid("tls-file", f"{key_file} is not the private key of the certificate in {certificate_file}")
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


async def _connect(address: Address) -> Streams:
    return await asyncio.open_connection(address.host, address.port)


async def _read_chain(address: Address, connect: Connect) -> list[bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await connect(address)
    try:
        await writer.start_tls(context, server_hostname=address.host)
        return _unverified_chain(writer.get_extra_info("ssl_object"))
    finally:
        writer.transport.abort()


def _unverified_chain(connection: Any) -> list[bytes]:
    # Public since Python 3.13; 3.11 and 3.12 have it on the private object, with another certificate type.
    if hasattr(connection, "get_unverified_chain"):
        return list(connection.get_unverified_chain())
    return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in connection._sslobj.get_unverified_chain()]  # noqa: SLF001
