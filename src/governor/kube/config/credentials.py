"""The credential of one cluster client as it is now: files are read again and a plug-in is asked again, in time, and
when the server refused what they gave.

A text is believed for ever; files for ``FILES_S``, since kubelets and certificate managers replace them; what a
plug-in gave until shortly before it expires.
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

FILES_S: Final = 60.0
PAUSE_S: Final = 10.0
"""A plug-in is not asked more often than this, whatever the server says about its credential."""
_EARLY_S: Final = 60.0
_MOST_FILE_BYTES: Final = 1024 * 1024

_log = get_logger(__name__)


class Credentials:
    """The present credential of one client."""

    __slots__ = ("_access", "_asked_s", "_clock", "_held", "_turn", "_until_s")

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._turn = asyncio.Lock()
        self._held = None if _changes(access) else read(access)
        self._until_s = math.inf if self._held else -math.inf
        self._asked_s = -math.inf

    def held(self) -> Credential | None:
        """The credential, if nothing needs to be read or asked for it."""
        return self._held if self._clock.monotonic() < self._until_s else None

    async def fresh(self, refused: Credential | None = None) -> Credential:
        """The credential; after the server ``refused`` one, another if there is any, or else the same."""
        async with self._turn:
            held = self.held()
            if held is not None and (held is not refused or not self._renewable()):
                return held
            try:
                credential, lasts_s = await self._ask()
            except GovernorError as error:
                if self._held is None or refused is not None:
                    raise
                # It may be good yet, and files may just be in the course of being replaced.
                _log.warning("the credential cannot be renewed; the old one is used on", reason=str(error))
                credential, lasts_s = self._held, PAUSE_S
            return self._hold(credential, lasts_s)

    def _renewable(self) -> bool:
        if self._access.plugin is not None:
            return self._clock.monotonic() >= self._asked_s + PAUSE_S
        return _changes(self._access)

    def _hold(self, credential: Credential, lasts_s: float) -> Credential:
        now_s = self._clock.monotonic()
        self._asked_s, self._until_s = now_s, now_s + lasts_s
        # Whether a renewed one is another is asked by identity.
        if self._held is None or self._held != credential:
            self._held = credential
        return self._held

    async def _ask(self) -> tuple[Credential, float]:
        if self._access.plugin is None:
            return await asyncio.to_thread(read, self._access), FILES_S
        ca = await asyncio.to_thread(_authority, self._access)
        credential, expires = await exec_plugin.ask(self._access.plugin, self._access, ca)
        return credential, self._lasts_s(expires)

    def _lasts_s(self, expires: datetime.datetime | None) -> float:
        if expires is None:
            return math.inf
        left_s = (expires - self._clock.now()).total_seconds()
        return max(left_s - min(_EARLY_S, left_s / 2), PAUSE_S)


def read(access: Access) -> Credential:
    """The credential of an access without a plug-in; its files are read."""
    token = _text(access.token, "token") if access.token else None
    if access.client_certificate is None:
        return Credential(_authority(access), token=token)
    certificate, key = access.client_certificate.certificate, access.client_certificate.key
    shown = _read(certificate, "client certificate") if isinstance(certificate, Path) else certificate
    return Credential(_authority(access), shown, _text(key, "client key"), token)


def _authority(access: Access) -> bytes:
    return _read(access.ca, "certificate authority") if isinstance(access.ca, Path) else access.ca


def _text(value: Secret | Path, what: str) -> Secret:
    if isinstance(value, Secret):
        return value
    return Secret(_read(value, what).decode("ascii", errors="replace").strip())


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_FILE_BYTES)
    except OSError as error:
        message = f"cannot read the {what} of the cluster from {path}: {error.strerror or error}"
        raise GovernorError(Kind.PRECONDITION, "kube-credential", message) from error
    if not data.strip():
        raise invalid("kube-credential", f"{path} is empty: it should hold the {what} of the cluster")
    return data


def _changes(access: Access) -> bool:
    pair = access.client_certificate
    parts = (access.ca, access.token, pair and pair.certificate, pair and pair.key)
    return access.plugin is not None or any(isinstance(part, Path) for part in parts)
