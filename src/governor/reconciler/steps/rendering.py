"""Renders the chart of a module for its cluster, with what the chart has generated before."""

from typing import Final
from urllib.parse import urlsplit

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError
from governor.reconciler.charts.access import read_access
from governor.reconciler.kinds.module_instance import Operation
from governor.reconciler.release.objects import MANAGER, objects_client
from governor.reconciler.release.record import Records
from governor.reconciler.release.reference import is_same
from governor.reconciler.render.request import Rendered, Request
from governor.reconciler.render.target import capabilities_of, lookup_in
from governor.reconciler.steps.step import TRANSIENT, Halt, Work, failing
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
        is_transient = error.kind in TRANSIENT
        reason = _REASONS.get(error.code, "RenderFailed")
        return failing(work, reason, error, Actor.NOBODY if is_transient else _actor(error))
    if rendered.unknown_hooks:
        message = f"the chart has hooks for events that Helm does not know: {listed(map(str, rendered.unknown_hooks))}"
        return failing(work, "HookUnknown", message, Actor.OPERATOR)
    return msgspec.structs.replace(work, record=stored, rendered=rendered)


def records_of(work: Work) -> Records:
    """Return the record of the module in its cluster."""
    place = work.on.place
    return Records(place.client, place.namespace, work.instance.spec.module, MANAGER)


_REASONS: Final = {
    "chart-unavailable": "ChartUnavailable",
    "chart-unreadable": "ChartUnavailable",
    "credentials-missing": "CredentialsMissing",
    "chart-digest": "DigestMismatch",
    "renderer-missing": "RendererMissing",
}


def _actor(error: GovernorError) -> Actor:
    """Return who must act: wrong values are the user's, everything else about a chart is the operator's."""
    return Actor.USER if error.code == "render-failed" else Actor.OPERATOR


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
    status, digest = work.status, work.instance.spec.chart_digest
    if is_same(status.last_applied, digest, work.values_digest):
        return bool(status.history)
    if status.attempt is not None and is_same(status.attempt, digest, work.values_digest):
        return status.attempt.operation is not Operation.INSTALL
    return status.last_applied is not None or bool(work.entries)
