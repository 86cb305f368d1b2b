"""Verdicts: pure decisions on whether a sidecar uses a resource, from its status and its platform's facts about it.

Two kinds of proof exist. *Live*: one instance of the sidecar, probed before and after the change. *Fresh*: an instance
started after the change. Anything else is unproven, never verified. ``docs/reference/verification.md`` has the table by
kind.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from governor.agent.verification.resources import listed, loaded_digest
from governor.agent.verification.sidecar_api import Metadata, SidecarStatus
from governor.domain.dapr.reload import known_issue, lists_kind
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, State
from governor.values.trees import Manifest

MAX_EXTERNAL_EXITS: Final = 3
"""A sidecar killed more often than this may be killed because of what it loaded, for example out of memory."""


class Instance(msgspec.Struct, frozen=True):
    """A running sidecar: a process, or a container of a pod. Another start of it is another instance.

    ``name`` is how texts call it, such as "process 4711".
    """

    id: str
    name: str


class SidecarExit(msgspec.Struct, frozen=True):
    """An unexpected exit of one instance; ``external_cause`` if what the agent wrote need not be the reason.

    It was killed, its port was in use, or it may have loaded what another program wrote.
    """

    instance_id: str
    text: str
    started_after_write: bool = False
    external_cause: bool = False


class Reading(msgspec.Struct, frozen=True):
    """The state of one sidecar at one moment.

    A sidecar may restart in place, within its instance: from then on its counters prove nothing. None means that the
    platform cannot tell. ``load_evidence`` says what shows that the instance loads what is written, or is empty.
    ``reload_obstacle`` says why it does not notice changes of it, and is empty if it does. ``errors`` are from its log.
    """

    time: datetime
    instance: Instance | None = None
    started_after_write: bool = False
    restarted_in_place: bool | None = None
    status: SidecarStatus | None = None
    load_evidence: str = ""
    reload_obstacle: str = "nothing shows that the sidecar notices changes"
    last_exit: SidecarExit | None = None
    errors: tuple[str, ...] = ()


class Expected(msgspec.Struct, frozen=True):
    """The expected change of one resource in one sidecar: from ``old``, written before, to ``new``; None is absent.

    ``unmarked`` if it is a Configuration without the marker that shows its content.
    """

    ref: ResourceRef
    new: Manifest | None
    old: Manifest | None
    unmarked: bool = False

    @property
    def changed(self) -> bool:
        """Whether the sidecar must load or unload something."""
        if self.new is None or self.old is None:
            return self.new is not self.old
        return loaded_digest(self.new) != loaded_digest(self.old)

    @property
    def digest(self) -> str:
        """The digest to prove; empty if the resource must be absent."""
        return loaded_digest(self.new) if self.new is not None else ""

    @property
    def component_type(self) -> str:
        """The type of a Component, new or old; empty for other kinds."""
        manifest = self.new or self.old
        return str(manifest["spec"]["type"]) if manifest and self.ref.kind == "Component" else ""


class Proof(msgspec.Struct, frozen=True):
    """Evidence that a sidecar's current instance uses this content of a resource; an empty digest means absent."""

    digest: str
    evidence: Evidence


class Verdict(msgspec.Struct, frozen=True):
    """The state of one resource according to one reading; ``final`` if later readings cannot change it."""

    state: State
    text: str
    final: bool = False


Verdicts: TypeAlias = dict[ResourceRef, Verdict]


def judge_live(expected: Sequence[Expected], before: Reading, now: Reading) -> Verdicts:
    """Judge changes by one instance that was probed ``before`` the change and ``now``."""
    if exited := _exit_since(before, now):
        return judge_exit(expected, exited)
    reason = _live_obstacle(before, now)
    if reason or before.status is None or now.status is None or now.instance is None:
        return _all_unproven(expected, reason)
    proof = _with_known_issue(f"same {now.instance.name} before and after, it {now.load_evidence}", now.status)
    return {each.ref: _live_verdict(each, expected, before.status, now, now.status, proof) for each in expected}


def judge_fresh(expected: Sequence[Expected], now: Reading) -> Verdicts:
    """Judge by an instance that started after everything was written."""
    if now.last_exit and now.last_exit.started_after_write:
        return judge_exit(expected, now.last_exit)
    reason = _fresh_obstacle(now)
    if reason or now.status is None or now.instance is None:
        return _all_unproven(expected, reason)
    proof = _with_known_issue(
        f"{now.instance.name} started after the write, is healthy and {now.load_evidence}", now.status
    )
    return {each.ref: _fresh_verdict(each, now.status, now.errors, proof) for each in expected}


def judge_unchanged(expected: Sequence[Expected], before: Reading, now: Reading) -> Verdicts:
    """Judge whether an instance still uses unchanged resources; a restart in place is allowed."""
    if exited := _exit_since(before, now):
        return judge_exit(expected, exited)
    reason = _same_instance_obstacle(before, now)
    if reason or now.status is None or now.instance is None:
        return _all_unproven(expected, reason)
    proof = f"same {now.instance.name} as before"
    return {each.ref: _listing_verdict(each, now.status.metadata, proof) for each in expected}


def judge_running(changed: Sequence[Expected], kept: Sequence[Expected], before: Reading, now: Reading) -> Verdicts:
    """Judge a change by one instance: ``changed`` must be proven, ``kept`` must still be in use."""
    if exited := _exit_since(before, now):
        # Judged together: an unchanged resource fails only if daprd names it.
        return judge_exit([*changed, *kept], exited)
    return {**judge_live(changed, before, now), **judge_unchanged(kept, before, now)}


def judge_exit(expected: Sequence[Expected], exited: SidecarExit) -> Verdicts:
    """Fail the resources that the exit message names; if it names none, every changed one."""
    named = {each.ref for each in expected if mentions(exited.text, each.ref.name)}
    changed = {each.ref for each in expected if each.changed}
    blamed = named or changed or {each.ref for each in expected}
    return {
        each.ref: Verdict(State.FAILED, exited.text)
        if each.ref in blamed
        else Verdict(State.UNPROVEN, "the sidecar exited before it was probed")
        for each in expected
    }


def settled(verdicts: Verdicts) -> bool:
    """Return whether later readings cannot change the result."""
    states = {verdict.state for verdict in verdicts.values() if not verdict.final}
    return states <= {State.VERIFIED} or State.FAILED in states


def mentions(text: str, name: str) -> bool:
    """Return whether a text contains the name as a whole word."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text) is not None


def restart_obstacle(reading: Reading) -> str:
    """Return why a restart in place makes the counters of an instance worthless, or ``""``."""
    if reading.restarted_in_place is None:
        return "nothing shows whether the sidecar has restarted within its process, so its counters are not evidence"
    found = "the sidecar has restarted within its process, so its counters are not evidence"
    return found if reading.restarted_in_place else ""


def _exit_since(before: Reading, now: Reading) -> SidecarExit | None:
    """Return the exit of the instance that was probed before, or None."""
    is_same = now.last_exit and before.instance and now.last_exit.instance_id == before.instance.id
    return now.last_exit if is_same else None


def _live_obstacle(before: Reading, now: Reading) -> str:
    if reason := _same_instance_obstacle(before, now):
        return reason
    if now.restarted_in_place and not before.restarted_in_place:
        return "the sidecar restarted within its process"
    return now.reload_obstacle


def _same_instance_obstacle(before: Reading, now: Reading) -> str:
    if now.instance is None or now.status is None:
        return "the sidecar does not respond"
    if now.instance != before.instance:
        return "the sidecar is not the one from before the change"
    return _use_obstacle(now, now.status)


def _fresh_obstacle(now: Reading) -> str:
    if now.instance is None or now.status is None:
        return "the sidecar does not respond"
    if not now.started_after_write:
        return "no sidecar was started after the write"
    return _use_obstacle(now, now.status)


def _use_obstacle(now: Reading, status: SidecarStatus) -> str:
    if not now.load_evidence:
        return "nothing shows that the sidecar loads what was written"
    return "" if status.healthy else "the sidecar is not healthy"


def _live_verdict(
    each: Expected, expected: Sequence[Expected], before: SidecarStatus, now: Reading, status: SidecarStatus, proof: str
) -> Verdict:
    if each.component_type and each.new is not None:
        return _live_component(each, expected, before, now, status, proof)
    return _listing_verdict(each, status.metadata, proof)


def _live_component(
    each: Expected, expected: Sequence[Expected], before: SidecarStatus, now: Reading, status: SidecarStatus, proof: str
) -> Verdict:
    if before.counters is None or status.counters is None:
        return Verdict(State.UNPROVEN, "the sidecar's metrics are off")
    if reason := restart_obstacle(now):
        return Verdict(State.UNPROVEN, reason)
    if status.counters.failed.get(each.ref.name, 0) > before.counters.failed.get(each.ref.name, 0):
        return _failed_to_initialise(each, now.errors)
    kind = each.component_type
    required = sum(other.component_type == kind and other.new is not None and other.changed for other in expected)
    old, new = before.counters.initialised.get(kind, 0), status.counters.initialised.get(kind, 0)
    if new - old < required:
        return Verdict(State.UNPROVEN, f"{kind} was initialised {new - old} times since the write, expected {required}")
    return _listing_verdict(each, status.metadata, f"{kind} initialised {old} -> {new} times and none failed, {proof}")


def _fresh_verdict(each: Expected, status: SidecarStatus, errors: Sequence[str], proof: str) -> Verdict:
    if each.component_type and status.counters and status.counters.failed.get(each.ref.name, 0):
        return _failed_to_initialise(each, errors)
    return _listing_verdict(each, status.metadata, proof)


def _listing_verdict(each: Expected, metadata: Metadata, proof: str) -> Verdict:
    """Judge by the metadata, the last step of every proof: whether the resource is listed as it must be."""
    if each.unmarked:
        return Verdict(State.VERIFIED, f"daprd does not start without the Configuration that its pod names, {proof}")
    shown = listed(each.ref, each.new, each.old, metadata)
    if each.new is None:
        if shown:
            return Verdict(State.UNPROVEN, "the sidecar still lists it")
        return Verdict(State.VERIFIED, f"no longer listed, {proof}")
    if not shown and not lists_kind(each.ref.kind, metadata.runtime_version):
        text = f"Dapr {metadata.runtime_version} does not show which {each.ref.kind} it has loaded"
        return Verdict(State.UNPROVEN, text, final=True)
    if not shown:
        return Verdict(State.UNPROVEN, "the sidecar does not list it")
    return Verdict(State.VERIFIED, f"listed as {shown}, {proof}")


def _with_known_issue(proof: str, status: SidecarStatus) -> str:
    issue = known_issue(status.metadata.runtime_version)
    return f"{proof}; {issue}" if issue else proof


def _failed_to_initialise(each: Expected, errors: Sequence[str]) -> Verdict:
    matching = [text for text in errors if mentions(text, each.ref.name)]
    return Verdict(
        State.FAILED, matching[-1] if matching else f"{each.component_type} could not be initialised; see daprd's log"
    )


def _all_unproven(expected: Sequence[Expected], reason: str) -> Verdicts:
    return {each.ref: Verdict(State.UNPROVEN, reason) for each in expected}
