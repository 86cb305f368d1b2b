"""What a runtime is sent next, and how a stored delivery becomes the signed one that leaves the server."""

from collections.abc import Iterable

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.domain.bundles import Bundle, Delivery, refs
from governor.domain.documents import ResourceRef
from governor.server.store.sealer import Sealer
from governor.values.trees import Manifest
from governor.wire.credentials import sign_delivery
from governor.wire.rest import SignedDelivery


class History(msgspec.Struct, frozen=True):
    """What was sent to a runtime before: the newest delivery, the highest attempt at the content that is meant now,
    and all resources that may still be present."""

    newest: Delivery | None = None
    attempt: int = 0
    present: frozenset[ResourceRef] = frozenset()


def is_due(bundle: Bundle, newest: Delivery | None, *, is_new: bool) -> bool:
    """Whether a bundle must be sent: it differs from the newest delivery, or its runtime begins a new life."""
    if newest is None:
        return bool(bundle.resources)
    return is_new or (bundle.digest, bundle.apply) != (newest.digest, newest.apply)


def next_delivery(runtime: str, bundle: Bundle, history: History, revision: int) -> Delivery:
    """The delivery after the newest.

    An agent that refused some content does not try it again under the same attempt. So a changed apply policy raises
    the attempt, and content that comes back keeps the attempt it had.
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
        removals=tuple(sorted(history.present - set(refs(bundle.resources)))),
        apply=bundle.apply,
    )


def again(newest: Delivery, history: History) -> Delivery:
    """The newest delivery once more under the next attempt, for an agent that refused it."""
    removals = tuple(sorted(history.present - set(refs(newest.resources))))
    return msgspec.structs.replace(newest, sequence=newest.sequence + 1, attempt=history.attempt + 1, removals=removals)


def by_reference(resources: Iterable[Manifest]) -> dict[str, Manifest]:
    """Compiled resources under their references, so that a difference names the resource."""
    listed = tuple(resources)
    return {str(ref): manifest for ref, manifest in zip(refs(listed), listed, strict=True)}


class Dispatch:
    """Opens sealed values and signs; what comes out goes to the runtime and nowhere else."""

    def __init__(self, sealer: Sealer, key: Ed25519PrivateKey) -> None:
        self._sealer = sealer
        self._key = key

    def signed(self, delivery: Delivery) -> SignedDelivery:
        """A stored delivery as it leaves."""
        return sign_delivery(msgspec.structs.replace(delivery, resources=self.opened(delivery)), self._key)

    def opened(self, delivery: Delivery) -> tuple[Manifest, ...]:
        """The resources of a stored delivery with their sensitive values in plain."""
        return tuple(self._sealer.open_tree(manifest) for manifest in delivery.resources)
