"""The decisions of a candidate, one by one."""

import datetime

import msgspec
import pytest

from governor.kube.lease.candidate import RELEASED_S, Candidate, Lease, Moment, Spec, Step, Timing

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
OTHERS = Spec("other", 15, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z", 4)


def _at(steady: float, wall_s: float | None = None) -> Moment:
    return Moment(steady, START + datetime.timedelta(seconds=steady if wall_s is None else wall_s))


def _lease(version: int, spec: Spec) -> Lease:
    return Lease(str(version), spec, {})


def _leader(now: Moment) -> Candidate:
    """A candidate that took a Lease that was not there."""
    me = Candidate("me").saw(None, now)
    claim = me.claim(now)
    return me.sends(claim).wrote(_lease(1, claim), now)


@pytest.mark.parametrize(
    "timing",
    [
        {"lease_s": 10},
        {"renew_deadline_s": 15.0},
        {"renew_deadline_s": 3.9},
        {"retry_s": 0.0},
        {"retry_s": -1.0},
        {"retry_s": 5.1},
    ],
)
def test_durations_that_leave_no_time_to_step_down_are_refused(timing: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError, match="2 \\* retry_s <= renew_deadline_s < lease_s, not"):
        msgspec.convert(timing, Timing)


def test_a_lease_that_is_not_there_is_taken_at_once() -> None:
    me = Candidate("me").saw(None, _at(0))
    assert me.step(_at(0)) is Step.TAKE
    assert me.claim(_at(0)) == Spec("me", 15, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z", 1)


def test_another_holder_is_waited_for_from_the_last_change_that_was_seen() -> None:
    me = Candidate("me").saw(_lease(1, OTHERS), _at(100))
    assert me.step(_at(114.9)) is Step.WAIT
    unchanged = me.saw(_lease(1, OTHERS), _at(110))
    assert unchanged.step(_at(115)) is Step.TAKE
    changed = me.saw(_lease(2, OTHERS), _at(110))
    assert changed.step(_at(124.9)) is Step.WAIT
    assert changed.step(_at(125)) is Step.TAKE


@pytest.mark.parametrize(
    ("spec", "free_after_s"),
    [
        (Spec("other", 60, lease_transitions=4), 60),
        (Spec("other", 1), 15),
        (Spec("other"), 15),
        (Spec("other", -7, "nonsense", "nonsense", -3), 15),
        (Spec(), 15),
        (Spec("", 15), 15),
        (Spec("me", 15), 15),
        (Spec(None, RELEASED_S), 0),
        (Spec("", RELEASED_S), 0),
    ],
)
def test_how_long_a_lease_is_left_alone(spec: Spec, free_after_s: float) -> None:
    """Whoever shortens it, or writes somebody else's name into it, does not make two leaders."""
    me = Candidate("me").saw(_lease(1, spec), _at(0))
    assert me.step(_at(free_after_s)) is Step.TAKE
    assert free_after_s == 0 or me.step(_at(free_after_s - 0.1)) is Step.WAIT


def test_a_lease_that_vanishes_does_not_end_what_its_holder_believes() -> None:
    me = Candidate("me").saw(_lease(1, OTHERS), _at(0)).saw(None, _at(1))
    assert me.step(_at(14.9)) is Step.WAIT
    assert me.step(_at(15)) is Step.TAKE


def test_each_term_has_a_higher_number_also_when_the_lease_forgot_it() -> None:
    me = Candidate("me").saw(_lease(1, OTHERS), _at(0)).saw(None, _at(1))
    assert me.claim(_at(15)).lease_transitions == 5
    restarted = Candidate("new").saw(_lease(7, Spec("me", lease_transitions=0)), _at(0))
    assert restarted.claim(_at(15)).lease_transitions == 1


def test_a_leader_steps_down_at_the_renew_deadline_counted_from_before_it_wrote() -> None:
    me = _leader(_at(0))
    assert me.remaining_s(_at(4)) == 6
    assert me.step(_at(9.9)) is Step.RENEW
    assert me.step(_at(10)) is Step.STEP_DOWN
    spec = me.renewal(_at(5))
    renewed = me.sends(spec).wrote(_lease(2, spec), _at(5))
    assert renewed.step(_at(14.9)) is Step.RENEW
    assert renewed.step(_at(15)) is Step.STEP_DOWN
    assert renewed.term is not None
    assert renewed.term.epoch == 1


def test_a_machine_that_slept_steps_down_though_its_steady_clock_stood_still() -> None:
    assert _leader(_at(0)).step(_at(1, wall_s=3600)) is Step.STEP_DOWN


def test_a_wall_clock_that_is_set_back_prolongs_nothing() -> None:
    assert _leader(_at(0)).step(_at(10, wall_s=-3600)) is Step.STEP_DOWN


def test_a_leader_that_sees_another_holder_or_none_steps_down_at_once() -> None:
    me = _leader(_at(0))
    assert me.saw(_lease(2, OTHERS), _at(1)).step(_at(1)) is Step.STEP_DOWN
    assert me.saw(None, _at(1)).step(_at(1)) is Step.STEP_DOWN


def test_a_leader_keeps_a_lease_that_somebody_touched_and_restores_it() -> None:
    me = _leader(_at(0))
    edited = Spec("me", 1, "then", "then", 40)
    touched = me.saw(_lease(2, edited), _at(1))
    assert touched.step(_at(1)) is Step.RENEW
    assert touched.renewal(_at(1)) == Spec("me", 15, "then", "2026-01-01T00:00:01.000000Z", 1)


def test_a_renewal_always_changes_the_lease() -> None:
    me = _leader(_at(0))
    assert me.lease is not None
    assert me.renewal(_at(3, wall_s=0)).renew_time != me.lease.spec.renew_time


def test_an_own_write_whose_answer_was_lost_is_taken_up_at_once() -> None:
    me = Candidate("me").saw(None, _at(0))
    claim = me.claim(_at(0))
    me = me.sends(claim).saw(_lease(1, claim), _at(5))
    assert me.step(_at(5)) is Step.TAKE
    assert me.claim(_at(5)).lease_transitions == 2


def test_what_others_keep_in_a_lease_stays() -> None:
    manifest = {
        "metadata": {"name": "x", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, "strategy": "OldestEmulationVersion"},
    }
    lease = Lease.of(manifest)
    assert (lease.version, lease.spec) == ("7", Spec("other", 15))
    assert lease.with_spec(Spec(None, 1)) == {
        "metadata": manifest["metadata"],
        "spec": {"leaseDurationSeconds": 1, "strategy": "OldestEmulationVersion"},
    }
