"""Decisions of a candidate."""

import datetime
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError
from governor.kube.lease.candidate import RELEASED_DURATION_S, Candidate, Lease, LeaseSpec, Moment, Step, Timing

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HELD_BY_OTHER = LeaseSpec("other", 15, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z", 4)


def _at(monotonic: float, wall_s: float | None = None) -> Moment:
    return Moment(monotonic, START + datetime.timedelta(seconds=monotonic if wall_s is None else wall_s))


def _lease(version: int, spec: LeaseSpec) -> Lease:
    return Lease(str(version), spec, {})


def _leader(now: Moment) -> Candidate:
    """Return a candidate that created the Lease."""
    candidate = Candidate("me").observed(None, now)
    spec = candidate.acquire_spec(now)
    return candidate.sending(spec).written(_lease(1, spec), now)


@pytest.mark.parametrize(
    "timing",
    [
        {"lease_duration_s": 10},
        {"renew_deadline_s": 15.0},
        {"renew_deadline_s": 3.9},
        {"retry_period_s": 0.0},
        {"retry_period_s": -1.0},
        {"retry_period_s": 5.1},
    ],
)
def test_timings_that_leave_no_time_to_step_down_are_rejected(timing: dict[str, float]) -> None:
    with pytest.raises(
        msgspec.ValidationError, match="2 \\* retry_period_s <= renew_deadline_s < lease_duration_s, not"
    ):
        msgspec.convert(timing, Timing)


def test_a_missing_lease_is_acquired_at_once() -> None:
    candidate = Candidate("me").observed(None, _at(0))
    assert candidate.next_step(_at(0)) is Step.ACQUIRE
    assert candidate.acquire_spec(_at(0)) == LeaseSpec(
        "me", 15, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z", 1
    )


def test_the_wait_for_another_holder_starts_at_the_last_observed_change() -> None:
    candidate = Candidate("me").observed(_lease(1, HELD_BY_OTHER), _at(100))
    assert candidate.next_step(_at(114.9)) is Step.WAIT
    unchanged = candidate.observed(_lease(1, HELD_BY_OTHER), _at(110))
    assert unchanged.next_step(_at(115)) is Step.ACQUIRE
    changed = candidate.observed(_lease(2, HELD_BY_OTHER), _at(110))
    assert changed.next_step(_at(124.9)) is Step.WAIT
    assert changed.next_step(_at(125)) is Step.ACQUIRE


@pytest.mark.parametrize(
    ("spec", "held_s"),
    [
        (LeaseSpec("other", 60, lease_transitions=4), 60),
        (LeaseSpec("other", 1), 15),
        (LeaseSpec("other"), 15),
        (LeaseSpec("other", -7, "nonsense", "nonsense", -3), 15),
        (LeaseSpec(), 15),
        (LeaseSpec("", 15), 15),
        (LeaseSpec("me", 15), 15),
        (LeaseSpec(None, RELEASED_DURATION_S), 0),
        (LeaseSpec("", RELEASED_DURATION_S), 0),
    ],
)
def test_how_long_a_lease_counts_as_held(spec: LeaseSpec, held_s: float) -> None:
    """A shortened duration or another holder written by a user does not lead to two leaders."""
    candidate = Candidate("me").observed(_lease(1, spec), _at(0))
    assert candidate.next_step(_at(held_s)) is Step.ACQUIRE
    assert held_s == 0 or candidate.next_step(_at(held_s - 0.1)) is Step.WAIT


def test_a_deleted_lease_still_counts_as_held() -> None:
    candidate = Candidate("me").observed(_lease(1, HELD_BY_OTHER), _at(0)).observed(None, _at(1))
    assert candidate.next_step(_at(14.9)) is Step.WAIT
    assert candidate.next_step(_at(15)) is Step.ACQUIRE


def test_epochs_increase_even_after_the_lease_was_deleted() -> None:
    candidate = Candidate("me").observed(_lease(1, HELD_BY_OTHER), _at(0)).observed(None, _at(1))
    assert candidate.acquire_spec(_at(15)).lease_transitions == 5
    restarted = Candidate("new").observed(_lease(7, LeaseSpec("me", lease_transitions=0)), _at(0))
    assert restarted.acquire_spec(_at(15)).lease_transitions == 1


def test_the_renew_deadline_counts_from_before_the_write_was_sent() -> None:
    candidate = _leader(_at(0))
    assert candidate.remaining_s(_at(4)) == 6
    assert candidate.next_step(_at(9.9)) is Step.RENEW
    assert candidate.next_step(_at(10)) is Step.STEP_DOWN
    spec = candidate.renew_spec(_at(5))
    renewed = candidate.sending(spec).written(_lease(2, spec), _at(5))
    assert renewed.next_step(_at(14.9)) is Step.RENEW
    assert renewed.next_step(_at(15)) is Step.STEP_DOWN
    assert renewed.term is not None
    assert renewed.term.epoch == 1


def test_a_leader_on_a_suspended_machine_steps_down() -> None:
    assert _leader(_at(0)).next_step(_at(1, wall_s=3600)) is Step.STEP_DOWN


def test_setting_the_wall_clock_back_does_not_prolong_a_term() -> None:
    assert _leader(_at(0)).next_step(_at(10, wall_s=-3600)) is Step.STEP_DOWN


def test_a_leader_that_observes_another_holder_or_none_steps_down() -> None:
    candidate = _leader(_at(0))
    assert candidate.observed(_lease(2, HELD_BY_OTHER), _at(1)).next_step(_at(1)) is Step.STEP_DOWN
    assert candidate.observed(None, _at(1)).next_step(_at(1)) is Step.STEP_DOWN


def test_a_leader_reverts_changes_by_other_clients() -> None:
    candidate = _leader(_at(0))
    edited = LeaseSpec("me", 1, "then", "then", 40)
    after_edit = candidate.observed(_lease(2, edited), _at(1))
    assert after_edit.next_step(_at(1)) is Step.RENEW
    assert after_edit.renew_spec(_at(1)) == LeaseSpec("me", 15, "then", "2026-01-01T00:00:01.000000Z", 1)


def test_a_renewal_always_changes_the_lease() -> None:
    candidate = _leader(_at(0))
    assert candidate.lease is not None
    assert candidate.renew_spec(_at(3, wall_s=0)).renew_time != candidate.lease.spec.renew_time


def test_a_write_whose_response_was_lost_is_followed_up_at_once() -> None:
    candidate = Candidate("me").observed(None, _at(0))
    spec = candidate.acquire_spec(_at(0))
    candidate = candidate.sending(spec).observed(_lease(1, spec), _at(5))
    assert candidate.next_step(_at(5)) is Step.ACQUIRE
    assert candidate.acquire_spec(_at(5)).lease_transitions == 2


def test_other_fields_of_a_lease_are_kept() -> None:
    manifest = {
        "metadata": {"name": "x", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "strategy": "OldestEmulationVersion"},
    }
    lease = Lease.from_manifest(manifest)
    assert (lease.version, lease.spec) == ("7", LeaseSpec("other", 15))
    assert lease.with_spec(LeaseSpec(None, 1)) == {
        "metadata": manifest["metadata"],
        "spec": {"leaseDurationSeconds": 1, "strategy": "OldestEmulationVersion"},
    }


@pytest.mark.parametrize(
    "manifest", [{}, {"metadata": {}}, {"metadata": {"resourceVersion": "1"}, "spec": {"leaseDurationSeconds": "x"}}]
)
def test_a_malformed_lease_is_an_error_that_elections_survive(manifest: dict[str, Any]) -> None:
    with pytest.raises(GovernorError, match="Lease"):
        Lease.from_manifest(manifest)


def test_the_maximum_of_lease_transitions_leaves_room_for_the_next_leader() -> None:
    now = _at(100.0)
    seen = Candidate("me").observed(Lease("1", LeaseSpec("other", 15, lease_transitions=2**31 - 1), {}), now)
    claim = seen.acquire_spec(now)
    assert claim.lease_transitions is not None
    assert 0 < claim.lease_transitions < 2**31
    leading = seen.sending(claim).written(Lease("2", claim, {}), now)
    assert leading.term is not None
    assert leading.term.epoch == claim.lease_transitions
    assert leading.lost().acquire_spec(now).lease_transitions == claim.lease_transitions + 1
