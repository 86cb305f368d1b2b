"""The server certificate, renewed or reloaded while the server runs.

It comes from files that may be replaced at any time, or from the server's own CA (``authority``).
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.process import tls
from governor.process.clock import Clock
from governor.process.files import write_atomic
from governor.process.telemetry import logging
from governor.server.data_directory import AUTHORITY, CERTIFICATE
from governor.server.settings import Settings

RELOAD_EVERY_S: Final = 60.0
RENEW_EVERY_S: Final = 30 * 86_400.0
"""A third of the validity of issued certificates, so that two renewals may fail."""

_WARN_EVERY: Final = timedelta(days=1)
_LATE: Final = 0.1
"""Part of the validity that is left when a certificate should have been replaced."""

_log = logging.get_logger(__name__)


class Certificate:
    """The TLS context of all connections; a new certificate applies to connections accepted afterwards."""

    def __init__(
        self, files: tuple[Path, Path], clock: Clock, every_s: float, renew: Callable[[], None] = lambda: None
    ) -> None:
        self._files = files
        self._clock = clock
        self._every_s = every_s
        self._renew = renew
        self._served = self._load()
        self.context = tls.server_context(*files)
        self._warned: datetime | None = None
        self._warn()

    @property
    def pin(self) -> str:
        """Return the CA's fingerprint, or ``""`` if the chain lacks the CA and agents cannot verify the pin."""
        from cryptography import x509  # noqa: PLC0415 - not needed without TLS

        certificate, _ = self._files
        last = x509.load_pem_x509_certificates(certificate.read_bytes())[-1]
        return tls.fingerprint_of(certificate) if last.issuer == last.subject else ""

    async def run(self) -> None:
        """Renew or reload the certificate periodically until cancelled; warn before it expires."""
        while True:
            await self._clock.sleep(self._every_s)
            try:
                self._serve(await asyncio.to_thread(self._load))
            except (GovernorError, OSError) as error:
                _log.warning("certificate renewal failed; the old certificate stays in use", error=str(error))
            self._warn()

    def _load(self) -> list[bytes]:
        """Renew the files if they are ours and return their content; raise if key and certificate do not match."""
        self._renew()
        # Checked in a separate context: loading a mismatched pair would leave the one in use without a certificate.
        tls.server_context(*self._files)
        return [file.read_bytes() for file in self._files]

    def _serve(self, content: list[bytes]) -> None:
        if content != self._served:
            self.context.load_cert_chain(*self._files)
            self._served = content
            _log.info("new certificate in use", file=str(self._files[0]))

    def _warn(self) -> None:
        """Warn once a day if the certificate has expired or soon will."""
        from cryptography import x509  # noqa: PLC0415 - not needed without TLS

        served, now = x509.load_pem_x509_certificates(self._served[0])[0], self._clock.now()
        begin, end = served.not_valid_before_utc, served.not_valid_after_utc
        if end - now > (end - begin) * _LATE or (self._warned is not None and now - self._warned < _WARN_EVERY):
            return
        self._warned = now
        if now < end:
            event = "certificate expires soon: replace its file"
        else:
            event = "certificate has expired, clients reject it: replace its file"
        _log.warning(event, file=str(self._files[0]), expires=end.isoformat())


def open_certificate(settings: Settings, directory: Path, clock: Clock) -> Certificate | None:
    """Return the configured certificate; None without TLS. Blocking."""
    if settings.tls_names:
        return _issued(settings.tls_names, directory, clock)
    if settings.tls_certificate and settings.tls_key:
        return Certificate((settings.tls_certificate, settings.tls_key), clock, RELOAD_EVERY_S)
    return None


def _issued(names: tuple[str, ...], directory: Path, clock: Clock) -> Certificate:
    from governor.server.identity.authority import open_authority  # noqa: PLC0415 - most servers have a configured certificate

    file = directory / CERTIFICATE
    authority = open_authority(directory / AUTHORITY, clock.now())
    return Certificate((file, file), clock, RENEW_EVERY_S, lambda: _write(file, authority.issue(names, clock.now())))


def _write(file: Path, certificate: bytes) -> None:
    try:
        write_atomic(file, certificate, 0o600)
    except GovernorError as error:
        if error.kind is not Kind.EXHAUSTED or not file.exists():
            raise
        # On a full disk the server keeps its old certificate.
        _log.warning("cannot write a new certificate", error=str(error))
