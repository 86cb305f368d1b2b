"""Deadlines of calls: the grpc-timeout header, and how a call's remaining time is divided among plugins.

Plugins never get all of it, so that the runtime can still respond within kubelet's deadline.
"""

from collections.abc import Sequence
from typing import Final

_MAX_DIGITS: Final = 8
_MAX_VALUE: Final = 99_999_999
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def timeout_s(header: str | None) -> float | None:
    """Return a grpc-timeout header in seconds, or None (no deadline) if it is absent or malformed."""
    if not header:
        return None
    number, unit_s = header[:-1], _UNIT_S.get(header[-1])
    if unit_s is None or len(number) > _MAX_DIGITS or not (number.isdigit() and number.isascii()):
        return None
    return int(number) * unit_s


def timeout_header(timeout_s: float) -> bytes:
    """Return the grpc-timeout header of a duration, in the finest unit in which it has at most eight digits."""
    for unit in ("m", "S", "H"):
        number = max(1, int(timeout_s / _UNIT_S[unit]))
        if number <= _MAX_VALUE:
            return f"{number}{unit}".encode()
    return f"{_MAX_VALUE}H".encode()


def reserve_s(deadline_s: float | None, wanted_s: float) -> float:
    """Return the part of a call's time reserved for the runtime: ``wanted_s``, at most half of the deadline."""
    return 0.0 if deadline_s is None else min(wanted_s, deadline_s / 2)


def allowance_s(left_s: float | None, timeouts_s: Sequence[float]) -> float:
    """Return how long the next plugin may take; zero means that there is no time to call it.

    ``left_s`` is the time left without the reserve, or None without a deadline. ``timeouts_s`` are the timeouts of the
    plugins still to be called, starting with this one. If they do not all fit, each gets a proportional share: time
    that one plugin does not use goes to the others, and none can use up the time of those after it.
    """
    if left_s is None:
        return timeouts_s[0]
    return timeouts_s[0] * max(0.0, min(1.0, left_s / sum(timeouts_s)))
