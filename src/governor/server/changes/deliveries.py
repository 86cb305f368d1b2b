"""Which delivery a runtime gets next: whether one is due, its sequence, attempt and removals. Pure."""

from typing import Final

import msgspec

from governor.domain.bundles import Bundle, Delivery, refs
from governor.domain.documents import ResourceRef
from governor.values.trees import Manifest

_DELIVERED: Final = ("digest", "apply", "windows", "hold")
"""What an agent must know: a difference in one of them is delivered."""


class History(msgspec.Struct, frozen=True):
    """Earlier deliveries of a runtime: the newest one, the highest attempt at the digest to be delivered now, and all
    resources that may still be present."""

    newest: Delivery | None = None
    attempt: int = 0
    present: frozenset[ResourceRef] = frozenset()


def is_due(bundle: Bundle, newest: Delivery | None, *, is_new: bool) -> bool:
    """Return whether the bundle must be delivered: it differs from the newest delivery, or the runtime was created."""
    if newest is None:
        return bool(bundle.resources)
    return is_new or any(getattr(bundle, name) != getattr(newest, name) for name in _DELIVERED)


def next_delivery(runtime: str, bundle: Bundle, history: History, revision: int, documents: dict[str, int]) -> Delivery:
    """Return the delivery that follows the newest one.

    An agent does not retry a digest that it rejected under the same attempt. So a changed apply policy raises the
    attempt, and a digest that was delivered before keeps its attempt.
    """
    newest = history.newest
    policy_changed = newest is not None and bundle.apply != newest.apply
    return Delivery(
        runtime=runtime,
        sequence=newest.sequence + 1 if newest else 1,
        attempt=history.attempt + 1 if policy_changed else max(1, history.attempt),
        revision=revision,
        digest=bundle.digest,
        resources=bundle.resources,
        removals=_removals(bundle.resources, history),
        apply=bundle.apply,
        documents=documents,
        windows=bundle.windows,
        hold=bundle.hold,
    )


def reissued_delivery(newest: Delivery, held: int) -> Delivery:
    """Return the newest delivery under a sequence above the one that an agent holds from a forgotten state."""
    return msgspec.structs.replace(newest, sequence=max(newest.sequence, held) + 1)


def retry_delivery(newest: Delivery, history: History) -> Delivery:
    """Return the newest delivery under the next sequence and attempt, for an agent that rejected it."""
    removals = _removals(newest.resources, history)
    return msgspec.structs.replace(newest, sequence=newest.sequence + 1, attempt=history.attempt + 1, removals=removals)


def _removals(resources: tuple[Manifest, ...], history: History) -> tuple[ResourceRef, ...]:
    return tuple(sorted(history.present - set(refs(resources))))
