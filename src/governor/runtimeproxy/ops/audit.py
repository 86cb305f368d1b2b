"""The audit log: old and new value of each field that a plugin changed. Environment values are masked.

If stderr is not read, audit lines are the last to be dropped.
"""

from governor.process.telemetry import logging
from governor.runtimeproxy.hooks.merge import MergedRequest
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest
from governor.wire.hooks.points import HookRequest

_log = logging.get_audit_logger(__name__)


def record(merged: MergedRequest) -> None:
    """Log the plugins' changes to one call."""
    if not (merged.changes or merged.conflicts or merged.unused):
        return
    # Bound once, since most changed calls have several lines.
    log = _log.bind(call=str(merged.call), **pod_fields(merged.original))
    for change in merged.changes:
        log.info("plugin changed a field", plugin=change.plugin, field=change.field, old=change.old, new=change.new)
    for conflict in merged.conflicts:
        log.warning("plugins conflict", conflict=str(conflict))
    for change in merged.unused:
        log.warning("plugin changed a field that the call does not have", change=str(change))


def pod_fields(hook_request: HookRequest) -> dict[str, str]:
    """Return the log fields of the pod and container in a hook request."""
    meta = hook_request.pod_meta
    fields = {"pod": f"{meta.namespace}/{meta.name}", "pod_uid": meta.uid}
    if isinstance(hook_request, ContainerResourceHookRequest):
        fields["container"] = hook_request.container_meta.name
    return fields
