"""Preflight of a change in a throw-away sidecar, as pure decisions: what it loads, and how its behaviour is judged.

Excluded: which resources can be tried and how they are copied (``domain.dapr.preflight``), and running the sidecar
(the platform).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.verification.findings import Findings, uniform
from governor.agent.verification.resources import listed, named_stores
from governor.agent.verification.sidecar_api import SidecarStatus
from governor.agent.verification.verdicts import Verdict, Verdicts, mentions
from governor.domain.dapr.kinds import is_secret_store
from governor.domain.dapr.preflight import empty_configuration, preflight_copy, preflight_rule
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Finding, ResourceReport, State, WorkloadRef
from governor.values.trees import Manifest

_PIPELINES: Final = ("httpPipeline", "appHttpPipeline")
_CONFIGURATION_ERROR: Final = "loading configuration"
_UNREACHABLE: Final = re.compile(
    r"connection refused|connection reset|i/o timeout|no such host|no route to host|network is unreachable"
    r"|server misbehaving|context deadline exceeded"
)
"""How Go's network errors read, which daprd repeats: what the component needs did not answer."""


class PreflightPlan(msgspec.Struct, frozen=True):
    """What one throw-away sidecar loads: copies of the resources to try and of their dependencies.

    ``silent`` are tried resources that do not connect at init; ``skipped`` maps the others to the reason. ``foreign``
    are names of what the sidecar reads besides the copies: an exit because of these says nothing about the change.
    """

    app_id: str
    tried: Mapping[ResourceRef, Manifest] = {}
    dependencies: Mapping[ResourceRef, Manifest] = {}
    silent: frozenset[ResourceRef] = frozenset()
    skipped: Mapping[ResourceRef, str] = {}
    foreign: frozenset[str] = frozenset()

    @property
    def emptied(self) -> "PreflightPlan":
        """The plan without any resource of the change."""
        return PreflightPlan(self.app_id)

    @property
    def copies(self) -> tuple[Manifest, ...]:
        """Every manifest that the sidecar loads, always with a Configuration."""
        copies = (*self.tried.values(), *self.dependencies.values())
        has_configuration = any(each["kind"] == "Configuration" for each in copies)
        return copies if has_configuration else (*copies, empty_configuration(self.app_id))


class PreflightReading(msgspec.Struct, frozen=True):
    """The state of a throw-away sidecar at one moment.

    ``exit_message`` is set once it has exited; ``external_cause`` if nothing that it loaded can be the reason.
    """

    status: SidecarStatus | None = None
    exit_message: str | None = None
    external_cause: bool = False
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether it reports itself healthy; a sidecar that is about to exit may do so too."""
        return self.exit_message is None and self.status is not None and self.status.healthy


def plan_preflight(
    changed: Iterable[ResourceRef], manifests: Mapping[ResourceRef, Manifest], app_id: str
) -> PreflightPlan:
    """Plan the preflight of ``changed``, given all ``manifests`` that the sidecars will load."""
    affected = _affected(changed, manifests)
    rules = {ref: preflight_rule(manifests[ref]) for ref in affected}
    tried = [ref for ref in affected if not rules[ref].skip]
    dependencies = _dependencies(tried, manifests)
    return PreflightPlan(
        app_id,
        {ref: preflight_copy(manifests[ref], app_id) for ref in tried},
        {ref: preflight_copy(manifests[ref], app_id) for ref in dependencies},
        frozenset(ref for ref in tried if not rules[ref].connects),
        {ref: rules[ref].skip for ref in affected if rules[ref].skip},
    )


def _affected(changed: Iterable[ResourceRef], manifests: Mapping[ResourceRef, Manifest]) -> list[ResourceRef]:
    """Return the changed resources and those that read secrets from a changed store."""
    refs = set(changed)
    stores = {ref.name for ref in refs if is_secret_store(manifests[ref])}
    readers = {ref for ref, manifest in manifests.items() if stores & named_stores(manifest)}
    return sorted(refs | readers)


def _dependencies(tried: Sequence[ResourceRef], manifests: Mapping[ResourceRef, Manifest]) -> list[ResourceRef]:
    """Return the Configuration, its middleware, and the secret stores that any of these or ``tried`` reference."""
    if not tried:
        return []
    found = dict.fromkeys(tried)
    found.update(dict.fromkeys(ref for ref in manifests if ref.kind == "Configuration"))
    queue = list(found)
    while queue:
        referenced = set(_references(manifests[queue.pop()]))
        new = [ref for ref in manifests if ref.kind == "Component" and ref.name in referenced and ref not in found]
        found.update(dict.fromkeys(new))
        queue += new
    return [ref for ref in found if ref not in set(tried)]


def _references(manifest: Manifest) -> Iterator[str]:
    yield from named_stores(manifest)
    for pipeline in _PIPELINES:
        handlers = ((manifest.get("spec") or {}).get(pipeline) or {}).get("handlers") or ()
        yield from (str(handler["name"]) for handler in handlers)


def passed(plan: PreflightPlan, reading: PreflightReading) -> bool:
    """Return whether the sidecar is healthy with everything loaded, so that waiting is over."""
    return reading.healthy and all(_listed(ref, copy, reading) for ref, copy in plan.tried.items())


def judge(plan: PreflightPlan, reading: PreflightReading, timeout_reason: str) -> Verdicts:
    """Return the verdict on each resource; ``timeout_reason`` is for one that is not initialised in time."""
    if reading.exit_message is not None:
        verdicts = _exited(plan, reading.exit_message)
    elif not reading.healthy:
        verdicts = {
            ref: _verdict_while_starting(ref, copy, reading, timeout_reason) for ref, copy in plan.tried.items()
        }
    else:
        verdicts = {ref: _verdict(ref, copy, reading, plan) for ref, copy in plan.tried.items()}
    skipped = {ref: Verdict(State.RECEIVED, f"not tried: {reason}") for ref, reason in plan.skipped.items()}
    return {**verdicts, **skipped}


def conclusive(plan: PreflightPlan, reading: PreflightReading) -> bool:
    """Return whether the reading is about the change: the sidecar runs, or its exit message names what it loaded."""
    if reading.exit_message is None:
        return True
    if reading.external_cause:
        return False
    refs = (*plan.tried, *plan.dependencies)
    return any(_is_about(reading.exit_message, ref) for ref in refs) or _is_foreign(plan, reading.exit_message)


def _is_foreign(plan: PreflightPlan, text: str) -> bool:
    """Return whether an exit message names what the sidecar reads besides the copies, and no copy."""
    is_own = any(_is_about(text, ref) for ref in (*plan.tried, *plan.dependencies))
    return not is_own and any(mentions(text, name) for name in plan.foreign)


def _is_about(text: str, ref: ResourceRef) -> bool:
    return mentions(text, ref.name) or (ref.kind == "Configuration" and _CONFIGURATION_ERROR in text)


def _exited(plan: PreflightPlan, text: str) -> Verdicts:
    """Fail the tried resources that the exit message names; if it names none, all of them."""
    if _is_foreign(plan, text):
        reason = f"inconclusive: another resource of the namespace made the throw-away sidecar exit: {text}"
        return dict.fromkeys(plan.tried, Verdict(State.RECEIVED, reason))
    named = {ref for ref in plan.tried if _is_about(text, ref)}
    blamed = named or set(plan.tried)
    other = Verdict(State.RECEIVED, "not fully tried: another resource made the throw-away sidecar exit")
    return {ref: Verdict(State.FAILED, text) if ref in blamed else other for ref in plan.tried}


def _verdict_while_starting(
    ref: ResourceRef, copy: Manifest, reading: PreflightReading, timeout_reason: str
) -> Verdict:
    if _listed(ref, copy, reading):
        return Verdict(State.PREFLIGHTED, "initialised")
    return Verdict(State.FAILED, "; ".join([*_mentioning(ref, reading.errors), timeout_reason]))


def _verdict(ref: ResourceRef, copy: Manifest, reading: PreflightReading, plan: PreflightPlan) -> Verdict:
    errors = _mentioning(ref, reading.errors)
    if ref.kind == "Component":
        if _listed(ref, copy, reading):
            silent = "; a component of this type does not connect at init"
            return Verdict(State.PREFLIGHTED, f"initialised{silent if ref in plan.silent else ''}")
        missing = "the throw-away sidecar became healthy without it"
        return Verdict(State.FAILED, "; ".join([missing, *(errors or _mentioning(ref, reading.warnings))]))
    if errors:
        return Verdict(State.FAILED, errors[-1])
    text = "loaded" if _listed(ref, copy, reading) else "loaded without error; this version of daprd does not list it"
    return Verdict(State.PREFLIGHTED, text)


def _listed(ref: ResourceRef, copy: Manifest, reading: PreflightReading) -> bool:
    return reading.status is not None and bool(listed(ref, copy, None, reading.status.metadata))


def _mentioning(ref: ResourceRef, texts: Sequence[str]) -> list[str]:
    return [text for text in texts if mentions(text, ref.name)][-1:]


class PreflightResult(msgspec.Struct, frozen=True):
    """The result of a preflight, as reported."""

    found: Mapping[ResourceRef, Finding] = {}
    superseded: bool = False

    @property
    def passed(self) -> bool:
        """Whether the change may be applied."""
        return not self.superseded and all(each.state is not State.FAILED for each in self.found.values())

    @property
    def unreachable(self) -> bool:
        """Whether it failed only because a dependency of the components was not reachable."""
        failed = [each for each in self.found.values() if each.state is State.FAILED]
        return bool(failed) and all(_UNREACHABLE.search(each.evidence[-1].text) for each in failed)

    def report(self, refs: Iterable[ResourceRef], workloads: Mapping[WorkloadRef, int], *history: Evidence) -> Findings:
        """Return the findings of a delivery that got no further than its preflight."""
        unchanged = Finding(state=State.RECEIVED)
        resources = [(ref, self.found.get(ref, unchanged)) for ref in refs]
        return Findings(
            tuple(
                ResourceReport(resource=ref, state=each.state, evidence=(*history, *each.evidence))
                for ref, each in resources
            ),
            uniform(State.RECEIVED, (), workloads, *history).workloads,
            unreachable=self.unreachable,
        )

    def prepend_to(self, later: Findings) -> Findings:
        """Return later findings with the preflight's evidence inserted after the first item, the receipt."""

        def with_preflight(report: ResourceReport) -> ResourceReport:
            own = self.found.get(report.resource)
            if own is None:
                return report
            return msgspec.structs.replace(report, evidence=(*report.evidence[:1], *own.evidence, *report.evidence[1:]))

        return msgspec.structs.replace(later, resources=tuple(map(with_preflight, later.resources)))
