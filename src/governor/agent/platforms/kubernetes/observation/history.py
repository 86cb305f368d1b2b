"""The history of an observation: the resources and the answers of the sidecars before the last change, and the proofs.

Another tool has already written when a change is noticed, so the sidecars' answers from before it are those of the last
check. It is kept in memory only.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from governor.agent.platforms.kubernetes.observation.snapshot import (
    Snapshot,
    changed_refs,
    expectations,
    rewritten_refs,
)
from governor.agent.platforms.kubernetes.plans.affected import Changes
from governor.agent.platforms.kubernetes.proof.instances import Probed
from governor.agent.platforms.kubernetes.proof.judgement import Judged, Situation, unsettled_types
from governor.agent.platforms.kubernetes.workloads.workload import Pod
from governor.agent.verification.verdicts import Proof
from governor.domain.documents import ResourceRef
from governor.domain.reports import State

_SETTLING: Final = timedelta(minutes=2)
"""How long a sidecar may take to initialise a changed Component: it compares all of them once a minute."""


class History:
    """What was observed before the last change and since. Changes that follow before its end count as one."""

    def __init__(self) -> None:
        self._before: Snapshot = {}
        self._now: Snapshot | None = None
        self._answers_before: dict[str, Probed] = {}
        self._answers: dict[str, Probed] = {}
        self._proofs_before: dict[str, dict[ResourceRef, Proof]] = {}
        self._proofs: dict[str, dict[ResourceRef, Proof]] = {}
        self._noticed: datetime | None = None
        self._is_concluded = True
        self._changes = self._unsettled = Changes(())
        self._rewritten_types: frozenset[str] = frozenset()

    @property
    def refs(self) -> tuple[ResourceRef, ...]:
        """The resources, with those that the last change removed."""
        return tuple(each.ref for each in self._changes.expected)

    @property
    def answers_before(self) -> Mapping[str, Probed]:
        """What the sidecars answered before the last change, by pod uid."""
        return self._answers_before

    def compare(self, snapshot: Snapshot, time: datetime) -> bool:
        """Take a snapshot; return whether it differs from the last one. Of what was before the first, none is known."""
        if self._now is not None and not changed_refs(self._now, snapshot):
            return False
        if self._now is None:
            self._before = snapshot
        elif self._is_concluded:
            self._before, self._answers_before = self._now, self._answers
            self._proofs_before = {instance: {**proofs} for instance, proofs in self._proofs.items()}
        self._now, self._noticed, self._is_concluded = snapshot, time, False
        self._expect(changed_refs(self._before, snapshot), snapshot, time)
        return True

    def _expect(self, changed: frozenset[ResourceRef], snapshot: Snapshot, time: datetime) -> None:
        expected = expectations(self._before, snapshot)
        first = min((snapshot[ref].written if ref in snapshot else time for ref in changed), default=time)
        recent = {ref for ref, each in self._before.items() if each.written >= first - _SETTLING}
        rewritten = set(rewritten_refs(self._before, snapshot))
        self._changes = Changes(expected)
        self._unsettled = Changes(each for each in expected if each.ref in recent)
        self._rewritten_types = frozenset(each.component_type for each in expected if each.ref in rewritten) - {""}
        # What was proven since then is proven again: otherwise its rise of a counter would prove another change.
        self._proofs = {
            instance: {ref: proof for ref, proof in proofs.items() if ref not in changed}
            for instance, proofs in self._proofs.items()
        }

    def situation(self, answers: Mapping[str, Probed], *, is_over: bool) -> Situation:
        """Return what the judgement depends on; ``answers`` are those of the sidecars now, by pod uid."""
        return Situation(
            self._changes,
            self._answers_before,
            answers,
            self._written(),
            self._proofs,
            is_over=is_over,
            unsettled={each.pod.instance: self._unsettled_types(each.pod) for each in answers.values()},
            is_foreign_known=True,
        )

    def record(self, judged: Iterable[Judged], answers: Mapping[str, Probed], time: datetime, *, is_over: bool) -> bool:
        """Keep the answers and what they prove; return whether the change has come to its end."""
        several = tuple(judged)
        for each in several:
            if instance := each.pod.instance:
                known = self._proofs.setdefault(instance, {})
                known.update(tuple(each.proofs(time, known)))
        present = {each.pod.instance for each in several}
        self._proofs = {instance: proofs for instance, proofs in self._proofs.items() if instance in present}
        self._answers = {**answers}
        self._is_concluded = is_over or _all_verified(several)
        if is_over:
            self._forget_replaced(answers)
        return self._is_concluded

    def _written(self) -> dict[ResourceRef, datetime]:
        """Return when each resource was written; of a removed one nothing is left, so that is when it was noticed."""
        now = self._now or {}
        removed = {ref: self._noticed for ref in self._before.keys() - now.keys() if self._noticed}
        return {**removed, **{ref: each.written for ref, each in now.items()}}

    def _unsettled_types(self, pod: Pod) -> frozenset[str]:
        proofs = self._proofs_before.get(pod.instance, {})
        return self._rewritten_types | unsettled_types(pod, self._unsettled, proofs)

    def _forget_replaced(self, answers: Mapping[str, Probed]) -> None:
        """Forget sidecars that were replaced in their pods: an exit after the end of a change is not due to it."""
        replaced = {
            uid
            for uid, each in self._answers_before.items()
            if uid in answers and answers[uid].pod.instance != each.pod.instance and _is_ready(answers[uid].pod)
        }
        self._answers_before = {uid: each for uid, each in self._answers_before.items() if uid not in replaced}


def _all_verified(judged: Sequence[Judged]) -> bool:
    return all(one.state is State.VERIFIED for each in judged for one in each.verdicts.values())


def _is_ready(pod: Pod) -> bool:
    return pod.sidecar is not None and pod.sidecar.ready
