"""The Dapr resources of some namespaces at one moment, and how they differ from those of an earlier one. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from governor.agent.platforms.kubernetes.resources.additions import last_change
from governor.agent.platforms.kubernetes.resources.live_resources import resource_ref
from governor.agent.verification.verdicts import Expected
from governor.domain.documents import ResourceRef
from governor.kube.objects import Object, ref_of
from governor.values.trees import Manifest

_LOADED: Final = frozenset({"apiVersion", "kind", "spec", "scopes", "auth"})
_CONFIGURATION: Final = "Configuration"


class ObservedResource(msgspec.Struct, frozen=True):
    """A Dapr resource as some client wrote it. The API server raises ``generation`` with each change of its content."""

    manifest: Manifest
    uid: str
    generation: int
    written: datetime

    @property
    def version(self) -> tuple[str, int]:
        """What is another value after each change of the content."""
        return self.uid, self.generation

    def follows(self, other: "ObservedResource | None") -> bool:
        """Return whether a single write led from the other one to this one; None is absent."""
        return self.version == ((self.uid, 1) if other is None else (other.uid, other.generation + 1))


Snapshot: TypeAlias = Mapping[ResourceRef, ObservedResource]


def snapshot_of(objects: Iterable[Object]) -> Snapshot:
    """Return a snapshot of live objects, with the fields that sidecars load."""
    return {resource_ref(ref_of(each)): _observed(each) for each in objects}


def changed_refs(before: Snapshot, now: Snapshot) -> frozenset[ResourceRef]:
    """Return the resources that were written, created or removed in between, even if their content is the same."""
    refs = before.keys() | now.keys()
    return frozenset(ref for ref in refs if _version(before.get(ref)) != _version(now.get(ref)))


def expectations(before: Snapshot, now: Snapshot) -> tuple[Expected, ...]:
    """Return what sidecars must load or unload between two snapshots; no Configuration has the agent's marker."""
    return tuple(
        Expected(ref, _manifest(now.get(ref)), _manifest(before.get(ref)), unmarked=ref.kind == _CONFIGURATION)
        for ref in sorted(before.keys() | now.keys())
    )


def rewritten_refs(before: Snapshot, now: Snapshot) -> Iterator[ResourceRef]:
    """Yield the resources that were written more than once in between: a sidecar may have loaded any of the writes."""
    for ref in changed_refs(before, now) & now.keys():
        if not now[ref].follows(before.get(ref)):
            yield ref


def _observed(live: Object) -> ObservedResource:
    metadata = live["metadata"]
    name = {"name": metadata["name"], "namespace": metadata["namespace"]}
    manifest: Manifest = {"metadata": name, **{key: value for key, value in live.items() if key in _LOADED}}
    return ObservedResource(manifest, metadata["uid"], metadata["generation"], last_change(live))


def _version(resource: ObservedResource | None) -> tuple[str, int] | None:
    return resource.version if resource is not None else None


def _manifest(resource: ObservedResource | None) -> Manifest | None:
    return resource.manifest if resource is not None else None
