"""Marks: a ConfigMap in each managed namespace names the agent that governs it.

Two runtimes in one namespace would restart the same workloads for each other's changes, and each would see the other's
Components as foreign. The agent that comes second reports the first by name, and writes nothing. A mark stays when its
agent is away: only an administrator knows whether that is for good.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset import ApplySet, DriftMode, Owner, Settings
from governor.kube.applyset.inventory import CLAIM_TTL_S, CONFIG_MAPS
from governor.kube.applyset.live import get
from governor.kube.applyset.results import FOREIGN, SETTLED
from governor.kube.client import Client
from governor.kube.objects import Object, ObjectRef
from governor.process.clock import Clock
from governor.process.telemetry import logging

NAME: Final = "runtime-governor-mark"
GOVERNED: Final = "namespace-governed"
"""Code of the error on a namespace that another agent governs."""

_log = logging.get_logger(__name__)


class Mark(msgspec.Struct, frozen=True, rename="camel"):
    """The agent that governs a namespace: its runtime, and the namespace of its state."""

    runtime: str
    state_namespace: str

    def __str__(self) -> str:
        return f"runtime {self.runtime!r}, whose agent has its state in namespace {self.state_namespace!r}"


class NamespaceMarks:
    """The marks of one agent in the namespaces of its runtime. ``settings`` are those of its resources."""

    def __init__(self, client: Client, mark: Mark, namespaces: Sequence[str], settings: Settings, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._mark = mark
        self._namespaces = tuple(dict.fromkeys(namespaces))
        # No allowed namespaces: the mark in a namespace that is no longer managed is removed.
        own = msgspec.structs.replace(settings, adopted_managers=frozenset(), allowed_namespaces=None)
        self._set = ApplySet(client, Owner(mark.runtime, mark.state_namespace, f"{own.manager}-marks"), own, clock)
        self._taken_s: float | None = None

    async def verify(self) -> None:
        """Raise PRECONDITION if another agent governs one of the namespaces."""
        await self._unmarked()

    async def take(self) -> None:
        """Mark the namespaces that are not; PRECONDITION if another agent governs one, and then none is marked.

        Marks that were read a moment ago are not read again.
        """
        now_s = self._clock.monotonic()
        if self._taken_s is not None and now_s - self._taken_s < CLAIM_TTL_S:
            return
        if await self._unmarked() or self._taken_s is None:
            await self._write()
        self._taken_s = now_s

    async def _unmarked(self) -> list[str]:
        """Return the namespaces without a mark."""
        found = {namespace: await read_mark(self._client, namespace) for namespace in self._namespaces}
        for namespace, mark in found.items():
            if mark is not None and mark != self._mark:
                self._taken_s = None
                raise _governed(namespace, mark, self._mark)
        return [namespace for namespace, mark in found.items() if mark is None]

    async def _write(self) -> None:
        report = await self._set.converge(map(self._manifest, self._namespaces), drift=DriftMode.ENFORCE)
        for each in report.apply.results:
            if each.code == FOREIGN:  # another agent was faster, or another client has this name
                await self.verify()
                raise GovernorError(Kind.PRECONDITION, GOVERNED, f"{each.ref} {each.error}")
        for removed in report.prune.results:
            if removed.outcome not in SETTLED:
                _log.warning("cannot remove the mark of a namespace", mark=str(removed.ref), error=removed.reason)

    def _manifest(self, namespace: str) -> Object:
        metadata = {"name": NAME, "namespace": namespace}
        data = msgspec.to_builtins(self._mark)
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def read_mark(client: Client, namespace: str) -> Mark | None:
    """Return who governs a namespace, or None; PRECONDITION if its mark cannot be read."""
    found = await get(client, CONFIG_MAPS, ObjectRef("", "ConfigMap", namespace, NAME))
    if found is None:
        return None
    try:
        return msgspec.convert(found.get("data") or {}, Mark)
    except msgspec.ValidationError as error:
        place = f"ConfigMap {NAME} in namespace {namespace!r}"
        message = f"{place} is not the mark of an agent: {error}; {_remove(namespace)}"
        raise GovernorError(Kind.PRECONDITION, GOVERNED, message) from error


def _governed(namespace: str, found: Mark, own: Mark) -> GovernorError:
    message = (
        f"namespace {namespace!r} is governed by {found}; nothing is written for {own}. Remove the namespace from one "
        f"of them or, if that agent is gone for good: {_remove(namespace)}"
    )
    return GovernorError(Kind.PRECONDITION, GOVERNED, message)


def _remove(namespace: str) -> str:
    return f"kubectl delete configmap {NAME} --namespace {namespace}"
