"""The resources of one runtime in its cluster: read, applied, removed and compared through one apply set.

The runtime id owns the objects, and the inventory is in the agent's namespace. An object that another tool manages is
refused, unless its field manager is adopted. Nothing is deleted to be created again, and a Secret is deleted only if no
resource in the namespaces refers to it.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final, Protocol

from msgspec import structs

from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.platforms.kubernetes.resources.live_resources import (
    LiveResource,
    LiveResources,
    live_version,
    object_ref,
)
from governor.agent.platforms.kubernetes.resources.manifests import Manifests
from governor.agent.platforms.kubernetes.resources.namespace_marks import GOVERNED, Mark, NamespaceMarks
from governor.agent.platforms.kubernetes.resources.object_watch import ObjectWatch
from governor.agent.platforms.kubernetes.resources.outcomes import (
    Applied,
    Drifted,
    Outcome,
    ResourceResult,
    added_text,
    altered_text,
    drift_texts,
    explained,
    invalid,
    loaded_drifts,
    not_served,
    rejected,
    results_of,
    still_exists,
)
from governor.agent.redaction import Redactor
from governor.domain.dapr.kinds import GROUP
from governor.domain.documents import Drift, ResourceRef
from governor.domain.reports import Cause
from governor.errors import GovernorError, Kind
from governor.kube.applyset import (
    ApplySet,
    Claim,
    DriftMode,
    Entries,
    Owner,
    PruneReport,
    Recreate,
    Repair,
    Settings,
    UnrecordedError,
)
from governor.kube.applyset.inventory import CLAIM_LOST
from governor.kube.applyset.live import find_kinds, managers_of, owner_of
from governor.kube.client import Client
from governor.kube.errors import NO_API
from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.process.clock import Clock, SystemClock
from governor.values.trees import Manifest

LABEL_PREFIX: Final = "runtime-governor.dev"
MANAGER: Final = "governor-agent"

_COMPONENT: Final = (GROUP, "v1alpha1", "Component")
_SECRET: Final = ("", "Secret")
_NAMESPACES: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
_KUBE_SYSTEM: Final = "kube-system"
_SINGLE_READS: Final = 8
_SETTLE_S: Final = 0.1
"""Between a new Secret and the resource that refers to it. dapr-operator resolves the reference from its own cache, and
if the Secret is not there yet, it sends no update to that sidecar any more until that connects again."""
_QUIET_S: Final = 0.05
"""After a write, for Dapr: requests of the application fail while a sidecar replaces a component, and work on the same
machine prolongs that. It usually needs 15 to 30 ms."""
_REJECTED: Final = frozenset({"manifests-invalid", "set-too-large"})
"""Codes of errors with which the apply set rejects the content before it writes anything."""


class Claimant(Protocol):
    """The process of an agent that claims the resources: its name, and an epoch that each later process exceeds."""

    @property
    def holder(self) -> str:
        """The name of the process, for messages."""
        ...

    async def raise_epoch(self, above: int) -> int:
        """Return the epoch, raised above another one; CONFLICT if a later process has begun."""
        ...


class AppliedResources:
    """The Dapr resources and Secrets of one runtime.

    ``namespace`` is the agent's own, ``namespaces`` are those of the runtime, and ``adopt`` the field managers whose
    objects the agent takes over. Of several processes only the last ``claimant`` writes.
    """

    def __init__(
        self,
        client: Client,
        runtime: str,
        namespace: str,
        namespaces: Sequence[str],
        redactor: Redactor,
        *,
        adopt: Collection[str] = (),
        clock: Clock | None = None,
        claimant: Claimant | None = None,
    ) -> None:
        self._client = client
        self._namespaces = tuple(namespaces)
        self._redactor = redactor
        # An object that lost its owner label is recognised by its field manager.
        name = f"{MANAGER}-{runtime}"
        self._settings = Settings(
            manager=name,
            label_prefix=LABEL_PREFIX,
            allowed_namespaces=frozenset(namespaces),
            force_conflicts=True,  # on the runtime's own and adopted objects only
            refuse_foreign=True,
            adopted_managers=frozenset(adopt),
            recreate=Recreate.NEVER,
            single_reads=_SINGLE_READS,
            settle_s=_SETTLE_S,
            quiet_s=_QUIET_S,
        )
        self._runtime = runtime
        self._owner = Owner(runtime, namespace, name)
        self._clock = clock
        self._set = ApplySet(client, self._owner, self._settings, clock)
        self._live = LiveResources(client, self._owner, self._settings, self._namespaces)
        self._claimant = claimant
        mark = Mark(runtime, namespace)
        self._marks = (
            NamespaceMarks(client, mark, self._namespaces, self._settings, clock or SystemClock()) if claimant else None
        )
        self._claiming = asyncio.Lock()
        self.deposed = ""
        """Why this process may no longer write, with the present holder of the claim; empty if it may."""
        self._repairs: tuple[Repair, ...] = ()
        self.uids: dict[ResourceRef, str] = {}
        """The uids of the runtime's resources when they were last read."""

    @property
    def owner_label(self) -> str:
        """The label that names the runtime of an object."""
        return self._settings.owner_label

    def watch(self, clock: Clock, on_change: Callable[[], None]) -> ObjectWatch:
        """Return a watch of these resources; ``on_change`` is called when another client changes one."""
        return ObjectWatch(self._client, self._live.labels, self._settings.manager, clock=clock, on_change=on_change)

    async def take_claim(self) -> None:
        """Mark the namespaces and claim the resources, unless they are: no process that claimed them earlier writes.

        PRECONDITION if another agent governs one of the namespaces. A new holder does not write for ten seconds: claim
        them at the start.
        """
        async with self._claiming:
            with self._explaining():
                if self._marks is not None:
                    await self._marks.take()
                if self._claimant is None:
                    return
                stored = await self._set.stored_claim()
                epoch = await self._claimant.raise_epoch(above=stored.epoch if stored else 0)
                cluster = await self._client.get(_NAMESPACES, _KUBE_SYSTEM, metadata_only=True)
                claim = Claim(self._claimant.holder, epoch, 1, cluster["metadata"]["uid"])
                claimed = ApplySet(self._client, self._owner, self._settings, self._clock, claim)
                await claimed.take_claim()
            self._set, self._claimant = claimed, None  # it is claimed once

    async def permit_write(self) -> None:
        """Return when this process may write what belongs to others, such as an annotation; PRECONDITION if deposed."""
        await self.take_claim()
        with self._explaining():
            await self._set.permit_write()
        self.deposed = ""

    async def read(self, manifests: Manifests, *, drift: Drift = Drift.ENFORCE) -> dict[ResourceRef, LiveResource]:
        """Return the runtime's resources as they are in the cluster; ``drift`` decides whether drift counts.

        PRECONDITION if another agent governs one of the namespaces.
        """
        with self._explaining():
            entries, _ = await asyncio.gather(self._set.inventory(), self._verify_marks())
            found = await self._live.own(manifests, entries, drift)
        self.uids = {ref: each.uid for ref, each in found.items()}
        return found

    async def _verify_marks(self) -> None:
        if self._marks is not None:
            await self._marks.verify()

    async def adoptable(self, manifests: Manifests, own: Collection[ResourceRef]) -> dict[ResourceRef, LiveResource]:
        """Return the resources of a delivery that others own and that ``adopt`` allows to take over."""
        with self._explaining():
            return await self._live.adoptable(manifests, own)

    async def foreign_resources(
        self, namespaces: Collection[str], own: Collection[ResourceRef], *, cached: bool = False
    ) -> tuple[ForeignResource, ...]:
        """Return the resources of others that concern counters; see ``LiveResources``."""
        with self._explaining():
            return await self._live.foreign_resources(namespaces, own, cached=cached)

    async def last_write(self) -> datetime | None:
        """Return when this runtime's inventory was last written, by the API server's clock: after any removal."""
        with self._explaining():
            return await self._live.last_write()

    async def converge(
        self,
        manifests: Manifests,
        *,
        kept: Collection[ObjectRef] = (),
        drift: Drift = Drift.ENFORCE,
        allow_empty: bool = False,
    ) -> Applied:
        """Apply a delivery and remove what it no longer has; nothing is written if the server would refuse a part.

        ``kept`` are the Secrets of the last verified bundle: pass them until this one is verified, then call again
        without. PRECONDITION if all resources would be removed and that is not allowed. Any other error is due to the
        agent or its connection; failures of single resources are results.
        """
        if manifests.rejections:
            return rejected(manifests)
        await self.take_claim()
        with self._explaining():
            if missing := await self._not_served(manifests):
                return missing
            entries = await self._set.inventory()
            if entries and not manifests.resources and not allow_empty:
                raise _emptied(entries)
            applied = await self._converge(manifests, drift, entries, frozenset(kept))
        self.deposed = ""
        return self._redacted(applied)

    async def find_drift(self, manifests: Manifests) -> Drifted | None:
        """Return how the cluster differs from a delivery that was applied, or None; nothing is written."""
        with self._explaining():
            if missing := await self._not_served(manifests):
                return Drifted({ref: each.text for ref, each in missing.failures.items()}, is_repairable=False)
            entries, report, returned, live = await asyncio.gather(
                self._set.inventory(),
                self._set.find_drift(_objects(manifests), self._repairs, self._live.suspects),
                self._live.existing(manifests.removals),
                self._live.existing(manifests.resources),
            )
            added, altered = self._live.added(manifests, live), await self._live.altered(manifests, live)
        lost = [ref for ref in manifests.resources if object_ref(ref) not in entries]
        texts = {
            **dict.fromkeys(lost, "is no longer in the agent's inventory"),
            **{ref: self._returned_text(each) for ref, each in returned.items()},
            **{ref: added_text(fields) for ref, fields in added.items()},
            **{ref: altered_text(fields) for ref, fields in altered.items()},
            **drift_texts(manifests, report.objects),
        }
        is_repairable = (
            lost or any(each.repairable for each in report.objects) or any(map(self._owns, returned.values()))
        )
        redacted = {ref: self._redactor.redact(text) for ref, text in texts.items()}
        loaded = loaded_drifts(manifests, report.objects).union(returned, added, altered)
        return Drifted(redacted, bool(is_repairable), loaded) if texts else None

    async def _converge(
        self, manifests: Manifests, drift: Drift, entries: Entries, kept: frozenset[ObjectRef]
    ) -> Applied:
        objects = _objects(manifests)
        desired = {*map(ref_of, objects), *kept}
        stale = {ref for ref in entries if (ref.group, ref.kind) == _SECRET} - desired
        existing = await self._live.existing([ref for ref in manifests.removals if object_ref(ref) not in entries])
        foreign = {ref: still_exists(managers_of(live)) for ref, live in existing.items() if not self._owns(live)}
        try:
            report = await self._set.converge(
                objects,
                drift=DriftMode(drift.value),
                repairs=self._repairs,
                allow_empty=True,
                rehearse=True,
                first=(frozenset(map(object_ref, manifests.secret_stores)),),
                kept=kept | (stale & await self._live.referenced_secrets() if stale else set()),
                removals=[object_ref(ref) for ref in existing if ref not in foreign],
                suspects=self._live.suspects,
            )
        except UnrecordedError as error:
            text = f"what was written could not be recorded, and is applied again: {error.message}"
            return Applied(results_of(manifests, error.apply, PruneReport()) | foreign, error=text)
        except GovernorError as error:
            if error.code not in _REJECTED:
                raise
            return invalid(manifests, error)
        self._repairs = report.drift.repairs
        remaining = drift_texts(manifests, [each for each in report.drift.objects if each.remains])
        applied = Applied(results_of(manifests, report.apply, report.prune) | foreign, remaining)
        return await self._compared(manifests, applied, drift) if applied.ok else applied

    async def _compared(self, manifests: Manifests, applied: Applied, drift: Drift) -> Applied:
        """Return the results with the versions of what was written.

        A resource that is not stored as it was applied has failed; other drift is tolerated.
        """
        written = manifests.resources.keys() & set(applied.written)
        due = written | (self._live.unconfirmed(manifests) if drift is Drift.ENFORCE else set())
        live = await self._live.existing(due, manifests.objects)
        altered = await self._live.altered(manifests, {ref: live[ref] for ref in live.keys() - applied.drift.keys()})
        failures = {
            ref: ResourceResult(Outcome.FAILED, altered_text(each), Cause.RUNTIME) for ref, each in altered.items()
        }
        versions = {ref: live_version(live[ref]) for ref in live.keys() & written}
        gone = set(applied.written)
        self.uids = {ref: uid for ref, uid in self.uids.items() if ref not in gone}
        self.uids |= {ref: each.uid for ref, each in versions.items()}
        return structs.replace(applied, results={**applied.results, **failures}, versions=versions)

    async def _not_served(self, manifests: Manifests) -> Applied | None:
        """Return the results of a delivery with kinds that the cluster does not serve, or None."""
        wanted = {(GROUP, each["apiVersion"].rpartition("/")[2], each["kind"]) for each in manifests.resources.values()}
        served = await find_kinds(self._client, wanted | {_COMPONENT}) if wanted else {}
        missing = [(kind, f"{group}/{version}") for group, version, kind in wanted - served.keys()]
        return not_served(manifests, missing, has_dapr=_COMPONENT in served) if missing else None

    def _owns(self, live: Object) -> bool:
        return owner_of(live, self._settings) == self._runtime

    def _returned_text(self, live: Object) -> str:
        if self._owns(live):
            return "is back, although the delivery removes it"
        return still_exists(managers_of(live)).text

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except GovernorError as error:
            if error.code in {CLAIM_LOST, GOVERNED}:
                self.deposed = error.message
            if error.code == NO_API:
                self._client.discovery.invalidate()  # the next try finds out whether the kind is gone
            raise explained(error) from error

    def _redacted(self, applied: Applied) -> Applied:
        redact = self._redactor.redact
        results = {ref: structs.replace(each, text=redact(each.text)) for ref, each in applied.results.items()}
        drift = {ref: redact(text) for ref, text in applied.drift.items()}
        return structs.replace(applied, results=results, drift=drift, error=redact(applied.error))


def _objects(manifests: Manifests) -> tuple[Manifest, ...]:
    """Return all objects to apply."""
    return (*manifests.secrets.values(), *manifests.objects.values())


def _emptied(entries: Entries) -> GovernorError:
    message = (
        f"the delivery has no resources, and {len(entries)} objects of the runtime are in the cluster; nothing was "
        "removed. Pass allow_empty to remove all of them"
    )
    return GovernorError(Kind.PRECONDITION, "delivery-empty", message)
