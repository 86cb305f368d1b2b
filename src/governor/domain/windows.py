"""Maintenance windows and holds: when an agent may change its runtime. Pure; only time zones come from the machine.

A window recurs on days of its time zone. Its duration is elapsed time, so it may cross midnight, and a change of the
clocks does not alter its length. A start that the clocks skip is moved by what they skip; of a start that occurs twice
the first one counts.
"""

import enum
from collections.abc import Iterator, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta
from typing import Annotated, Final, TypeAlias
from zoneinfo import ZoneInfo

import msgspec

Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a time zone, so that the times of two machines can be compared."""

HELD: Final = "Held"
WAITING_FOR_WINDOW: Final = "WaitingForWindow"

_MACHINE_SPECIFIC: Final = frozenset({"localtime", "posixrules"})
"""Names in the time zone database that mean another zone on each machine."""
_WEEK: Final = timedelta(days=7)
_SEARCHED_DAYS: Final = 9
"""How many days before and after a time windows are searched: a week, and what time zones may differ."""


class Day(enum.StrEnum):
    """A day of the week, in the order of ``date.weekday``."""

    MON = "Mon"
    TUE = "Tue"
    WED = "Wed"
    THU = "Thu"
    FRI = "Fri"
    SAT = "Sat"
    SUN = "Sun"


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A maintenance window: it begins at ``start`` on each of the days, by the clock of the time zone."""

    start: Annotated[
        str,
        msgspec.Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$(?!\n)", description="a time of day from 00:00 to 23:59"),
    ]
    duration_minutes: Annotated[int, msgspec.Meta(ge=1, le=_WEEK // timedelta(minutes=1))]
    days: Annotated[tuple[Day, ...], msgspec.Meta(min_length=1)] = tuple(Day)
    time_zone: str = "UTC"


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A hold: until then an agent changes nothing of its runtime."""

    until: Instant
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]

    def __post_init__(self) -> None:
        # Otherwise the time may not exist in UTC.
        if not MINYEAR < self.until.year < MAXYEAR:
            raise ValueError(f"until: the year {self.until.year} is out of range")


class Restraint(msgspec.Struct, frozen=True, rename="camel"):
    """What keeps an agent from changing its runtime: ``HELD`` or ``WAITING_FOR_WINDOW``, until when, and the text.

    ``waits`` if a part of the delivery is not applied, or a sidecar not restarted, because of it.
    """

    reason: str
    message: str
    until: Instant | None = None
    waits: bool = True


class Opening(msgspec.Struct, frozen=True):
    """A time in which at least one window is open; ``end`` is None if it does not end within a week."""

    begin: datetime
    end: datetime | None


def is_time_zone(name: str) -> bool:
    """Return whether the machine knows a time zone of this name."""
    return _zone(name) is not None


def next_opening(windows: Sequence[Window], now: datetime) -> Opening | None:
    """Return the opening that contains ``now``, or the next one; None if the machine knows none of the time zones.

    Openings of several windows that overlap or follow each other without a gap are one.
    """
    found: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(each for window in windows for each in _occurrences(window, now)):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    coming = next(((begin, end) for begin, end in found if now < end), None)
    if coming is None:
        return None
    begin, end = coming
    return Opening(begin, end if end <= max(now, begin) + _WEEK else None)


def window_restraint(windows: Sequence[Window], now: datetime) -> Restraint | None:
    """Return the restraint outside of all windows, or None; no window at all is no restraint."""
    opening = next_opening(windows, now)
    if not windows or (opening is not None and opening.begin <= now):
        return None
    if opening is None:
        names = ", ".join(sorted({each.time_zone for each in windows}))
        message = f"outside of the maintenance window: this machine does not know the time zone {names}; update tzdata"
        return Restraint(WAITING_FOR_WINDOW, message)
    message = f"outside of the maintenance window (next: {utc_text(opening.begin)})"
    return Restraint(WAITING_FOR_WINDOW, message, opening.begin)


def active(hold: Hold | None, now: datetime) -> Hold | None:
    """Return a hold that has not expired, or None."""
    return hold if hold is not None and now < hold.until else None


def hold_restraint(hold: Hold | None, now: datetime) -> Restraint | None:
    """Return the restraint of a hold, or None if there is none or it has expired."""
    if hold is None or active(hold, now) is None:
        return None
    return Restraint(HELD, f"held until {utc_text(hold.until)}: {hold.reason}", hold.until)


def longest_hold(*holds: Hold | None) -> Hold | None:
    """Return the hold that ends last, or None if there is none."""
    return max((each for each in holds if each is not None), key=lambda each: each.until, default=None)


def utc_text(instant: datetime) -> str:
    """Return a time in UTC, to the second."""
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def _occurrences(window: Window, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield begin and end of a window, in UTC, on all days on which it may matter for ``now``."""
    zone = _zone(window.time_zone)
    if zone is None:
        return
    start, duration = time.fromisoformat(window.start), timedelta(minutes=window.duration_minutes)
    today = now.astimezone(zone).date()
    for day in (today + timedelta(days=number) for number in range(-_SEARCHED_DAYS, _SEARCHED_DAYS + 1)):
        if _day_of(day) in window.days:
            # With fold=0 a skipped start gets the offset from before the gap, a repeated one is the first.
            begin = datetime.combine(day, start, zone).astimezone(UTC)
            yield begin, begin + duration


def _day_of(day: date) -> Day:
    return tuple(Day)[day.weekday()]


def _zone(name: str) -> ZoneInfo | None:
    if name in _MACHINE_SPECIFIC:
        return None
    # Absolute paths and .. are ValueErrors; directories of the database are OSErrors in some versions of Python.
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
