"""Deadlines: the grpc-timeout header, and the time left for plugins and the runtime."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.runtimeproxy.grpc.deadlines import allowance_s, reserve_s, timeout_header, timeout_s

times = st.floats(0.001, 1000)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2H", 7200.0),
        ("3M", 180.0),
        ("10S", 10.0),
        ("119999m", 119.999),
        ("500u", 0.0005),
        ("99999999n", 0.099999999),
        ("0S", 0.0),
    ],
)
def test_the_timeout_header_is_parsed(header: str, seconds: float) -> None:
    assert timeout_s(header) == pytest.approx(seconds)


@pytest.mark.parametrize("header", [None, "", "10", "S", "10s", "123456789S", "-1S", "1.5S", " 1S", "1S\n"])
def test_an_absent_or_malformed_header_sets_no_deadline(header: str | None) -> None:
    assert timeout_s(header) is None


@pytest.mark.parametrize(
    ("seconds", "header"),
    [
        (0.0000001, b"1m"),
        (1.5, b"1500m"),
        (99_999.999, b"99999999m"),
        (172_800, b"172800S"),
        (1e9, b"277777H"),
        (1e300, b"99999999H"),
    ],
)
def test_the_timeout_header_has_at_most_eight_digits(seconds: float, header: bytes) -> None:
    assert timeout_header(seconds) == header


def test_plugins_get_their_own_timeout_if_there_is_enough_time() -> None:
    assert allowance_s(None, [2, 3]) == 2
    assert allowance_s(60, [2, 3]) == 2
    assert allowance_s(5, [2, 3]) == 2


def test_too_little_time_is_shared_proportionally() -> None:
    assert allowance_s(2.5, [2, 3]) == pytest.approx(1.0)
    assert allowance_s(2.5, [3]) == pytest.approx(2.5)


@pytest.mark.parametrize("left_s", [0, -0.1, -60])
def test_without_time_left_no_plugin_is_called(left_s: float) -> None:
    assert allowance_s(left_s, [2, 3]) == 0


def test_the_reserve_is_at_most_half_of_the_deadline() -> None:
    assert reserve_s(120, 5) == 5
    assert reserve_s(2, 5) == 1
    assert reserve_s(None, 5) == 0


@given(times, times, st.lists(times, min_size=1, max_size=5), st.data())
def test_plugins_never_use_up_the_reserve(
    deadline_s: float, wanted_s: float, timeouts_s: list[float], data: st.DataObject
) -> None:
    reserve = reserve_s(deadline_s, wanted_s)
    left_s = deadline_s - reserve
    for index, timeout in enumerate(timeouts_s):
        allowed_s = allowance_s(left_s, timeouts_s[index:])
        assert 0 < allowed_s <= timeout
        taken = data.draw(st.floats(0, 1))
        left_s -= allowed_s * taken
    assert left_s >= -1e-9 * deadline_s
