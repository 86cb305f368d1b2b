"""Renders the chart of a module for its cluster, with what the chart has generated before."""

from typing import Final
from urllib.parse import urlsplit

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.reconciler.charts.access import read_access
from governor.reconciler.kinds.module_instance import ModuleInstanceStatus, Operation
from governor.reconciler.release.definitions import without_foreign_definitions
from governor.reconciler.release.objects import MANAGER, objects_client, owner_of
from governor.reconciler.release.record import Records
from governor.reconciler.release.reference import is_same
from governor.reconciler.render.request import Rendered, Request
from governor.reconciler.render.target import capabilities_of, lookup_in
from governor.reconciler.steps.step import Halt, Work, failed, failing
from governor.values.printing import listed
from governor.values.secret import Secret


async def render(work: Work) -> Work | Halt:
    """Fetch the chart and render it; nothing is rendered if nothing has changed."""
    if work.is_settled:
        return work
    try:
        stored = await records_of(work).read()
        rendered = await _rendered(work, stored.record.recording)
    except GovernorError as error:
        reason = _REASONS.get(error.code, "NotRendered")
        actor = _ACTORS.get(error.code)
        return failing(work, reason, error, actor) if actor else failed(work, reason, error)
    if rendered.unknown_hooks:
        message = f"the chart has hooks for events that Helm does not know: {listed(map(str, rendered.unknown_hooks))}"
        return failing(work, "HookUnknown", message, Actor.OPERATOR)
    return msgspec.structs.replace(work, record=stored, rendered=rendered)


async def leave_definitions(work: Work) -> Work | Halt:
    """Leave out definitions in ``crds`` that are not the module's; an adoption takes over those of the former owner."""
    if work.is_settled or work.takeover is not None:
        return work
    assert work.rendered is not None  # noqa: S101 - ``render`` comes first
    place, spec = work.on.place, work.instance.spec
    client, owner = objects_client(place, spec), owner_of(spec.module, place.namespace)
    rendered, left = await without_foreign_definitions(client, work.rendered, work.entries, owner.id)
    return msgspec.structs.replace(work, rendered=rendered, left_definitions=left)


def records_of(work: Work) -> Records:
    """Return the record of the module in its cluster."""
    place = work.on.place
    return Records(place.client, place.namespace, work.instance.spec.module, MANAGER)


_REASONS: Final = {
    "chart-unavailable": "ChartUnavailable",
    "chart-unreadable": "ChartUnavailable",
    "credentials-missing": "CredentialsMissing",
    "chart-digest": "DigestMismatch",
    "render-failed": "RenderFailed",
    "render-timeout": "RenderFailed",
    "render-memory": "RenderFailed",
    "render-too-large": "RenderFailed",
    "chart-too-large": "ChartTooLarge",
    "chart-not-stored": "ChartNotStored",
}
_ACTORS: Final = {
    "render-failed": Actor.USER,
    "render-timeout": Actor.OPERATOR,
    "render-memory": Actor.OPERATOR,
    "render-too-large": Actor.OPERATOR,
    "chart-too-large": Actor.OPERATOR,
    "chart-not-stored": Actor.OPERATOR,
}
"""Who must act, where the kind of the error does not say it: wrong values are the user's."""


async def _rendered(work: Work, recording: Secret | None) -> Rendered:
    spec, chart, target = work.instance.spec, work.known_module.spec.chart, work.on
    host = urlsplit(chart.oci or chart.archive or "").netloc
    access = await read_access(work.tools.hub, work.instance.metadata.namespace, chart, host)
    request = Request(
        chart=await work.tools.charts.provide(chart, access),
        chart_digest=chart.digest,
        release_name=spec.release_name,
        namespace=spec.namespace,
        values=work.layers,
        capabilities=await capabilities_of(target.place.client, target.version),
        is_upgrade=is_upgrade(work),
        recording=recording,
        lookup=lookup_in(objects_client(target.place, spec)),
    )
    return await work.tools.renderer.render(request)


def is_upgrade(work: Work) -> bool:
    """Return what the chart sees as ``.Release.IsUpgrade``; the same again when what is applied is repaired."""
    return operation_of(work) is not Operation.INSTALL


def operation_of(work: Work) -> Operation:
    """Return what a change is, or was if it is applied; of an adoption, what its former owner has done."""
    if work.takeover is not None:
        return work.takeover.operation
    return operation(work.status, work.instance.spec.chart_digest, work.values_digest, has_objects=bool(work.entries))


def operation(status: ModuleInstanceStatus, digest: str, values_digest: str, *, has_objects: bool) -> Operation:
    """Return what a change is: an install until one has succeeded, then an upgrade, or a rollback to an earlier one."""
    for known in (status.attempt, status.last_applied if status.attempt is None else None):
        if known is not None and is_same(known, digest, values_digest):
            return known.operation
    if status.last_applied is None:
        # Objects without a history: this hub was restored, or the cluster had another one.
        was_installed = has_objects and status.attempt is None
        return Operation.UPGRADE if was_installed else Operation.INSTALL
    applied = (status.last_applied, *status.history)
    was_applied = any(is_same(each, digest, values_digest) for each in applied)
    return Operation.ROLLBACK if was_applied else Operation.UPGRADE
