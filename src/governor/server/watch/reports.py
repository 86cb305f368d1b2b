"""Taking an agent's report: it must be about what was sent, and an acknowledgement must cover all of it."""

from datetime import datetime

import sqlalchemy as sa

from governor.domain.bundles import Delivery, refs
from governor.domain.reports import Report, acknowledged, supersedes
from governor.errors import Detail, GovernorError, Kind, invalid
from governor.server.store.deliveries import Heard, find_delivery, find_heard, put_report


def take_report(connection: sa.Connection, report: Report, now: datetime) -> bool:
    """Keep a report if it is newer than the kept one about the same delivery; whether it was kept."""
    delivery = find_delivery(connection, report.runtime, report.sequence)
    if delivery is None:
        message = f"runtime {report.runtime!r} was never sent a delivery {report.sequence}"
        raise GovernorError(Kind.NOT_FOUND, "delivery-unknown", message)
    _check_about(report, delivery)
    old = find_heard(connection, report.runtime, report.sequence)
    if not supersedes(report, old.report if old else None):
        return False
    is_acknowledged = acknowledged(report)
    first_verified = old.verified if old else None
    put_report(connection, Heard(now, is_acknowledged, first_verified or (now if is_acknowledged else None), report))
    return True


def _check_about(report: Report, delivery: Delivery) -> None:
    if (report.attempt, report.digest) != (delivery.attempt, delivery.digest):
        message = (
            f"delivery {delivery.sequence} is attempt {delivery.attempt} at {delivery.digest}, "
            f"the report is about attempt {report.attempt} at {report.digest}"
        )
        raise invalid("report-foreign", message)
    if not acknowledged(report):
        return
    missing = {*refs(delivery.resources), *delivery.removals} - {part.resource for part in report.resources}
    if missing:
        details = [
            Detail(reason=f"{ref} is in the delivery, put or removed, and not in the report") for ref in sorted(missing)
        ]
        raise invalid("report-incomplete", "an acknowledgement must cover every resource of its delivery", details)
