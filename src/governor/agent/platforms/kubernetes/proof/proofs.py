"""The proofs of running sidecars: which instance was seen to use which content. Stored, so that a restarted agent need
not restart a workload to prove again what it saw.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from governor.agent.state.agent_state import Blobs
from governor.agent.verification.verdicts import Proof
from governor.domain.documents import ResourceRef
from governor.errors import GovernorError, Kind
from governor.kube.objects import ObjectRef
from governor.values.trees import Manifest

_NAME = "proofs.json"


class Adoption(msgspec.Struct, frozen=True):
    """A resource that the agent took over as it was: the version of the object, and the delivery that did it."""

    version: str
    sequence: int
    attempt: int


class _Stored(msgspec.Struct, frozen=True):
    """Proofs by instance; references are pairs because JSON has only texts as keys."""

    instances: dict[str, tuple[tuple[ResourceRef, Proof], ...]]
    former: tuple[tuple[ResourceRef, tuple[Manifest, ...]], ...] = ()
    versions: tuple[tuple[ResourceRef, str], ...] = ()
    seen: tuple[tuple[ResourceRef, str], ...] = ()
    secrets: tuple[ObjectRef, ...] = ()
    adopted: tuple[tuple[ResourceRef, Adoption], ...] = ()
    disturbed: tuple[ResourceRef, ...] = ()


class ProofBook:
    """The proofs of all sidecars of one runtime, and which writes they are of.

    A proof holds as long as its object has the version with which it was proven; a write by any client ends it.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._proofs: dict[str, dict[ResourceRef, Proof]] = {}
        self._former: dict[ResourceRef, tuple[Manifest, ...]] = {}
        self._versions: dict[ResourceRef, str] = {}
        self._seen: dict[ResourceRef, str] = {}
        self._adopted: dict[ResourceRef, Adoption] = {}
        self.secrets: frozenset[ObjectRef] = frozenset()
        """The Secrets of the last verified delivery, to which it may return."""
        self.disturbed: frozenset[ResourceRef] = frozenset()
        """The resources that another client has changed since everything was verified: a sidecar may fail for that."""
        self._is_stored = True

    async def restore(self) -> None:
        """Load the stored proofs."""
        data = await self._blobs.read(_NAME)
        if data is None:
            return
        try:
            stored = msgspec.json.decode(data, type=_Stored)
        except msgspec.MsgspecError as error:
            message = f"{self._blobs.location(_NAME)} is not readable by this version of the agent; remove it"
            raise GovernorError(Kind.PRECONDITION, "state-unreadable", message) from error
        self._proofs = {instance: dict(proofs) for instance, proofs in stored.instances.items()}
        self._former, self._versions, self._seen = dict(stored.former), dict(stored.versions), dict(stored.seen)
        self.secrets = frozenset(stored.secrets)
        self._adopted = dict(stored.adopted)
        self.disturbed = frozenset(stored.disturbed)

    def by_instance(self) -> Mapping[str, Mapping[ResourceRef, Proof]]:
        """Return all proofs."""
        return self._proofs

    def of(self, instance: str) -> Mapping[ResourceRef, Proof]:
        """Return the proofs of an instance."""
        return self._proofs.get(instance, {})

    @property
    def former(self) -> Mapping[ResourceRef, tuple[Manifest, ...]]:
        """What resources contained, latest first, that some sidecars must unload: the cluster no longer shows which.

        A resource was removed, or its scopes were narrowed. All of it is kept until everything is verified.
        """
        return self._former

    @property
    def versions(self) -> Mapping[ResourceRef, str]:
        """What identifies the agent's last write of each resource; of a removed one, the write before the removal."""
        return self._versions

    @property
    def adopted(self) -> frozenset[ResourceRef]:
        """The resources that were adopted as they are and have not been written since: nothing restarts for them."""
        return frozenset(self._adopted)

    def adopt(self, live: Mapping[ResourceRef, str], sequence: int, attempt: int) -> None:
        """Record resources that a delivery takes over as they are, with the versions of their objects."""
        self.drop({ref for ref, version in live.items() if self._seen.get(ref) != version})
        new = {ref: Adoption(version, sequence, attempt) for ref, version in live.items()}
        if any(self._adopted.get(ref) != each for ref, each in new.items()):
            self._adopted, self._seen, self._is_stored = {**self._adopted, **new}, {**self._seen, **live}, False

    def end_adoptions(self, sequence: int, attempt: int) -> None:
        """End the adoptions by earlier deliveries if this one is a retry: an operator wants everything proven."""
        earlier = {ref for ref, each in self._adopted.items() if (each.sequence, each.attempt) < (sequence, attempt)}
        self._disown(earlier if attempt > 1 else ())

    def _disown(self, refs: Collection[ResourceRef]) -> None:
        if self._adopted.keys() & set(refs):
            self._adopted = {ref: each for ref, each in self._adopted.items() if ref not in refs}
            self._is_stored = False

    def compare(self, live: Mapping[ResourceRef, str], wanted: Collection[ResourceRef]) -> frozenset[ResourceRef]:
        """Drop the proofs of resources that any client has written since; an empty version is not compared.

        Return those that another client has written since, or has deleted although they are ``wanted``.
        """
        # Of a resource that the agent was about to write, the version is forgotten.
        own = self._seen.keys() & self._versions.keys()
        written = own.intersection(self._drop_changed(live))
        disturbed = written.union(own.intersection(wanted).difference(live))
        if disturbed:
            self._seen |= {ref: live[ref] for ref in written}
            self.disturbed, self._is_stored = self.disturbed | disturbed, False
        return frozenset(disturbed)

    def _drop_changed(self, live: Mapping[ResourceRef, str]) -> set[ResourceRef]:
        """Drop the proofs of resources that have other versions than when they were last seen, and return these."""
        known = {ref: version for ref, version in live.items() if version}
        changed = {ref for ref, version in known.items() if self._seen.get(ref) != version}
        self.drop(changed)
        self._disown({ref for ref, each in self._adopted.items() if known.get(ref, each.version) != each.version})
        return changed

    def begin_write(self, changed: Collection[ResourceRef], former: Mapping[ResourceRef, Manifest]) -> None:
        """Forget the versions of resources that are about to be written, and keep what is to be unloaded."""
        self._disown(changed)
        kept = {ref: version for ref, version in self._versions.items() if ref not in changed}
        added = {ref: each for ref, each in former.items() if each not in self._former.get(ref, ())}
        if added or kept != self._versions:
            self._former |= {ref: (each, *self._former.get(ref, ())) for ref, each in added.items()}
            self._versions, self._is_stored = kept, False

    def end_write(self, live: Mapping[ResourceRef, str], written: Collection[ResourceRef] = ()) -> None:
        """Set the versions of resources that are new or whose content was written; proofs of others' content end."""
        self._drop_changed(live)
        # A write of labels or annotations changes no version.
        rewritten = {ref for ref in written if live.get(ref) and live[ref] != self._seen.get(ref)}
        known = {ref: version for ref, version in self._versions.items() if ref not in rewritten}
        removed = {ref: version for ref, version in known.items() if ref in self._former}
        versions = {**removed, **{ref: known.get(ref, version) for ref, version in live.items()}}
        seen = {ref: version or self._seen.get(ref, "") for ref, version in live.items()}
        if (versions, seen) != (self._versions, self._seen):
            self._versions, self._seen, self._is_stored = versions, seen, False

    def settle(self, secrets: Iterable[ObjectRef]) -> frozenset[ObjectRef]:
        """Forget what was to be unloaded, because everything is verified; return the Secrets of the delivery before."""
        released, self.secrets = self.secrets, frozenset(secrets)
        if self._former or self.disturbed or released != self.secrets:
            self._former, self.disturbed, self._is_stored = {}, frozenset(), False
        return released - self.secrets

    def add(self, instance: str, ref: ResourceRef, proof: Proof) -> None:
        """Add a proof, in place of one of other content."""
        if self.of(instance).get(ref) != proof:
            self._proofs.setdefault(instance, {})[ref] = proof
            self._is_stored = False

    def drop(self, refs: Collection[ResourceRef]) -> None:
        """Drop all proofs of some resources: they were written, or changed by another client."""
        for proofs in self._proofs.values():
            for ref in proofs.keys() & set(refs):
                del proofs[ref]
                self._is_stored = False

    async def save(self, instances: Collection[str]) -> None:
        """Store the proofs of the instances that exist, if anything has changed."""
        kept = {instance: proofs for instance, proofs in self._proofs.items() if instance in instances and proofs}
        if self._is_stored and kept.keys() == self._proofs.keys():
            return
        by_instance = {instance: tuple(proofs.items()) for instance, proofs in kept.items()}
        versions, seen = (tuple(each.items()) for each in (self._versions, self._seen))
        stored = _Stored(by_instance, tuple(self._former.items()), versions, seen, tuple(sorted(self.secrets)))
        disturbed = tuple(sorted(self.disturbed))
        stored = msgspec.structs.replace(stored, adopted=tuple(self._adopted.items()), disturbed=disturbed)
        await self._blobs.write(_NAME, msgspec.json.encode(stored))
        self._proofs, self._is_stored = kept, True
