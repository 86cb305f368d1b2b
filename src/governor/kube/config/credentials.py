"""The current credential of one cluster client, renewed before it expires and when the server rejects it.

An inline value never expires. Files are read again after ``FILE_TTL_S``, because kubelets and certificate managers
replace them. A credential from an exec plugin is used until shortly before it expires.
"""

import asyncio
import datetime
import math
from pathlib import Path
from typing import Final

from governor.errors import GovernorError, Kind, invalid
from governor.kube.config import exec_plugin
from governor.kube.config.access import Access, Credential
from governor.process.clock import Clock
from governor.process.telemetry.logging import get_logger
from governor.values.secret import Secret

FILE_TTL_S: Final = 60.0
MIN_RENEWAL_S: Final = 10.0
"""Minimum time between two runs of a plugin, even if it failed or the server rejects its credential."""
_RENEW_BEFORE_EXPIRY_S: Final = 60.0
_MAX_FILE_BYTES: Final = 1024 * 1024

_log = get_logger(__name__)


class Credentials:
    """The current credential of one client."""

    __slots__ = ("_access", "_cached", "_clock", "_expires_s", "_failed_s", "_failure", "_lock", "_renewed_s")

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._lock = asyncio.Lock()
        self._cached = None if _is_renewable(access) else read_files(access)
        self._expires_s = math.inf if self._cached else -math.inf
        self._renewed_s = -math.inf
        self._failure: GovernorError | None = None
        self._failed_s = -math.inf

    def cached(self) -> Credential | None:
        """Return the credential if it has not expired."""
        return self._cached if self._clock.monotonic() < self._expires_s else None

    async def get(self, rejected: Credential | None = None) -> Credential:
        """Return the credential, renewed if it has expired or is the ``rejected`` one and renewable."""
        async with self._lock:
            cached = self.cached()
            if cached is not None and (cached is not rejected or not self._may_renew()):
                return cached
            try:
                credential, ttl_s = await self._renew()
            except GovernorError as error:
                if self._cached is None or rejected is not None:
                    raise
                # It may still be valid, and the files may be in the middle of a rotation.
                _log.warning("credential renewal failed; the old credential stays in use", reason=str(error))
                credential, ttl_s = self._cached, MIN_RENEWAL_S
            return self._store(credential, ttl_s)

    def _may_renew(self) -> bool:
        if self._access.plugin is not None:
            return self._clock.monotonic() >= self._renewed_s + MIN_RENEWAL_S
        return _is_renewable(self._access)

    def _store(self, credential: Credential, ttl_s: float) -> Credential:
        now_s = self._clock.monotonic()
        self._renewed_s, self._expires_s = now_s, now_s + ttl_s
        # An equal credential keeps its identity: callers detect a renewed one by ``is``.
        if self._cached is None or self._cached != credential:
            self._cached = credential
        return self._cached

    async def _renew(self) -> tuple[Credential, float]:
        if self._access.plugin is None:
            return await asyncio.to_thread(read_files, self._access), FILE_TTL_S
        self._raise_recent_failure()
        try:
            ca = await asyncio.to_thread(_authority, self._access)
            credential, expires = await exec_plugin.run(self._access.plugin, self._access, ca)
        except GovernorError as error:
            self._failure, self._failed_s = error, self._clock.monotonic()
            raise
        self._failure = None
        return credential, self._ttl_s(expires)

    def _raise_recent_failure(self) -> None:
        """Raise the error of the last run again: all requests that wait for a failing plugin share one run."""
        error = self._failure
        if error is not None and self._clock.monotonic() < self._failed_s + MIN_RENEWAL_S:
            raise GovernorError(error.kind, error.code, error.message, error.details) from error

    def _ttl_s(self, expires: datetime.datetime | None) -> float:
        if expires is None:
            return math.inf
        left_s = (expires - self._clock.now()).total_seconds()
        return max(left_s - min(_RENEW_BEFORE_EXPIRY_S, left_s / 2), MIN_RENEWAL_S)


def read_files(access: Access) -> Credential:
    """Return the credential of an access without an exec plugin, with its files read."""
    token = _text(access.token, "token") if access.token else None
    if access.client_certificate is None:
        return Credential(_authority(access), token=token)
    certificate, key = access.client_certificate.certificate, access.client_certificate.key
    pem = _read(certificate, "client certificate") if isinstance(certificate, Path) else certificate
    return Credential(_authority(access), pem, _text(key, "client key"), token)


def _authority(access: Access) -> bytes:
    return _read(access.ca, "certificate authority") if isinstance(access.ca, Path) else access.ca


def _text(value: Secret | Path, what: str) -> Secret:
    if isinstance(value, Secret):
        return value
    return Secret(_read(value, what).decode("ascii", errors="replace").strip())


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES)
    except OSError as error:
        message = f"cannot read the {what} of the cluster from {path}: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "kube-credential", message) from error
    if not data.strip():
        raise invalid("kube-credential", f"{path} is empty; it must contain the {what} of the cluster")
    return data


def _is_renewable(access: Access) -> bool:
    pair = access.client_certificate
    parts = (access.ca, access.token, pair and pair.certificate, pair and pair.key)
    return access.plugin is not None or any(isinstance(part, Path) for part in parts)
