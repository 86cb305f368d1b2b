"""The audit log: which plugin changed which field of which pod, old and new; values of environment stay hidden."""

from governor.process.telemetry import logging
from governor.runtimeproxy.hooks.consulting import Consultation
from governor.wire.hooks.hooks_pb2 import ContainerResourceHookRequest
from governor.wire.hooks.points import Request

_log = logging.get_logger(__name__)


def record(consultation: Consultation) -> None:
    """Log what the plugins made of one call."""
    if not (consultation.changes or consultation.conflicts or consultation.unused):
        return
    # Bound once: most calls that are changed at all have several lines.
    log = _log.bind(call=str(consultation.call), **subject_of(consultation.total.original))
    for change in consultation.changes:
        log.info("plugin changed a field", plugin=change.plugin, field=change.field, old=change.old, new=change.new)
    for conflict in consultation.conflicts:
        log.warning("plugins disagree", conflict=str(conflict))
    for change in consultation.unused:
        log.warning("plugin changed what this call has no place for", change=str(change))


def subject_of(question: Request) -> dict[str, str]:
    """The pod, and the container, that a question is about."""
    meta = question.pod_meta
    subject = {"pod": f"{meta.namespace}/{meta.name}", "pod_uid": meta.uid}
    if isinstance(question, ContainerResourceHookRequest):
        subject["container"] = question.container_meta.name
    return subject
