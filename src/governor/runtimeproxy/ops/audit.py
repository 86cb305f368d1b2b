"""The audit log: one line for each call that plugins changed, with old and new value of each field.

Lines are formatted in batches, each of which wakes the thread that writes them once. Environment values are masked. If
stderr is not read, audit lines are the last to be dropped.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from governor.process.telemetry import logging
from governor.runtimeproxy.hooks.changes import Change
from governor.runtimeproxy.hooks.held_call import Held
from governor.runtimeproxy.ops.batch import Batch
from governor.runtimeproxy.ops.control import Subject
from governor.values.secret import MASK, Secret

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_log = logging.get_audit_logger(__name__)


class AuditLog:
    """Calls whose lines are still to be written."""

    def __init__(self) -> None:
        self._calls = Batch(_write_all)

    def record(self, held: Held) -> None:
        """Log the plugins' changes to one call soon."""
        if held.changes or held.conflicts or held.unused or held.observed:
            self._calls.add(held)

    def flush(self) -> None:
        """Log what is buffered."""
        self._calls.flush()


def _write_all(calls: Iterable[Held]) -> None:
    # Bound once: each call of the module's logger binds another one.
    log = _log.bind()
    for held in calls:
        _write(log, held)


def _write(log: "FilteringBoundLogger", held: Held) -> None:
    shown: dict[str, object] = {}
    if held.changes:
        shown["changes"] = [_shown(each) for each in held.changes]
    if held.observed:
        shown["observed"] = [_shown(each) for each in held.observed]
    if held.conflicts:
        shown["conflicts"] = list(map(str, held.conflicts))
    if held.unused:
        shown["unused"] = list(map(str, held.unused))
    write = log.warning if held.conflicts or held.unused else log.info
    event = "plugins changed a call" if held.changes or not held.observed else "plugins observed a call"
    write(event, call=str(held.call), **pod_fields(held.subject), **shown)


def _shown(change: Change) -> dict[str, object]:
    return {
        "plugin": change.plugin,
        "field": change.field,
        "old": MASK if isinstance(change.old, Secret) else change.old,
        "new": MASK if isinstance(change.new, Secret) else change.new,
    }


def pod_fields(subject: Subject) -> dict[str, str]:
    """Return the log fields of the pod and container that a call concerns."""
    fields = {"pod": f"{subject.namespace}/{subject.pod}", "pod_uid": subject.uid}
    if subject.container:
        fields["container"] = subject.container
    return fields
