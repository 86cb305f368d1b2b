"""Whether a sidecar uses a resource: pure decisions over its status and what the kernel says of its process.

Two proofs exist. *Live*: one process, asked before and after the change. *Fresh*: a process that started after the
change. Whatever neither shows is unproven, never verified; ``docs/reference/verification.md`` has the table by kind.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

import msgspec

from governor.agent.verification.resources import listed, loaded_digest
from governor.agent.verification.sidecar_api import Metadata, SidecarStatus
from governor.domain.dapr.reload import known_issue, lists_kind
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, State
from governor.values.trees import Manifest


class Process(msgspec.Struct, frozen=True):
    """One start of a sidecar; ``number`` counts its starts since the agent started."""

    number: int
    pid: int
    start_time: str


class SidecarExit(msgspec.Struct, frozen=True):
    """A sidecar ended though nobody asked it to; ``external_cause``: not because of anything that it loaded."""

    number: int
    text: str
    external_cause: bool = False


class Reading(msgspec.Struct, frozen=True):
    """What was seen of one sidecar at one moment.

    ``listener`` numbers the socket on which the process answers: a sidecar that restarts itself inside its process
    opens a new one, and is ``reused`` from then on, which makes its counters no evidence. ``loads`` says how the
    process is known to load the resources directory, nothing when it is not known to; ``watches`` that it will notice
    a change there. ``errors`` are its own error texts.
    """

    time: datetime
    process: Process | None = None
    listener: int = 0
    restarted_in_place: bool = False
    status: SidecarStatus | None = None
    load_evidence: str = ""
    watches: bool = False
    last_exit: SidecarExit | None = None
    errors: tuple[str, ...] = ()


class Expected(msgspec.Struct, frozen=True):
    """One resource as one sidecar must show it: ``new`` in use, or gone when None. ``old`` was on disk before."""

    ref: ResourceRef
    new: Manifest | None
    old: Manifest | None

    @property
    def changed(self) -> bool:
        """Whether the sidecar must do something to be as expected."""
        if self.new is None or self.old is None:
            return self.new is not self.old
        return loaded_digest(self.new) != loaded_digest(self.old)

    @property
    def digest(self) -> str:
        """What a proof is about; empty when the resource must be gone."""
        return loaded_digest(self.new) if self.new is not None else ""

    @property
    def component_type(self) -> str:
        """The type of a Component, new or old, otherwise nothing."""
        shown = self.new or self.old
        return str(shown["spec"]["type"]) if shown and self.ref.kind == "Component" else ""


class Proof(msgspec.Struct, frozen=True):
    """A sidecar's present process was seen to use this content of a resource (nothing: to be without it)."""

    digest: str
    evidence: Evidence


class Verdict(msgspec.Struct, frozen=True):
    """What one reading says of one resource: verified, failed, or not proven yet; ``final``: nor will it be."""

    state: State
    text: str
    final: bool = False


Verdicts: TypeAlias = dict[ResourceRef, Verdict]


def judge_live(expected: Sequence[Expected], before: Reading, now: Reading) -> Verdicts:
    """Judge changes by one process that was asked ``before`` the change and ``now``."""
    if now.last_exit and before.process and now.last_exit.number == before.process.number:
        return _ended(expected, now.last_exit.text)
    doubt = _live_doubt(before, now)
    if doubt or before.status is None or now.status is None or now.process is None:
        return _all_unproven(expected, doubt)
    proof = _with_caution(
        f"same process {now.process.pid} before and after, it watches the resources directory", now.status
    )
    return {each.ref: _live_verdict(each, expected, before.status, now, now.status, proof) for each in expected}


def judge_fresh(expected: Sequence[Expected], after: int, now: Reading) -> Verdicts:
    """Judge everything by a process whose number is beyond ``after``: it was started when all files were written."""
    if now.last_exit and now.last_exit.number > after:
        return _ended(expected, now.last_exit.text)
    doubt = _fresh_doubt(after, now)
    if doubt or now.status is None or now.process is None:
        return _all_unproven(expected, doubt)
    proof = _with_caution(
        f"process {now.process.pid} started after the write, is healthy and {now.load_evidence}", now.status
    )
    return {each.ref: _fresh_verdict(each, now.status, now.errors, proof) for each in expected}


def judge_unchanged(expected: Sequence[Expected], before: Reading, now: Reading) -> Verdicts:
    """Whether what this process had shown, and what did not change, is still there; a restart inside it is no loss."""
    if now.last_exit and before.process and now.last_exit.number == before.process.number:
        return _ended(expected, now.last_exit.text)
    doubt = _same_process_doubt(before, now)
    if doubt or now.status is None or now.process is None:
        return _all_unproven(expected, doubt)
    return {
        each.ref: _shown(each, now.status.metadata, f"same process {now.process.pid} as before") for each in expected
    }


def judge_running(changed: Sequence[Expected], kept: Sequence[Expected], before: Reading, now: Reading) -> Verdicts:
    """Judge a change by one process: what changed is to be proven, what it had shown before must still be there."""
    if now.last_exit and before.process and now.last_exit.number == before.process.number:
        # Judged together, so that what did not change is blamed only if daprd names it.
        return _ended([*changed, *kept], now.last_exit.text)
    return {**judge_live(changed, before, now), **judge_unchanged(kept, before, now)}


def settled(verdicts: Verdicts) -> bool:
    """Whether waiting longer cannot change anything."""
    states = {verdict.state for verdict in verdicts.values() if not verdict.final}
    return states <= {State.VERIFIED} or State.FAILED in states


def mentions(text: str, name: str) -> bool:
    """Whether a text speaks of the resource of this name."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text) is not None


def _live_doubt(before: Reading, now: Reading) -> str:
    if now.listener != before.listener:
        return "the sidecar restarted itself inside its process"
    doubt = _same_process_doubt(before, now)
    return doubt or ("" if now.watches else "the sidecar does not watch the resources directory")


def _same_process_doubt(before: Reading, now: Reading) -> str:
    if now.process is None or now.status is None:
        return "the sidecar does not answer"
    if now.process != before.process:
        return "another process answers than before the change"
    if not now.load_evidence:
        return "nothing shows that the sidecar loads the resources directory"
    return "" if now.status.healthy else "the sidecar is not healthy"


def _fresh_doubt(after: int, now: Reading) -> str:
    if now.process is None or now.status is None:
        return "the sidecar does not answer"
    if now.process.number <= after:
        return "no process was started after the write"
    if not now.load_evidence:
        return "nothing shows that the sidecar loads the resources directory"
    return "" if now.status.healthy else "the sidecar is not healthy"


def _live_verdict(
    each: Expected, expected: Sequence[Expected], before: SidecarStatus, now: Reading, status: SidecarStatus, proof: str
) -> Verdict:
    if each.component_type and each.new is not None:
        return _live_component(each, expected, before, now, status, proof)
    return _shown(each, status.metadata, proof)


def _live_component(
    each: Expected, expected: Sequence[Expected], before: SidecarStatus, now: Reading, status: SidecarStatus, proof: str
) -> Verdict:
    if before.counters is None or status.counters is None:
        return Verdict(State.UNPROVEN, "the sidecar's metrics are off")
    if status.counters.failed.get(each.ref.name, 0) > before.counters.failed.get(each.ref.name, 0):
        return _failed_to_initialise(each, now.errors)
    kind = each.component_type
    wanted = sum(other.component_type == kind and other.new is not None and other.changed for other in expected)
    old, new = before.counters.initialised.get(kind, 0), status.counters.initialised.get(kind, 0)
    if new - old < wanted:
        return Verdict(State.UNPROVEN, f"{kind} was initialised {new - old} times since the write, expected {wanted}")
    return _shown(each, status.metadata, f"{kind} initialised {old} -> {new} times and none failed, {proof}")


def _fresh_verdict(each: Expected, status: SidecarStatus, errors: Sequence[str], proof: str) -> Verdict:
    if each.component_type and status.counters and status.counters.failed.get(each.ref.name, 0):
        return _failed_to_initialise(each, errors)
    return _shown(each, status.metadata, proof)


def _shown(each: Expected, metadata: Metadata, proof: str) -> Verdict:
    """The last question of each proof: does the sidecar list what is expected, and nothing that must be gone?"""
    shown = listed(each.ref, each.new, each.old, metadata)
    if each.new is None:
        if shown:
            return Verdict(State.UNPROVEN, "the sidecar still lists it")
        return Verdict(State.VERIFIED, f"not listed any more, {proof}")
    if not shown and not lists_kind(each.ref.kind, metadata.runtime_version):
        text = f"Dapr {metadata.runtime_version} does not show which {each.ref.kind} it has loaded"
        return Verdict(State.UNPROVEN, text, final=True)
    if not shown:
        return Verdict(State.UNPROVEN, "the sidecar does not list it")
    return Verdict(State.VERIFIED, f"listed as {shown}, {proof}")


def _with_caution(proof: str, status: SidecarStatus) -> str:
    warning = known_issue(status.metadata.runtime_version)
    return f"{proof}; {warning}" if warning else proof


def _failed_to_initialise(each: Expected, errors: Sequence[str]) -> Verdict:
    own = [text for text in errors if mentions(text, each.ref.name)]
    return Verdict(State.FAILED, own[-1] if own else f"{each.component_type} could not be initialised; see daprd's log")


def _ended(expected: Sequence[Expected], text: str) -> Verdicts:
    """Blame what the sidecar's last words name; when they name nothing, all that changed."""
    named = {each.ref for each in expected if mentions(text, each.ref.name)}
    changed = {each.ref for each in expected if each.changed}
    blamed = named or changed or {each.ref for each in expected}
    return {
        each.ref: Verdict(State.FAILED, text)
        if each.ref in blamed
        else Verdict(State.UNPROVEN, "the sidecar ended before it could be asked")
        for each in expected
    }


def _all_unproven(expected: Sequence[Expected], reason: str) -> Verdicts:
    return {each.ref: Verdict(State.UNPROVEN, reason) for each in expected}
