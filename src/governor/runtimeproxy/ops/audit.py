"""The audit log: one line for each call that plugins changed, with old and new value of each field.

Environment values are masked. If stderr is not read, audit lines are the last to be dropped.
"""

from governor.process.telemetry import logging
from governor.runtimeproxy.hooks.held_call import Held
from governor.runtimeproxy.ops.control import Subject

_log = logging.get_audit_logger(__name__)


def record(held: Held) -> None:
    """Log the plugins' changes to one call."""
    if not (held.changes or held.conflicts or held.unused):
        return
    changes = [{"plugin": each.plugin, "field": each.field, "old": each.old, "new": each.new} for each in held.changes]
    found = {"changes": changes, "conflicts": held.conflicts, "unused": held.unused}
    shown = {name: value if name == "changes" else list(map(str, value)) for name, value in found.items() if value}
    log = _log.warning if held.conflicts or held.unused else _log.info
    log("plugins changed a call", call=str(held.call), **pod_fields(held.subject), **shown)


def pod_fields(subject: Subject) -> dict[str, str]:
    """Return the log fields of the pod and container that a call concerns."""
    fields = {"pod": f"{subject.namespace}/{subject.pod}", "pod_uid": subject.uid}
    if subject.container:
        fields["container"] = subject.container
    return fields
