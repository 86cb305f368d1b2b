"""How long plugins may take, so that the runtime always has time left within kubelet's deadline."""

import re
from collections.abc import Sequence
from typing import Final

_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_LARGEST: Final = 99_999_999
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def timeout_s(header: str | None) -> float | None:
    """The header ``grpc-timeout`` in seconds; None, so no deadline, if it is absent or cannot be read."""
    parts = _TIMEOUT.fullmatch(header or "")
    return float(parts[1]) * _UNIT_S[parts[2]] if parts else None


def timeout_header(timeout_s: float) -> bytes:
    """The same header for a time of ours: the finest unit in which it has at most eight digits."""
    for unit in ("m", "S", "H"):
        number = max(1, int(timeout_s / _UNIT_S[unit]))
        if number <= _LARGEST:
            return f"{number}{unit}".encode()
    return f"{_LARGEST}H".encode()


def reserve_s(deadline_s: float | None, wanted_s: float) -> float:
    """What of a call's time is kept for the runtime: what is wanted, and of a short call the half."""
    return 0.0 if deadline_s is None else min(wanted_s, deadline_s / 2)


def allowance_s(left_s: float | None, timeouts_s: Sequence[float]) -> float:
    """How long the next plugin may take; zero means that it cannot be asked any more.

    ``left_s`` is the time left without the reserve, or None without a deadline; ``timeouts_s`` are those of the plugins
    still to be asked, beginning with this one. If there is not time for all, each gets its part of what is left; so
    what one does not use is there for the others, and none can use up the time of those after it.
    """
    if left_s is None:
        return timeouts_s[0]
    return timeouts_s[0] * max(0.0, min(1.0, left_s / sum(timeouts_s)))
