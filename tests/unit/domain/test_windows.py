"""Maintenance windows and holds: openings over midnight, weeks and changes of the clocks, and what they restrain."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.windows import (
    HELD,
    WAITING_FOR_WINDOW,
    Day,
    Hold,
    Restraint,
    Window,
    active,
    hold_restraint,
    is_time_zone,
    longest_hold,
    next_opening,
    window_restraint,
)

MINUTE = timedelta(minutes=1)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Pacific/Niue",
)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def window(start: str, minutes: int, *days: Day, zone: str = "UTC") -> Window:
    return Window(start, minutes, days or tuple(Day), zone)


def opening(now: str, *windows: Window) -> tuple[str, str]:
    """Return begin and end of the next opening in UTC."""
    found = next_opening(windows, at(now))
    assert found is not None
    assert found.end is not None
    return f"{found.begin:%Y-%m-%d %H:%M}", f"{found.end:%Y-%m-%d %H:%M}"


# -- openings ------------------------------------------------------------------------------------------------------

# 2026-01-01 is a Thursday.
NIGHT = window("22:00", 240, Day.FRI)


@pytest.mark.parametrize(
    "now", ["2026-01-01 00:00", "2026-01-02 21:59", "2026-01-02 22:00", "2026-01-03 00:00", "2026-01-03 01:59"]
)
def test_a_window_crosses_midnight_and_belongs_to_the_day_on_which_it_begins(now: str) -> None:
    assert opening(now, NIGHT) == ("2026-01-02 22:00", "2026-01-03 02:00")


def test_a_window_that_is_over_begins_again_in_a_week() -> None:
    assert opening("2026-01-03 02:00", NIGHT) == ("2026-01-09 22:00", "2026-01-10 02:00")


def test_of_several_windows_the_next_one_counts() -> None:
    noon = window("12:00", 60, Day.MON, Day.WED)
    assert opening("2026-01-03 02:00", NIGHT, noon) == ("2026-01-05 12:00", "2026-01-05 13:00")
    assert opening("2026-01-05 13:00", noon, NIGHT) == ("2026-01-07 12:00", "2026-01-07 13:00")


def test_windows_that_overlap_or_touch_are_one_opening() -> None:
    later, touching = window("01:00", 120, Day.SAT), window("03:00", 30, Day.SAT)
    assert opening("2026-01-02 23:00", touching, NIGHT, later) == ("2026-01-02 22:00", "2026-01-03 03:30")


def test_a_window_inside_of_another_one_does_not_end_it() -> None:
    assert opening("2026-01-02 22:30", NIGHT, window("23:00", 5, Day.FRI)) == ("2026-01-02 22:00", "2026-01-03 02:00")


def test_a_window_may_last_for_days() -> None:
    weekend = window("18:00", 60 * 62, Day.FRI, zone="Europe/Berlin")
    assert opening("2026-01-04 12:00", weekend) == ("2026-01-02 17:00", "2026-01-05 07:00")


def test_an_opening_that_does_not_end_within_a_week_has_no_end() -> None:
    always = window("00:00", 24 * 60)
    found = next_opening([always], at("2026-01-03 12:00"))
    assert found is not None
    assert (found.begin <= at("2026-01-03 12:00"), found.end) == (True, None)


def test_the_days_are_those_of_the_time_zone() -> None:
    """Monday 08:00 in Kiritimati (UTC+14) is Sunday in UTC; Sunday 20:00 in Niue (UTC-11) is Monday in UTC."""
    assert opening("2026-01-03 00:00", window("08:00", 60, Day.MON, zone="Pacific/Kiritimati"))[0] == "2026-01-04 18:00"
    assert opening("2026-01-03 00:00", window("20:00", 60, Day.SUN, zone="Pacific/Niue"))[0] == "2026-01-05 07:00"


# -- changes of the clocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "start", "now", "begin", "end"),
    [
        # Berlin, 2026-03-29: 02:00 becomes 03:00. A skipped start is moved by the hour that is skipped.
        ("Europe/Berlin", "01:59", "2026-03-29 00:00", "2026-03-29 00:59", "2026-03-29 01:59"),
        ("Europe/Berlin", "02:30", "2026-03-29 00:00", "2026-03-29 01:30", "2026-03-29 02:30"),
        ("Europe/Berlin", "03:00", "2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 02:00"),
        # Berlin, 2026-10-25: 03:00 becomes 02:00. The first 02:30 counts, and the second one is not a start.
        ("Europe/Berlin", "02:30", "2026-10-25 00:00", "2026-10-25 00:30", "2026-10-25 01:30"),
        ("Europe/Berlin", "02:30", "2026-10-25 01:30", "2026-10-26 01:30", "2026-10-26 02:30"),
        ("Europe/Berlin", "03:00", "2026-10-25 01:00", "2026-10-25 02:00", "2026-10-25 03:00"),
        # Lord Howe shifts by half an hour: 2026-10-04 02:00 becomes 02:30.
        ("Australia/Lord_Howe", "02:15", "2026-10-03 12:00", "2026-10-03 15:45", "2026-10-03 16:45"),
        # In Sao Paulo midnight itself was skipped on 2018-11-04.
        ("America/Sao_Paulo", "00:00", "2018-11-04 00:00", "2018-11-04 03:00", "2018-11-04 04:00"),
        # Apia skipped the whole 2011-12-30: a start on that day is the one of the day after.
        ("Pacific/Apia", "10:00", "2011-12-30 00:00", "2011-12-30 20:00", "2011-12-30 21:00"),
    ],
)
def test_a_window_at_a_change_of_the_clocks(zone: str, start: str, now: str, begin: str, end: str) -> None:
    assert opening(now, window(start, 60, zone=zone)) == (begin, end)


@pytest.mark.parametrize(("date", "begin"), [("2026-03-28", "21:00"), ("2026-10-24", "20:00")])
def test_a_change_of_the_clocks_does_not_alter_the_length_of_a_window(date: str, begin: str) -> None:
    found = next_opening([window("22:00", 480, zone="Europe/Berlin")], at(f"{date} 12:00"))
    assert found is not None
    assert found.begin == at(f"{date} {begin}")
    assert found.end == found.begin + timedelta(hours=8)


# -- properties ----------------------------------------------------------------------------------------------------

starts = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))
durations = st.one_of(st.integers(1, 300), st.integers(1, 7 * 24 * 60))
days = st.lists(st.sampled_from(Day), min_size=1, unique=True).map(tuple)
windows = st.builds(Window, starts, durations, days, st.sampled_from(ZONES))
times = st.datetimes(datetime(2005, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - in UTC


def begin_of(windows: list[Window], now: datetime) -> datetime:
    found = next_opening(windows, now)
    assert found is not None
    return found.begin


def is_open(windows: list[Window], now: datetime) -> bool:
    return begin_of(windows, now) <= now


@given(st.lists(windows, min_size=1, max_size=4), times)
def test_every_moment_is_in_an_opening_or_before_one_that_begins_within_eight_days(
    several: list[Window], now: datetime
) -> None:
    found = next_opening(several, now)
    assert found is not None
    assert found.begin - now <= timedelta(days=8)
    assert found.end is None or max(now, found.begin) < found.end


@given(st.lists(windows, min_size=1, max_size=4), times)
def test_an_opening_contains_its_begin_and_not_its_end(several: list[Window], now: datetime) -> None:
    found = next_opening(several, now)
    assert found is not None
    assert is_open(several, max(now, found.begin))
    if now < found.begin:
        assert not is_open(several, found.begin - MINUTE)
        assert not is_open(several, now)
    if found.end is not None:
        assert is_open(several, found.end - MINUTE) or found.end - MINUTE < found.begin
        assert not is_open(several, found.end)
        assert begin_of(several, found.end) > found.end


@given(st.lists(windows, min_size=1, max_size=4), times)
def test_several_windows_are_open_when_one_of_them_is(several: list[Window], now: datetime) -> None:
    assert is_open(several, now) == any(is_open([each], now) for each in several)


@given(windows, times)
def test_an_opening_begins_at_the_start_on_one_of_the_days_unless_the_clocks_change(one: Window, now: datetime) -> None:
    found, zone = next_opening([one], now), ZoneInfo(one.time_zone)
    assert found is not None
    offsets = {(found.begin + timedelta(hours=shift)).astimezone(zone).utcoffset() for shift in (-25, 0, 25)}
    is_single = found.end == found.begin + timedelta(minutes=one.duration_minutes)
    if len(offsets) == 1 and is_single:
        local = found.begin.astimezone(zone)
        assert f"{local:%H:%M}" == one.start
        assert list(Day)[local.weekday()] in one.days


@given(starts, durations, days, times)
def test_without_changes_of_the_clocks_a_window_is_open_by_the_arithmetic_of_weeks(
    start: str, minutes: int, on: tuple[Day, ...], now: datetime
) -> None:
    hour, minute = map(int, start.split(":"))
    week = now - timedelta(days=now.weekday(), hours=now.hour, minutes=now.minute, seconds=now.second)
    passed = (now - week.replace(microsecond=0)) / MINUTE
    begins = [(list(Day).index(day) * 24 + hour) * 60 + minute for day in on]
    expected = any((passed - begin) % (7 * 24 * 60) < minutes for begin in begins)
    assert is_open([Window(start, minutes, on)], now) == expected


# -- time zones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT-14"])
def test_names_of_the_database_are_time_zones(name: str) -> None:
    assert is_time_zone(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "CEST",
        "europe/berlin",
        "Europe",
        "Mars/Olympus",
        "../UTC",
        "/etc/localtime",
        "localtime",
        "a\0b",
        "x" * 5000,
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_time_zone(name)


def test_a_window_in_an_unknown_time_zone_never_opens() -> None:
    unknown = window("00:00", 60, zone="Mars/Olympus")
    assert next_opening([unknown], at("2026-01-01 00:00")) is None
    restraint = window_restraint([unknown], at("2026-01-01 00:00"))
    assert restraint is not None
    assert (restraint.reason, restraint.until) == (WAITING_FOR_WINDOW, None)
    assert "does not know the time zone Mars/Olympus; update tzdata" in restraint.message
    assert window_restraint([unknown, window("00:00", 60)], at("2026-01-01 00:30")) is None


# -- restraints ----------------------------------------------------------------------------------------------------


def test_outside_of_all_windows_the_next_one_is_named() -> None:
    noon = at("2026-01-01 12:00")
    expected = Restraint(
        WAITING_FOR_WINDOW, "outside of the maintenance window (next: 2026-01-02 22:00:00Z)", at("2026-01-02 22:00")
    )
    assert window_restraint([NIGHT], noon) == expected
    assert window_restraint([NIGHT], at("2026-01-02 22:00")) is None
    assert window_restraint([], noon) is None


def test_a_hold_restrains_until_it_expires() -> None:
    hold = Hold(datetime.fromisoformat("2026-01-01T14:00:00+02:00"), "database migration")
    expected = Restraint(HELD, "held until 2026-01-01 12:00:00Z: database migration", at("2026-01-01 12:00"))
    assert hold_restraint(hold, at("2026-01-01 11:59")) == expected
    assert active(hold, at("2026-01-01 11:59")) == hold
    for expired in (hold_restraint(hold, at("2026-01-01 12:00")), active(hold, at("2026-01-01 12:00"))):
        assert expired is None
    assert hold_restraint(None, at("2026-01-01 12:00")) is None
    assert active(None, at("2026-01-01 12:00")) is None


def test_of_several_holds_the_last_to_expire_counts() -> None:
    short, long = Hold(at("2026-01-01 12:00"), "a"), Hold(at("2026-01-01 13:00"), "b")
    assert longest_hold(short, None, long) == longest_hold(long, short) == long
    assert longest_hold(None) is longest_hold() is None


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_time_that_does_not_exist_in_utc_is_rejected(until: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="is out of range"):
        msgspec.convert({"until": until, "reason": "x"}, Hold)


@given(st.lists(windows, max_size=3))
def test_windows_survive_the_round_trip(several: list[Window]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(several), type=list[Window]) == several
