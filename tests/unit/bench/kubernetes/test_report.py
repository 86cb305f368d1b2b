"""The tables of `make bench-kubernetes`."""

import msgspec
import pytest

from bench.kubernetes.failovers import KILLED, STOPPED, Failover, Failovers
from bench.kubernetes.replayed import Replayed, Sample
from bench.kubernetes.report import added_ms, failover_table, failures, headlines, parts, reason, replayed_table
from tests.unit.bench.kubernetes.samples import NOT_CONFIGURED, reload, reloads

FAST = reload(100, 120, 250)
SLOW = reload(100, 120, 1500)
ALONE = reload(80, 100, 90)


def verdicts(*given: str) -> dict[str, str]:
    cells = [[cell.strip() for cell in line.split("|")] for line in given[2:]]
    return {each[1]: each[-2] for each in cells}


def test_the_proof_is_compared_with_dapr_itself_within_each_round() -> None:
    slow_round = reload(80, 580, 90)

    added = added_ms(reloads([FAST, SLOW], [ALONE, slow_round]))

    assert [round(each) for each in added] == [250 - 20, 1500 - 500]


def test_each_limit_is_met_or_missed() -> None:
    met = verdicts(*headlines(reloads([FAST] * 3, [ALONE] * 3)))
    missed = verdicts(*headlines(reloads([SLOW] * 3, [ALONE] * 3)))

    proven, added = "ms until its use is proven, median", "ms that the proof takes longer than Dapr itself, median"
    assert (met[proven], met[added]) == ("1,000: met", "300: met")
    assert (missed[proven], missed[added]) == ("1,000: missed", "300: missed")


def test_more_failed_requests_than_with_kubectl_miss_the_limit() -> None:
    failing = reload(100, 120, 250, 110, 115)

    lines = list(headlines(reloads([failing, FAST], [reload(80, 100, 90, 95), ALONE])))
    equal = list(headlines(reloads([FAST, FAST], [ALONE, ALONE])))

    assert lines[-1] == "| failed requests in 2 changes | 2 | 1 | kubectl's: missed |"
    assert equal[-1] == "| failed requests in 2 changes | 0 | 0 | kubectl's: met |"


def test_kubectl_has_no_proof_and_ends_with_the_new_store() -> None:
    assert list(parts(reloads([FAST], [ALONE])))[2:] == [
        "| governor | median | 100 | 20 | 130 | 250 |",
        "| governor | p99 | 100 | 20 | 130 | 250 |",
        "| kubectl | median | 80 | 20 |  | 100 |",
        "| kubectl | p99 | 80 | 20 |  | 100 |",
    ]


def test_failed_requests_are_counted_by_change_and_reason() -> None:
    failing = reload(100, 120, 250, 110, 118)

    lines = list(failures(reloads([failing, FAST, FAST], [reload(80, 100, 90, 95), reload(80, 100, 90, 95), ALONE])))

    assert lines[2:4] == [
        "| governor | 3 | 1 | 2 | 8 | 2 x 502 ERR_STATE_STORE_NOT_CONFIGURED |",
        "| kubectl | 3 | 2 | 2 | 0 | 2 x 502 ERR_STATE_STORE_NOT_CONFIGURED |",
    ]
    assert "more failed requests in 1 rounds and fewer in 1 of 3" in lines[-2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NOT_CONFIGURED, "502 ERR_STATE_STORE_NOT_CONFIGURED"),
        ("502 Dapr did not respond to GET /state", "502"),
        ("error ClientOSError: [Errno 104] Connection reset by peer", "ClientOSError"),
        ("error TimeoutError: ", "TimeoutError"),
    ],
)
def test_a_failure_is_named_by_its_status_and_code_or_by_its_error(text: str, expected: str) -> None:
    assert reason(text) == expected


def test_the_memory_of_replayed_sidecars_has_a_limit() -> None:
    samples = tuple(Sample(seconds, 1.0, 40) for seconds in (1.0, 3.0, 2.0))

    lines = list(replayed_table(Replayed(1000, 50, samples, 60.0, 81.0)))

    assert lines[2:4] == [
        "| 1000 | 50 | 3 | median | 2.00 | 1.00 | 40 |",
        "| 1000 | 50 | 3 | most | 3.00 | 1.00 | 40 |",
    ]
    assert lines[-1].endswith("60.0 MiB without sidecars, 81.0 with 1000; limit 80: missed.")


def test_fail_overs_are_listed_by_their_cause() -> None:
    samples = {KILLED: [Failover(15.0, 26.0), Failover(17.0, 30.0)], STOPPED: [Failover(1.0, 11.0)]}

    lines = list(failover_table(Failovers(samples, leader_mib=66.0, standby_mib=48.0)))

    assert lines[2:4] == ["| is killed | 2 | median | 16.0 | 28.0 |", "| is killed | 2 | most | 17.0 | 30.0 |"]
    assert lines[-1] == "Resident memory: 66.0 MiB of the agent that leads, 48.0 of the other."


def test_changes_with_preflight_have_a_limit_of_their_own() -> None:
    given = msgspec.structs.replace(reloads([FAST], [ALONE]), preflighted=(4.0, 5.0, 9.0))

    assert verdicts(*headlines(given))["s until proven with preflight, median"] == "5: met"
    assert "With preflight, 3 changes took 4.0 to 9.0 s." in list(failures(given))
