"""Which delivery a runtime gets next: whether one is due, its sequence, attempt and removals. Pure."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from governor.domain.bundles import Bundle, Delivery
from governor.domain.documents import DocumentRef, ResourceRef, Runtime
from governor.server.store.bundles import Content, Draft
from governor.server.store.runtime_states import RuntimeState, Target


def is_due(bundle: Bundle, runtime: Runtime, newest: Target | None, *, is_new: bool) -> bool:
    """Return whether the bundle must be delivered: it differs from the newest delivery, or the runtime was created."""
    if newest is None:
        return bool(bundle.resources)
    return is_new or newest != Target(bundle.digest, bundle.apply, runtime.spec.windows, runtime.spec.hold)


def next_delivery(
    member: tuple[str, int],
    draft: Draft,
    content: Content,
    state: RuntimeState | None,
    removed: tuple[ResourceRef, ...] = (),
) -> Delivery:
    """Return the delivery of a draft to one of its members, with the resources that it removes.

    An agent does not retry a digest that it rejected under the same attempt. So a changed apply policy raises the
    attempt, and a digest that was delivered before keeps its attempt.
    """
    runtime, version = member
    before = state.attempt_at(draft.digest) if state else 0
    policy_changed = state is not None and draft.apply != state.apply
    return Delivery(
        runtime=runtime,
        sequence=state.sequence + 1 if state else 1,
        attempt=before + 1 if policy_changed else max(1, before),
        revision=draft.revision,
        digest=draft.digest,
        resources=content.resources,
        removals=removed,
        apply=draft.apply,
        documents={**draft.profiles, str(DocumentRef("Runtime", runtime)): version},
        windows=draft.windows,
        hold=draft.hold,
    )


def reissued_delivery(newest: Delivery, held: int) -> Delivery:
    """Return the newest delivery under a sequence above the one that an agent holds from a forgotten state."""
    return msgspec.structs.replace(newest, sequence=max(newest.sequence, held) + 1)


def retry_delivery(newest: Delivery, content: Content, state: RuntimeState) -> Delivery:
    """Return the newest delivery under the next sequence and attempt, for an agent that rejected it."""
    return msgspec.structs.replace(
        newest,
        sequence=newest.sequence + 1,
        attempt=state.attempt_at(newest.digest) + 1,
        removals=removals(content, state.present),
    )


def state_after(
    delivery: Delivery, time: datetime, before: RuntimeState | None, present: tuple[ResourceRef, ...]
) -> RuntimeState:
    """Return the state of a runtime after a delivery was issued; ``present`` are the resources that may exist then."""
    state = RuntimeState(
        delivery.runtime,
        delivery.sequence,
        delivery.id,
        delivery.attempt,
        delivery.revision,
        delivery.digest,
        delivery.apply,
        delivery.windows,
        delivery.hold,
        time,
        present,
        before.attempts if before else {},
        before.verified if before else 0,
    )
    return state if delivery.attempt == 1 else state.with_attempt(delivery.digest, delivery.attempt)


def present_after(content: Content, present: Iterable[ResourceRef]) -> tuple[ResourceRef, ...]:
    """Return the resources that may be present in a runtime after its bundle was delivered."""
    return tuple(sorted(content.refs.union(present)))


def removals(content: Content, present: Iterable[ResourceRef]) -> tuple[ResourceRef, ...]:
    """Return the resources that may be present in a runtime and are not in its bundle."""
    return tuple(sorted(set(present) - content.refs))
