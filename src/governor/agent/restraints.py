"""What restrains one run of the loop: the windows and the hold in force, put on the deliveries that a platform gets.

Those of the newest delivery count for everything, also for an older delivery that is in use. Pure.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from governor.domain.bundles import Delivery
from governor.domain.documents import Drift, Preflight, Strategy, Unproven
from governor.domain.windows import Hold, Restraint, Window, hold_restraint, longest_hold

_LONGEST_RECHECK_S: Final = 300.0
"""The clock of a machine may be set, so the end of a restraint is not awaited for longer at a time."""
_SHORTEST_RECHECK_S: Final = 1.0
_VERIFICATION: Final = timedelta(days=1)
"""Longer than any verification takes."""


class Restraints(msgspec.Struct, frozen=True):
    """The windows and the hold of the newest delivery, and the hold that is set on the platform."""

    windows: tuple[Window, ...] = ()
    runtime_hold: Hold | None = None
    platform_hold: Hold | None = None

    @property
    def hold(self) -> Hold | None:
        """The longer one of both holds, or None."""
        return longest_hold(self.runtime_hold, self.platform_hold)

    def on(self, delivery: Delivery) -> Delivery:
        """Return a delivery that is applied under these restraints."""
        return msgspec.structs.replace(delivery, windows=self.windows, hold=self.hold)

    def held(self, now: datetime) -> Restraint | None:
        """Return the restraint of the hold, for which nothing may be waiting, or None."""
        restraint = hold_restraint(self.hold, now)
        return None if restraint is None else msgspec.structs.replace(restraint, waits=False)


def unrestrained(delivery: Delivery) -> Delivery:
    """Return a delivery that is applied at once, such as the one that a failing change is rolled back to."""
    return msgspec.structs.replace(delivery, windows=(), hold=None)


def verification_only(delivery: Delivery, now: datetime) -> Delivery:
    """Return a delivery that is verified, and of which nothing is written or restarted."""
    hold = Hold(now + _VERIFICATION, "it is only verified")
    drift = Drift.OFF if delivery.apply.drift is Drift.OFF else Drift.WARN
    return msgspec.structs.replace(_with_policy(delivery, drift=drift, preflight=Preflight.OFF), hold=hold)


def without_restarts(delivery: Delivery) -> Delivery:
    """Return a delivery that is written at once, and for which no sidecar is restarted."""
    return _with_policy(delivery, strategy=Strategy.RELOAD, unproven=Unproven.REPORT)


def without_preflight(delivery: Delivery) -> Delivery:
    """Return the delivery with preflight off: it was verified before and must be back soon."""
    return _with_policy(delivery, preflight=Preflight.OFF)


def recheck_s(restraint: Restraint, now: datetime) -> float:
    """Return after how many seconds to look whether a restraint is over."""
    left_s = (restraint.until - now).total_seconds() if restraint.until else _LONGEST_RECHECK_S
    return min(max(left_s, _SHORTEST_RECHECK_S), _LONGEST_RECHECK_S)


def _with_policy(delivery: Delivery, **policy: object) -> Delivery:
    return msgspec.structs.replace(delivery, apply=msgspec.structs.replace(delivery.apply, **policy))
