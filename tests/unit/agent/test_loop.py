"""Pure parts of the loop: repairs of drift are limited."""

from governor.agent.loop import Repairs


def test_each_repair_in_a_row_waits_longer_up_to_a_limit() -> None:
    repairs, now_s, waits = Repairs(), 1000.0, []
    for _ in range(12):
        waits.append(repairs.wait_s(now_s))
        now_s += waits[-1]
        repairs.add(now_s)
    assert waits == [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]


def test_a_repair_after_a_long_calm_is_the_first_again() -> None:
    repairs = Repairs()
    repairs.add(0.0)
    repairs.add(2.0)
    assert repairs.wait_s(3.0) == 3.0
    assert (repairs.wait_s(1000.0), repairs.count) == (0.0, 0)
