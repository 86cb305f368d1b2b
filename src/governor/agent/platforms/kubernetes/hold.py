"""A hold that an administrator sets in the cluster, without the server: annotations of the agent's own namespace.

Reading one namespace needs only a Role in it; watching it would need a permission on all namespaces, so it is polled.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from governor.domain.windows import Hold, Instant
from governor.errors import GovernorError
from governor.kube.client import Client
from governor.kube.objects import ApiResource
from governor.process.clock import Clock
from governor.process.telemetry import logging

HOLD_UNTIL: Final = "runtime-governor.dev/hold-until"
HOLD_REASON: Final = "runtime-governor.dev/hold-reason"
NAMESPACES: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
_POLL_S: Final = 5.0
_MAX_REASON: Final = 500
_UNTIL_CORRECTED: Final = datetime(9998, 1, 1, tzinfo=UTC)
"""The end of a hold whose annotation is not a time: it was meant as a hold."""

_log = logging.get_logger(__name__)


class NamespaceHold:
    """The hold in the annotations of one namespace, as last read."""

    def __init__(self, client: Client, namespace: str, clock: Clock, *, on_change: Callable[[], None]) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._on_change = on_change
        self._failure = ""
        self.current: Hold | None = None
        """The hold, or None; it may have expired."""

    async def run(self) -> None:
        """Read the annotations again and again until cancelled; call ``on_change`` when the hold has changed."""
        while True:
            await self._clock.sleep(_POLL_S)
            before = self.current
            await self.read()
            if self.current != before:
                _log.info("hold changed by an annotation", hold=str(self.current), namespace=self._namespace)
                self._on_change()

    async def read(self) -> None:
        """Read the annotations; if that fails, what was read last is kept."""
        try:
            found = await self._client.get(NAMESPACES, self._namespace, metadata_only=True)
        except GovernorError as error:
            if str(error) != self._failure:
                _log.warning("cannot read a hold from the namespace", namespace=self._namespace, error=str(error))
            self._failure = str(error)
            return
        self._failure = ""
        self.current = hold_of(found["metadata"].get("annotations") or {}, self._namespace)


def hold_of(annotations: Mapping[str, str], namespace: str) -> Hold | None:
    """Return the hold that annotations of a namespace describe, or None."""
    text = annotations.get(HOLD_UNTIL)
    if text is None:
        return None
    where = f"annotation {HOLD_UNTIL} of namespace {namespace}"
    try:
        return Hold(msgspec.convert(text, Instant), annotations.get(HOLD_REASON, "")[:_MAX_REASON] or where)
    except (msgspec.ValidationError, ValueError):
        reason = f"{where} is not a time such as 2026-01-31T22:00:00Z; correct it, or remove it to end the hold"
        return Hold(_UNTIL_CORRECTED, reason)
