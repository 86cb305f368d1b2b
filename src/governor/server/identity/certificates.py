"""The certificate that the server shows, kept fresh while it runs.

It comes from files that somebody else may replace at any time, or from the server's own authority (``authority``).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind
from governor.process import tls
from governor.process.clock import Clock
from governor.process.files import write_atomic
from governor.process.telemetry import logging
from governor.server.data_directory import AUTHORITY, CERTIFICATE
from governor.server.settings import Settings

LOOK_EVERY_S: Final = 60.0
RENEW_EVERY_S: Final = 30 * 86_400.0
"""A third of the time for which our own certificates are good: two renewals may fail."""

_log = logging.get_logger(__name__)


class Certificate:
    """One for all connections; those made after a renewal get the new one."""

    def __init__(
        self, files: tuple[Path, Path], clock: Clock, every_s: float, renew: Callable[[], None] = lambda: None
    ) -> None:
        self._files = files
        self._clock = clock
        self._every_s = every_s
        self._renew = renew
        self._shown = self._newest()
        self.context = tls.server_context(*files)

    @property
    def pin(self) -> str:
        """The fingerprint of its authority, if it is shown; otherwise agents cannot take it from the connection."""
        from cryptography import x509  # noqa: PLC0415 - a server without TLS need not have it

        certificate, _ = self._files
        last = x509.load_pem_x509_certificates(certificate.read_bytes())[-1]
        return tls.fingerprint_of(certificate) if last.issuer == last.subject else ""

    async def run(self) -> None:
        """Look for a newer one until cancelled."""
        while True:
            await self._clock.sleep(self._every_s)
            try:
                self._show(await asyncio.to_thread(self._newest))
            except (GovernorError, OSError) as error:
                _log.warning("the server goes on with its old certificate", error=str(error))

    def _newest(self) -> list[bytes]:
        """The content of the files; refuses a pair that does not fit, which would leave a context without any."""
        self._renew()
        tls.server_context(*self._files)
        return [file.read_bytes() for file in self._files]

    def _show(self, newest: list[bytes]) -> None:
        if newest != self._shown:
            self.context.load_cert_chain(*self._files)
            self._shown = newest
            _log.info("new certificate in use", file=str(self._files[0]))


def open_certificate(settings: Settings, directory: Path, clock: Clock) -> Certificate | None:
    """What the settings ask for; None for plain text. Blocking."""
    if settings.tls_names:
        return _own(settings.tls_names, directory, clock)
    if settings.tls_certificate and settings.tls_key:
        return Certificate((settings.tls_certificate, settings.tls_key), clock, LOOK_EVERY_S)
    return None


def _own(names: tuple[str, ...], directory: Path, clock: Clock) -> Certificate:
    from governor.server.identity.authority import open_authority  # noqa: PLC0415 - most servers are given a certificate

    file = directory / CERTIFICATE
    authority = open_authority(directory / AUTHORITY, clock.now())
    return Certificate((file, file), clock, RENEW_EVERY_S, lambda: _put(file, authority.issue(names, clock.now())))


def _put(file: Path, certificate: bytes) -> None:
    try:
        write_atomic(file, certificate, 0o600)
    except GovernorError as error:
        if error.kind is not Kind.EXHAUSTED or not file.exists():
            raise
        # With a full disk a server that answers is worth more than a certificate of today.
        _log.warning("cannot write a new certificate", error=str(error))
