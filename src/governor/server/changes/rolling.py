"""Strategy rolling: which sidecars would load a change at once, as far as the inventories of agents show it. Pure.

An agent asks the sidecars themselves before it writes, and refuses the change then: what is not in its inventory yet is
not refused here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from governor.domain.bundles import Delivery
from governor.domain.dapr.kinds import in_scope
from governor.domain.dapr.reload import Uptake, uptake
from governor.domain.documents import ResourceRef, Strategy, resource_ref
from governor.domain.inventories import FoundWorkload, Inventory, ReloadingSidecars
from governor.errors import Detail, GovernorError, Kind
from governor.values.treediff import diff
from governor.values.trees import Manifest

_LOADED: Final = ("apiVersion", "kind", "spec", "scopes", "auth")


def check_rolling(
    deliveries: Iterable[Delivery],
    newest: Mapping[str, Delivery],
    find_inventory: Callable[[str], tuple[datetime, Inventory] | None],
) -> None:
    """Raise PRECONDITION if sidecars would load a change at once that is to be rolled out one workload at a time."""
    rolling = [each for each in deliveries if each.apply.strategy is Strategy.ROLLING]
    found = [(each, find_inventory(each.runtime)) for each in rolling]
    details = [
        Detail(reason=reason)
        for each, stored in found
        if stored is not None
        for reason in _reasons(each, newest.get(each.runtime), stored[1])
    ]
    if details:
        message = (
            "strategy rolling needs sidecars without hot reload, and some would load the change at once; use strategy "
            "reload, or disable HotReload in their Configuration"
        )
        raise GovernorError(Kind.PRECONDITION, "strategy-rolling", message, details)


def _reasons(delivery: Delivery, newest: Delivery | None, inventory: Inventory) -> Iterator[str]:
    """Yield, for each changed resource and workload, which sidecars would load it at once."""
    namespace = inventory.namespaces[0] if inventory.namespaces else ""
    new, old = (_by_ref(each.resources if each else (), namespace) for each in (delivery, newest))
    for ref in sorted(new.keys() | old.keys()):
        contents = [each for each in (old.get(ref), new.get(ref)) if each is not None]
        if diff(_loaded(old.get(ref)), _loaded(new.get(ref))):
            for workload in inventory.workloads:
                sidecars = [each for each in workload.reloading if _takes(each, workload, ref, contents)]
                if sidecars:
                    where = f"runtime {delivery.runtime!r}: {workload.workload}"
                    yield f"{where} would load {ref} at once ({'; '.join(map(_described, sidecars))})"


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
