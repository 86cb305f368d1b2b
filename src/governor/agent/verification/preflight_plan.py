"""Trying a change in a throw-away sidecar, as pure decisions: what goes in, and what the sidecar then says of it.

Which resources may be tried at all, and what their copies look like, is ``domain.dapr.preflight``; running a sidecar
is a platform's.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from governor.agent.verification.findings import Findings
from governor.agent.verification.resources import listed
from governor.agent.verification.sidecar_api import SidecarStatus
from governor.agent.verification.verdicts import Verdict, Verdicts, mentions
from governor.domain.dapr.kinds import is_secret_store
from governor.domain.dapr.preflight import preflight_copy, preflight_rule
from governor.domain.documents import ResourceRef
from governor.domain.reports import Evidence, Finding, ResourceReport, State, WorkloadReport
from governor.values.trees import Manifest, Tree

_PIPELINES: Final = ("httpPipeline", "appHttpPipeline")
_CONFIGURATION_WORDS: Final = "loading configuration"


class PreflightPlan(msgspec.Struct, frozen=True):
    """What one throw-away sidecar gets: copies of what is tried, and of what that needs beside it.

    ``silent`` are those that will connect to nothing; ``skipped`` says of the others why they are not tried.
    """

    app_id: str
    tried: Mapping[ResourceRef, Manifest] = {}
    beside: Mapping[ResourceRef, Manifest] = {}
    silent: frozenset[ResourceRef] = frozenset()
    skipped: Mapping[ResourceRef, str] = {}

    @property
    def copies(self) -> tuple[Manifest, ...]:
        """Everything that the sidecar loads."""
        return (*self.tried.values(), *self.beside.values())


class PreflightReading(msgspec.Struct, frozen=True):
    """A throw-away sidecar at one moment.

    ``exit_message`` is set once it has exited; ``external_cause`` if nothing that it loaded can be the reason.
    """

    status: SidecarStatus | None = None
    exit_message: str | None = None
    external_cause: bool = False
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether it says that it has come up; one that is about to end may say so too."""
        return self.exit_message is None and self.status is not None and self.status.healthy


def plan_preflight(
    changed: Iterable[ResourceRef], manifests: Mapping[ResourceRef, Manifest], app_id: str
) -> PreflightPlan:
    """What to try when of all ``manifests`` that the sidecars are to load these have changed."""
    affected = _affected(changed, manifests)
    rules = {ref: preflight_rule(manifests[ref]) for ref in affected}
    tried = [ref for ref in affected if not rules[ref].skip]
    beside = _needed(tried, manifests)
    return PreflightPlan(
        app_id,
        {ref: preflight_copy(manifests[ref], app_id) for ref in tried},
        {ref: preflight_copy(manifests[ref], app_id) for ref in beside},
        frozenset(ref for ref in tried if not rules[ref].connects),
        {ref: rules[ref].skip for ref in affected if rules[ref].skip},
    )


def _affected(changed: Iterable[ResourceRef], manifests: Mapping[ResourceRef, Manifest]) -> list[ResourceRef]:
    """What has changed, and what reads its secrets from a store that has."""
    refs = set(changed)
    stores = {ref.name for ref in refs if is_secret_store(manifests[ref])}
    readers = {ref for ref, manifest in manifests.items() if stores & set(_stores(manifest))}
    return sorted(refs | readers)


def _needed(tried: Sequence[ResourceRef], manifests: Mapping[ResourceRef, Manifest]) -> list[ResourceRef]:
    """The Configuration, the middleware that it puts to work, and the secret stores that any of all these name."""
    if not tried:
        return []
    found = dict.fromkeys(tried)
    found.update(dict.fromkeys(ref for ref in manifests if ref.kind == "Configuration"))
    queue = list(found)
    while queue:
        wanted = set(_named(manifests[queue.pop()]))
        new = [ref for ref in manifests if ref.kind == "Component" and ref.name in wanted and ref not in found]
        found.update(dict.fromkeys(new))
        queue += new
    return [ref for ref in found if ref not in set(tried)]


def _named(manifest: Manifest) -> Iterator[str]:
    yield from _stores(manifest)
    for pipeline in _PIPELINES:
        handlers = ((manifest.get("spec") or {}).get(pipeline) or {}).get("handlers") or ()
        yield from (str(handler["name"]) for handler in handlers)


def _stores(tree: Tree) -> Iterator[str]:
    """The secret stores that are named anywhere in a manifest; each kind has its own place for them."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == "secretStore" and isinstance(value, str):
                yield value
            else:
                yield from _stores(value)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _stores(item)


def passed(plan: PreflightPlan, seen: PreflightReading) -> bool:
    """Whether the sidecar is up with all that it was given; nothing else can come of waiting."""
    return seen.healthy and all(_listed(ref, copy, seen) for ref, copy in plan.tried.items())


def judge(plan: PreflightPlan, seen: PreflightReading, why_not: str) -> Verdicts:
    """What the last look at the sidecar says of each resource; ``why_not`` explains one that is not up."""
    if seen.exit_message is not None:
        verdicts = _ended(plan, seen.exit_message)
    elif not seen.healthy:
        verdicts = {ref: _verdict_while_starting(ref, copy, seen, why_not) for ref, copy in plan.tried.items()}
    else:
        verdicts = {ref: _verdict(ref, copy, seen, plan) for ref, copy in plan.tried.items()}
    skipped = {ref: Verdict(State.RECEIVED, f"not tried: {reason}") for ref, reason in plan.skipped.items()}
    return {**verdicts, **skipped}


def conclusive(plan: PreflightPlan, seen: PreflightReading) -> bool:
    """Whether what was seen is about the change: the sidecar lived, or its last words speak of what it was given."""
    if seen.exit_message is None:
        return True
    refs = (*plan.tried, *plan.beside)
    return not seen.external_cause and any(_speaks_of(seen.exit_message, ref) for ref in refs)


def _speaks_of(text: str, ref: ResourceRef) -> bool:
    return mentions(text, ref.name) or (ref.kind == "Configuration" and _CONFIGURATION_WORDS in text)


def _ended(plan: PreflightPlan, text: str) -> Verdicts:
    """Blame what the last words name; when they name nothing that is tried, all of it."""
    named = {ref for ref in plan.tried if _speaks_of(text, ref)}
    blamed = named or set(plan.tried)
    spared = Verdict(State.RECEIVED, "not tried to the end: another resource ended the throw-away sidecar")
    return {ref: Verdict(State.FAILED, text) if ref in blamed else spared for ref in plan.tried}


def _verdict_while_starting(ref: ResourceRef, copy: Manifest, seen: PreflightReading, why_not: str) -> Verdict:
    if _listed(ref, copy, seen):
        return Verdict(State.PREFLIGHTED, "initialised")
    return Verdict(State.FAILED, "; ".join([*_about(ref, seen.errors), why_not]))


def _verdict(ref: ResourceRef, copy: Manifest, seen: PreflightReading, plan: PreflightPlan) -> Verdict:
    errors = _about(ref, seen.errors)
    if ref.kind == "Component":
        if _listed(ref, copy, seen):
            silent = "; a component of this type does not connect at init"
            return Verdict(State.PREFLIGHTED, f"initialised{silent if ref in plan.silent else ''}")
        missing = "the throw-away sidecar came up without it"
        return Verdict(State.FAILED, "; ".join([missing, *(errors or _about(ref, seen.warnings))]))
    if errors:
        return Verdict(State.FAILED, errors[-1])
    shown = "loaded" if _listed(ref, copy, seen) else "loaded without complaint; this version of daprd does not list it"
    return Verdict(State.PREFLIGHTED, shown)


def _listed(ref: ResourceRef, copy: Manifest, seen: PreflightReading) -> bool:
    return seen.status is not None and bool(listed(ref, copy, None, seen.status.metadata))


def _about(ref: ResourceRef, texts: Sequence[str]) -> list[str]:
    return [text for text in texts if mentions(text, ref.name)][-1:]


class PreflightResult(msgspec.Struct, frozen=True):
    """What a preflight found, as it is reported."""

    found: Mapping[ResourceRef, Finding] = {}
    stopped: bool = False

    @property
    def passed(self) -> bool:
        """Whether the change may go on to the applications."""
        return not self.stopped and all(each.state is not State.FAILED for each in self.found.values())

    def report(self, refs: Iterable[ResourceRef], workloads: Iterable[str], *history: Evidence) -> Findings:
        """The report when nothing else has happened yet."""
        untouched = Finding(state=State.RECEIVED)
        resources = [(ref, self.found.get(ref, untouched)) for ref in refs]
        return Findings(
            tuple(
                ResourceReport(resource=ref, state=each.state, evidence=(*history, *each.evidence))
                for ref, each in resources
            ),
            tuple(WorkloadReport(workload=name, state=State.RECEIVED, evidence=history) for name in workloads),
        )

    def prepend_to(self, later: Findings) -> Findings:
        """A later report with what was found here, behind the words that the delivery was received."""

        def told(report: ResourceReport) -> ResourceReport:
            own = self.found.get(report.resource)
            if own is None:
                return report
            return msgspec.structs.replace(report, evidence=(*report.evidence[:1], *own.evidence, *report.evidence[1:]))

        return msgspec.structs.replace(later, resources=tuple(map(told, later.resources)))
