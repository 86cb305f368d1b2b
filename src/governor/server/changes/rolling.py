"""Strategy rolling: which sidecars would load a change at once, as far as the inventories of agents show it. Pure.

An agent asks the sidecars themselves before it writes, and refuses the change then: what is not in its inventory yet is
not refused here.
"""

from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice
from typing import Final

from governor.domain.dapr.kinds import in_scope
from governor.domain.dapr.reload import Uptake, uptake
from governor.domain.documents import ResourceRef, resource_ref
from governor.domain.inventories import FoundWorkload, Inventory, ReloadingSidecars
from governor.errors import Detail, GovernorError, Kind
from governor.server.changes.impact import MAX_LISTED, AffectedClass
from governor.values.treediff import diff
from governor.values.trees import Manifest

_LOADED: Final = ("apiVersion", "kind", "spec", "scopes", "auth")


def check_rolling(
    classes: Iterable[AffectedClass],
    rolling: Set[str],
    find_inventories: Callable[[Iterable[str]], Iterable[tuple[str, Inventory]]],
) -> None:
    """Raise PRECONDITION if sidecars would load a change at once that is to be rolled out one workload at a time.

    ``rolling`` are the runtimes with that strategy; ``find_inventories`` returns the known inventories of some.
    """
    reasons = (
        reason
        for each in classes
        if (members := [name for name in each.runtimes if name in rolling])
        for reason in _reasons(each, find_inventories(members))
    )
    details = [Detail(reason=reason) for reason in islice(reasons, MAX_LISTED)]
    if details:
        message = (
            "strategy rolling needs sidecars without hot reload, and some would load the change at once; use strategy "
            "reload, or disable HotReload in their Configuration"
        )
        raise GovernorError(Kind.PRECONDITION, "strategy-rolling", message, details)


def _reasons(affected: AffectedClass, inventories: Iterable[tuple[str, Inventory]]) -> Iterator[str]:
    """Yield, for each runtime, changed resource and workload, which sidecars would load it at once."""
    changed: dict[str, dict[ResourceRef, list[Manifest]]] = {}
    for runtime, inventory in inventories:
        namespace = inventory.namespaces[0] if inventory.namespaces else ""
        if namespace not in changed:
            changed[namespace] = _changed(affected, namespace)
        for ref, contents in changed[namespace].items():
            for workload in inventory.workloads:
                sidecars = [each for each in workload.reloading if _takes(each, workload, ref, contents)]
                if sidecars:
                    where = f"runtime {runtime!r}: {workload.workload}"
                    yield f"{where} would load {ref} at once ({'; '.join(map(_described, sidecars))})"


def _changed(affected: AffectedClass, namespace: str) -> dict[ResourceRef, list[Manifest]]:
    """Return the resources of which a sidecar would load something else, each with its old and new manifest."""
    old, new = (_by_ref(each.resources if each else (), namespace) for each in (affected.before, affected.after))
    return {
        ref: [each for each in (old.get(ref), new.get(ref)) if each is not None]
        for ref in sorted(new.keys() | old.keys())
        if diff(_loaded(old.get(ref)), _loaded(new.get(ref)))
    }


def _takes(sidecars: ReloadingSidecars, workload: FoundWorkload, ref: ResourceRef, contents: list[Manifest]) -> bool:
    if ref.namespace != workload.workload.namespace:
        return False
    if ref.kind == "Configuration":
        is_loaded = ref.name == sidecars.configuration
    else:
        is_loaded = any(in_scope(each, sidecars.app_id) for each in contents)
    return is_loaded and uptake(ref.kind, sidecars.version, *contents) is not Uptake.START


def _described(sidecars: ReloadingSidecars) -> str:
    more = sidecars.instances - len(sidecars.pods)
    pods = ", ".join(sidecars.pods) + (f" and {more} more" if more > 0 else "")
    return f"Dapr {sidecars.version} in {pods}"


def _loaded(manifest: Manifest | None) -> Manifest:
    return {key: manifest[key] for key in _LOADED if key in manifest} if manifest else {}


def _by_ref(resources: Iterable[Manifest], namespace: str) -> dict[ResourceRef, Manifest]:
    return {resource_ref(each, namespace): each for each in resources}
