"""Affected sidecars: which resources of a delivery a sidecar in a cluster loads, and which change for it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.platforms.kubernetes.workloads.workload import Pod, Workload
from governor.agent.verification.resources import loaded_digest, named_stores
from governor.agent.verification.verdicts import Expected
from governor.domain.dapr.kinds import in_scope, is_secret_store, kinds
from governor.domain.documents import ResourceRef
from governor.values.trees import Manifest

_CONFIGURATION: Final = "Configuration"


class Scope(msgspec.Struct, frozen=True):
    """What decides which resources a sidecar loads; ``configuration`` is the one that its pod names, or empty."""

    namespace: str
    app_id: str
    configuration: str = ""

    def loads(self, ref: ResourceRef, manifest: Manifest) -> bool:
        """Return whether a sidecar with this scope loads the resource when it starts."""
        if ref.namespace != self.namespace or ref.kind not in kinds():
            return False
        return ref.name == self.configuration if ref.kind == _CONFIGURATION else in_scope(manifest, self.app_id)


def scope_of(pod: Pod) -> Scope:
    """Return the scope of a pod's sidecar."""
    return Scope(pod.namespace, pod.app_id, pod.configuration)


def live_pods(workload: Workload) -> tuple[Pod, ...]:
    """Return the pods that run, or will."""
    return tuple(pod for pod in workload.pods if not pod.deleting and not pod.finished)


class Change(msgspec.Struct, frozen=True):
    """One resource as sidecars of one scope see it. A digest is empty if the resource is absent for them.

    ``store`` is a secret store that changes for these sidecars and that the resource names, or empty. ``reader`` is a
    Component of another owner that names this secret store, which changes for them.
    """

    expected: Expected
    digest: str
    old_digest: str
    store: str = ""
    reader: str = ""

    @property
    def ref(self) -> ResourceRef:
        """The resource."""
        return self.expected.ref

    @property
    def changed(self) -> bool:
        """Whether a sidecar must load or unload something."""
        return self.digest != self.old_digest

    @property
    def stale_secrets(self) -> str:
        """Why only a restart lets everything use the secrets of a changed store, or ``""``."""
        if self.store:
            return f"it keeps the secrets that it has read from {self.store} until a restart"
        if self.reader:
            return f"Component {self.reader} of another owner keeps the secrets read from it until a restart"
        return ""


class Changes:
    """The resources of a delivery, seen by scope. Digests are computed once, views once per set of scopes.

    ``former`` is what resources contained that sidecars may have loaded and now must not have, latest first.
    ``foreign`` are resources of other owners in the namespaces of changed Components.
    """

    def __init__(
        self,
        expected: Iterable[Expected],
        former: Mapping[ResourceRef, Sequence[Manifest]] | None = None,
        foreign: Iterable[ForeignResource] = (),
    ) -> None:
        self._all = tuple(Change(each, _digest(each.new), _digest(each.old)) for each in expected)
        self._former = former or {}
        self._foreign_readers = tuple(each for each in foreign if each.stores)
        self._views: dict[frozenset[Scope], tuple[Change, ...]] = {}

    @property
    def expected(self) -> tuple[Expected, ...]:
        """All resources, whatever the scope."""
        return tuple(each.expected for each in self._all)

    def seen_by(self, scopes: frozenset[Scope]) -> tuple[Change, ...]:
        """Return the resources that sidecars of any of these scopes load, or loaded before the change."""
        if scopes not in self._views:
            seen = (_narrowed(each, scopes, self._former.get(each.ref, ())) for each in self._all)
            loaded = [each for each in seen if each.digest or each.old_digest]
            self._views[scopes] = _with_stores(loaded, self._readers_in(scopes))
        return self._views[scopes]

    def _readers_in(self, scopes: frozenset[Scope]) -> dict[str, str]:
        """Return, by secret store, a Component of another owner that sidecars of these scopes load."""
        return {
            store: each.name
            for each in self._foreign_readers
            if any(each.is_loaded_by(scope.namespace, scope.app_id) for scope in scopes)
            for store in each.stores
        }


def _digest(manifest: Manifest | None) -> str:
    return loaded_digest(manifest) if manifest is not None else ""


def is_unloaded(expected: Expected) -> bool:
    """Return whether a change takes a resource from sidecars that may have loaded it: by removal, or by its scopes."""
    if expected.old is None or expected.new is None:
        return expected.old is not None
    before, after = (frozenset(each.get("scopes") or ()) for each in (expected.old, expected.new))
    return bool(after) and not (before and before <= after)


def _narrowed(change: Change, scopes: frozenset[Scope], former: Sequence[Manifest]) -> Change:
    """Return the change without the content, new or old, that none of the scopes loads."""
    ref, new, old = change.ref, change.expected.new, change.expected.old
    has_new = new is not None and any(scope.loads(ref, new) for scope in scopes)
    has_old = old is not None and any(scope.loads(ref, old) for scope in scopes)
    if not has_new and not has_old:
        last = next((each for each in former if any(scope.loads(ref, each) for scope in scopes)), None)
        return Change(Expected(ref, None, last), "", _digest(last))
    expected = Expected(ref, new if has_new else None, old if has_old else None, change.expected.unmarked)
    return Change(expected, change.digest if has_new else "", change.old_digest if has_old else "")


def _with_stores(changes: list[Change], foreign_readers: Mapping[str, str]) -> tuple[Change, ...]:
    """Add the changing secret store to the resources that name one, and to the store who else does.

    A sidecar reads secrets only from stores that it has loaded itself, so both must be in its scope.
    """
    stores = {each.ref.name for each in changes if each.changed and each.expected.old and _is_store(each.expected)}
    if not stores:
        return tuple(changes)
    # If the store is removed, a restart would only make the readers of other owners fail.
    kept = {each.ref for each in changes if each.digest and each.ref.name in stores and _is_store(each.expected)}
    return tuple(
        msgspec.structs.replace(
            each,
            store=min(stores & named_stores(each.expected.new), default=""),
            reader=foreign_readers.get(each.ref.name, "") if each.ref in kept else "",
        )
        for each in changes
    )


def _is_store(expected: Expected) -> bool:
    return any(each is not None and is_secret_store(each) for each in (expected.new, expected.old))
