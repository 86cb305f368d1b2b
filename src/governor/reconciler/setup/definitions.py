"""Installs and upgrades the definitions of the reconciler's kinds: the only writer of these definitions.

They are no apply set: a definition must never be pruned, because all objects of its kind would go with it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

import governor
from governor import yamltext
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.errors import NO_API
from governor.kube.objects import Object
from governor.process.clock import Clock
from governor.reconciler.core_kinds import CUSTOM_RESOURCE_DEFINITIONS
from governor.reconciler.kinds import DEFINITIONS
from governor.reconciler.kinds.definition import Definition
from governor.reconciler.setup.definition_plan import Action, Plan, migrated_fields, plan

MANAGER: Final = "governor-reconciler-definitions"
SERVED_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_PASSES: Final = 5
"""How often objects are listed that change while they are stored anew."""
_DIRECTORY: Final = Path(__file__).parent.parent / "kinds" / "definitions"


def shipped_definition(kind: Definition) -> Object:
    """Return the definition of a kind that this release ships."""
    (document,) = yamltext.load((_DIRECTORY / f"{kind.plural}.yaml").read_bytes(), f"{kind.plural}.yaml")
    assert isinstance(document.value, dict)  # noqa: S101 - generated
    return document.value


class Installed(msgspec.Struct, frozen=True):
    """What was done with one definition."""

    name: str
    action: Action
    migrated: int = 0
    """Number of objects that were stored anew in the present version."""

    def __str__(self) -> str:
        migrated = f", {self.migrated} objects stored in the new version" if self.migrated else ""
        return f"{self.name} {self.action}{migrated}"


class DefinitionInstaller:
    """Brings the definitions of one cluster to those of this release."""

    def __init__(self, client: Client, clock: Clock, release: str = governor.__version__) -> None:
        self._client = client
        self._clock = clock
        self._release = release

    async def install(self, *, always: bool = False) -> tuple[Installed, ...]:
        """Create or upgrade all definitions, wait until the kinds are served, and return what was done.

        With ``always`` also a definition that seems unchanged is applied, which repairs edits.
        """
        done = [await self._install(each, always=always) for each in DEFINITIONS]
        for each in done:
            await self._wait_until_served(each.name)
        self._client.discovery.invalidate()
        return tuple(done)

    async def _install(self, kind: Definition, *, always: bool) -> Installed:
        live = await self._read(kind.name)
        if live is not None and live["metadata"].get("deletionTimestamp"):
            message = f"the definition {kind.name} is being deleted; wait until it is gone, and install it again"
            raise GovernorError(Kind.PRECONDITION, "definition-terminating", message)
        planned = plan(live, shipped_definition(kind), self._release, always=always)
        if planned.action in (Action.NONE, Action.LEAVE):
            return Installed(kind.name, planned.action)
        migrated = 0
        if planned.interim is not None:
            await self._apply(planned.interim)
            migrated = await self._migrate(kind, planned)
        applied = await self._apply(planned.definition)
        return Installed(kind.name, _outcome(planned.action, live, applied), migrated)

    async def _read(self, name: str) -> Object | None:
        try:
            return await self._client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None

    async def _apply(self, definition: Object) -> Object:
        return await self._client.apply(CUSTOM_RESOURCE_DEFINITIONS, definition, manager=MANAGER, force=True)

    async def _migrate(self, kind: Definition, planned: Plan) -> int:
        """Store all objects of a kind anew, record that no other version is stored, and return their number.

        The API server writes an object whose stored version changes even if the patch is empty.
        """
        await self._wait_until_served(kind.name)
        count = await self._store_all(kind, planned)
        change = {"status": {"storedVersions": [planned.storage]}}
        await self._client.patch(
            CUSTOM_RESOURCE_DEFINITIONS, kind.name, "", change, manager=MANAGER, subresource="status"
        )
        return count

    async def _store_all(self, kind: Definition, planned: Plan) -> int:
        """Store all objects of a kind anew, and return their number; repeated for those that change meanwhile."""
        for _ in range(_PASSES):
            stored = [await self._store(kind, planned, each["metadata"]) for each in await self._list(kind)]
            if all(stored):
                return len(stored)
        message = f"objects of {kind.name} change while they are stored in the new version; try again"
        raise GovernorError(Kind.CONFLICT, "definition-conflict", message)

    async def _list(self, kind: Definition) -> list[Object]:
        """List the metadata of all objects of a kind; the API server serves a new version of a kind with a delay."""
        deadline_s = self._clock.monotonic() + SERVED_TIMEOUT_S
        while True:
            try:
                return [each async for each in self._client.list(kind.resource, metadata_only=True)]
            except GovernorError as error:
                if error.code != NO_API or self._clock.monotonic() >= deadline_s:
                    raise
            await self._clock.sleep(_POLL_S)

    async def _store(self, kind: Definition, planned: Plan, metadata: Object) -> bool:
        """Store one object anew; return False if it has changed meanwhile."""
        fields = migrated_fields(metadata, planned)
        own = {"resourceVersion": metadata["resourceVersion"], "managedFields": fields}
        change = {"metadata": own} if fields else {}
        try:
            await self._client.patch(kind.resource, metadata["name"], metadata["namespace"], change, manager=MANAGER)
        except GovernorError as error:
            if error.kind not in (Kind.NOT_FOUND, Kind.CONFLICT):
                raise
            return error.kind is Kind.NOT_FOUND
        return True

    async def _wait_until_served(self, name: str) -> None:
        deadline_s = self._clock.monotonic() + SERVED_TIMEOUT_S
        while reason := _not_served(await self._read(name)):
            if self._clock.monotonic() >= deadline_s:
                message = f"the definition {name} is not served after {SERVED_TIMEOUT_S:g} s: {reason}"
                raise GovernorError(Kind.DEADLINE, "definition-not-served", message)
            await self._clock.sleep(_POLL_S)


def _outcome(action: Action, live: Object | None, applied: Object) -> Action:
    before = live["metadata"]["resourceVersion"] if live else ""
    return Action.NONE if applied["metadata"].get("resourceVersion") == before else action


def _not_served(definition: Object | None) -> str:
    """Return why the kind of a definition is not served, or ``""``."""
    if definition is None:
        return "it does not exist"
    conditions = {each["type"]: each for each in _conditions(definition)}
    if conditions.get("Established", {}).get("status") == "True":
        return ""
    names = conditions.get("NamesAccepted", {})
    return str(names.get("message", "")) if names.get("status") == "False" else "it is not established yet"


def _conditions(definition: Object) -> Iterator[Object]:
    yield from (definition.get("status") or {}).get("conditions") or ()
