"""What became of each resource of a delivery in the cluster, and what a failure is due to. Pure.

A failure of the change is one that the same content meets again: the server or a webhook rejects it, or another tool
manages the object. A missing namespace, missing kinds or a broken webhook are the runtime's. Denied permissions and an
API server that cannot be reached are the agent's, which retries.
"""

import enum
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.platforms.kubernetes.resources.live_resources import LiveVersion
from governor.agent.platforms.kubernetes.resources.manifests import Manifests
from governor.domain.dapr.kinds import GROUP
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause
from governor.errors import Detail, GovernorError
from governor.kube.applyset import (
    ApplyReport,
    ObjectDrift,
    ObjectResult,
    PruneOutcome,
    PruneReport,
    PruneResult,
)
from governor.kube.applyset import Outcome as ObjectOutcome
from governor.kube.applyset.results import FOREIGN, SETTLED, SUCCEEDED
from governor.kube.objects import ObjectRef, ref_of

_PERMISSION: Final = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)
_DENIED: Final = "denied the request"
_RUNTIME: Final = re.compile(r'failed calling webhook|conversion webhook|exceeded quota|namespaces "[^"]+" not found')
_RUNTIME_CODES: Final = frozenset({"kube-no-api", "kube-not-served", "kube-not-found", "kube-kind-unknown"})
_MAX_FIELDS: Final = 5
_INSTALL: Final = "Dapr is not installed in this cluster: install it, for example with its Helm chart or `dapr init -k`"


class Outcome(enum.StrEnum):
    """What became of one resource."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    FAILED = "failed"
    """It is not as the delivery wants it; the cause says what that is due to."""
    SKIPPED = "skipped"
    """It was not tried, because another resource failed; or its deletion is not finished."""


class ResourceResult(msgspec.Struct, frozen=True):
    """The result of one resource; ``cause`` is set if it failed."""

    outcome: Outcome
    text: str = ""
    cause: Cause | None = None


class Applied(msgspec.Struct, frozen=True):
    """The results of one delivery by resource. A Secret has a result of its own only if it belongs to no resource."""

    results: Mapping[ResourceRef, ResourceResult]
    drift: Mapping[ResourceRef, str] = {}
    """How resources still differ from the delivery, because another client changed them."""
    error: str = ""
    """Why the agent could not record what it wrote. It tries again."""
    versions: Mapping[ResourceRef, LiveVersion] = {}
    """What was written, as it is after the write."""

    @property
    def ok(self) -> bool:
        """Return whether everything is applied and removed."""
        done = {Outcome.APPLIED, Outcome.UNCHANGED, Outcome.REMOVED}
        return not self.error and all(each.outcome in done for each in self.results.values())

    @property
    def failures(self) -> Mapping[ResourceRef, ResourceResult]:
        """Return the resources that failed."""
        return {ref: each for ref, each in self.results.items() if each.outcome is Outcome.FAILED}

    @property
    def written(self) -> tuple[ResourceRef, ...]:
        """Return the resources that this run wrote or removed."""
        return tuple(ref for ref, each in self.results.items() if each.outcome in {Outcome.APPLIED, Outcome.REMOVED})

    def __str__(self) -> str:
        """Return what was written and what was not, for a report."""
        rest = [ref for ref, each in self.results.items() if each.outcome in {Outcome.FAILED, Outcome.SKIPPED}]
        texts = [f"written: {_names(self.written)}", f"not written: {_names(rest)}" if rest else "", self.error]
        return "; ".join(filter(None, texts))


class Drifted(msgspec.Struct, frozen=True):
    """How the cluster differs from an applied delivery, by resource.

    ``is_repairable`` if the agent can repair a part of it. ``loaded`` are the resources of which a sidecar may load
    other content.
    """

    texts: Mapping[ResourceRef, str]
    is_repairable: bool
    loaded: frozenset[ResourceRef] = frozenset()


def rejected(manifests: Manifests) -> Applied:
    """Return the results of a delivery with resources that cannot be applied in this runtime."""
    return _failed(manifests, manifests.rejections, Cause.CHANGE)


def not_served(manifests: Manifests, kinds: Iterable[tuple[str, str]], *, has_dapr: bool) -> Applied:
    """Return the results of a delivery with kinds, given with their versions, that the cluster does not serve."""
    missing = set(kinds)
    reasons = {
        ref: _INSTALL if not has_dapr else _upgrade(ref.kind, manifest["apiVersion"])
        for ref, manifest in manifests.resources.items()
        if (ref.kind, manifest["apiVersion"]) in missing
    }
    return _failed(manifests, reasons, Cause.RUNTIME)


def invalid(manifests: Manifests, error: GovernorError) -> Applied:
    """Return the results of a delivery that was found invalid before anything was written."""
    reasons = {ref: str(detail) for ref in manifests.resources for detail in error.details if _is_about(detail, ref)}
    return _failed(manifests, reasons or dict.fromkeys(manifests.resources, str(error)), Cause.CHANGE)


def results_of(manifests: Manifests, apply: ApplyReport, prune: PruneReport) -> dict[ResourceRef, ResourceResult]:
    """Return the results by resource; that of a Secret counts for its resource, if it failed."""
    owners = {ref_of(secret): ref for ref, secret in manifests.secrets.items()}
    results = {_ref(each.ref): _applied(each) for each in apply.results if each.ref.group == GROUP}
    for removed in prune.results:
        if (result := _removed(removed, manifests)) is not None:
            results[_ref(removed.ref)] = result
    for each in apply.results:
        if each.ref.group != GROUP and each.outcome not in SUCCEEDED | {ObjectOutcome.SKIPPED}:
            results[owners.get(each.ref, _ref(each.ref))] = _secret_failure(each)
    untouched = {ref: ResourceResult(Outcome.UNCHANGED) for ref in manifests.removals}
    return untouched | results


def still_exists(managers: Iterable[str]) -> ResourceResult:
    """Return the result of a removal of an object that the agent did not write."""
    others = ", ".join(sorted(managers)) or "another client"
    text = f"it still exists, managed by {others} and not by this agent: remove it there, or add it to the profile"
    return ResourceResult(Outcome.FAILED, text, Cause.RUNTIME)


def drift_texts(manifests: Manifests, drifts: Iterable[ObjectDrift]) -> dict[ResourceRef, str]:
    """Return how resources differ, without any value; drift of a Secret counts for its resource."""
    texts: dict[ResourceRef, str] = {}
    for ref, drift in _drifts_by_resource(manifests, drifts):
        text = _drift_text(drift)
        texts[ref] = text if drift.ref.group == GROUP else f"its {drift.ref} {text}"
    return texts


def loaded_drifts(manifests: Manifests, drifts: Iterable[ObjectDrift]) -> frozenset[ResourceRef]:
    """Return the resources that differ in what a sidecar loads; metadata is not loaded."""
    return frozenset(ref for ref, drift in _drifts_by_resource(manifests, drifts) if _is_loaded(drift))


def _drifts_by_resource(
    manifests: Manifests, drifts: Iterable[ObjectDrift]
) -> Iterator[tuple[ResourceRef, ObjectDrift]]:
    """Yield the drifts with their resources; that of a Secret is one of its resource."""
    owners = {ref_of(secret): ref for ref, secret in manifests.secrets.items()}
    for drift in drifts:
        yield owners.get(drift.ref, _ref(drift.ref)), drift


def _is_loaded(drift: ObjectDrift) -> bool:
    return drift.deleted or any(not each.difference.path.startswith("metadata.") for each in drift.fields)


def added_text(fields: Mapping[str, str]) -> str:
    """Return which fields other clients added; ``fields`` are their managers by path."""
    shown = [f"{path} by {manager}" for path, manager in sorted(fields.items())]
    more = f" and {len(shown) - _MAX_FIELDS} more fields" if len(shown) > _MAX_FIELDS else ""
    return f"has fields that were not delivered: {', '.join(shown[:_MAX_FIELDS])}{more}; remove them"


def altered_text(fields: Sequence[str]) -> str:
    """Return which fields are not stored as they were applied."""
    more = f" and {len(fields) - _MAX_FIELDS} more fields" if len(fields) > _MAX_FIELDS else ""
    return (
        f"is not stored as it was applied: {', '.join(fields[:_MAX_FIELDS])}{more}; a mutating webhook changes it, or "
        "Dapr's CustomResourceDefinition lacks it: exempt the object from the webhook, or upgrade the definition"
    )


def explained(error: GovernorError) -> GovernorError:
    """Return an error of the whole run, with the missing permission if that is the reason."""
    permission = _missing_permission(str(error))
    return GovernorError(error.kind, error.code, permission, error.details) if permission else error


def _is_about(detail: Detail, ref: ResourceRef) -> bool:
    name = str(ObjectRef(GROUP, ref.kind, ref.namespace, ref.name))
    return detail.document == name or detail.document.endswith(f"({name})")


def _failed(manifests: Manifests, reasons: Mapping[ResourceRef, str], cause: Cause) -> Applied:
    """Return the results of a delivery of which nothing was written."""
    first = next(iter(reasons))
    skipped = ResourceResult(Outcome.SKIPPED, f"{first} cannot be applied, so nothing was written")
    failures = {ref: ResourceResult(Outcome.FAILED, text, cause) for ref, text in reasons.items()}
    return Applied(dict.fromkeys(manifests.refs, skipped) | failures)


def _upgrade(kind: str, api_version: str) -> str:
    return (
        f"the Dapr of this cluster does not have {kind} ({api_version}): upgrade Dapr, and apply the "
        "CustomResourceDefinitions of its chart, which helm does not upgrade"
    )


def _ref(ref: ObjectRef) -> ResourceRef:
    return ResourceRef(ref.kind, ref.namespace, ref.name)


def _applied(result: ObjectResult) -> ResourceResult:
    if result.outcome is ObjectOutcome.UNCHANGED:
        return ResourceResult(Outcome.UNCHANGED)
    if result.outcome in SUCCEEDED:
        return ResourceResult(Outcome.APPLIED)
    if result.outcome is ObjectOutcome.SKIPPED:
        return ResourceResult(Outcome.SKIPPED, result.error)
    return ResourceResult(Outcome.FAILED, _missing_permission(result.error) or result.error, _cause(result))


def _secret_failure(result: ObjectResult) -> ResourceResult:
    """Return the failure of a Secret; its name is derived, so a Secret of another client is not due to the change."""
    failed = _applied(result)
    cause = Cause.RUNTIME if result.code == FOREIGN else failed.cause
    return ResourceResult(Outcome.FAILED, f"its {result.ref}: {failed.text}", cause)


def _cause(result: ObjectResult) -> Cause:
    if _missing_permission(result.error):
        return Cause.AGENT
    is_refused = result.outcome is ObjectOutcome.REFUSED
    if _DENIED in result.error:
        return Cause.CHANGE if is_refused else Cause.RUNTIME
    if result.outcome is ObjectOutcome.TERMINATING or result.code in _RUNTIME_CODES or _RUNTIME.search(result.error):
        return Cause.RUNTIME
    return Cause.CHANGE if is_refused else Cause.AGENT


def _missing_permission(text: str) -> str:
    """Return which permission the agent lacks according to an error of the API server, or ``""``."""
    found = _PERMISSION.search(text)
    if found is None:
        return ""
    resource = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    place = f"namespace {found['namespace']}" if found["namespace"] else "the cluster"
    return f"the agent may not {found['verb']} {resource} in {place}: grant that to its ServiceAccount"


def _removed(result: PruneResult, manifests: Manifests) -> ResourceResult | None:
    """Return the result of a removal; None if it is not reported: a Secret, or an object that others replaced."""
    failed = result.outcome in {PruneOutcome.REFUSED, PruneOutcome.FAILED}
    if failed:
        return _removal_failure(result)
    if result.ref.group != GROUP:
        return None
    if result.outcome is PruneOutcome.FOREIGN:
        return still_exists(()) if _ref(result.ref) in manifests.removals else None
    if result.outcome in SETTLED:
        return ResourceResult(Outcome.REMOVED)
    return ResourceResult(Outcome.SKIPPED, result.reason)


def _removal_failure(result: PruneResult) -> ResourceResult:
    permission = _missing_permission(result.reason)
    is_agent = permission or (result.outcome is PruneOutcome.FAILED and not _RUNTIME.search(result.reason))
    cause = Cause.AGENT if is_agent else Cause.RUNTIME
    return ResourceResult(Outcome.FAILED, f"it cannot be removed: {permission or result.reason}", cause)


def _drift_text(drift: ObjectDrift) -> str:
    if drift.error:
        return f"cannot be compared: {drift.error}"
    if drift.deleted:
        return "was deleted" + (", and again after each repair" if drift.exhausted else "")
    again = ", and again after each repair" if any(field.exhausted for field in drift.fields) else ""
    more = len(drift.fields) - _MAX_FIELDS
    rest = f" and {more} more fields" if more > 0 else ""
    return f"was changed{again}: {', '.join(_changed_fields(drift))}{rest}"


def _changed_fields(drift: ObjectDrift) -> Iterator[str]:
    for field in drift.fields[:_MAX_FIELDS]:
        managers = f" by {', '.join(field.managers)}" if field.managers else ""
        yield f"{field.difference.path}{managers}"


def _names(refs: Iterable[ResourceRef]) -> str:
    return ", ".join(map(str, refs)) or "nothing"
