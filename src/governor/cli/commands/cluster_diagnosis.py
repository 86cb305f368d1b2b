"""Problems of a cluster before an agent is installed in it, each with what to do. Pure; ``cluster_facts`` reads it.

A result without a problem that has a next step is a note: the agent works, and the user may want to know.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from governor.agent.platforms.kubernetes.restarts.control_plane import PLACEMENT, SERVICES
from governor.agent.platforms.kubernetes.visibility.runtime_status import RUNTIME_STATUSES
from governor.cli.commands.cluster_facts import (
    ESCALATE,
    RBAC,
    ClusterFacts,
    DaprService,
    Question,
    agent_questions,
)
from governor.cli.commands.diagnosis import CheckResult, ok, problem
from governor.domain.dapr.kinds import GROUP as DAPR
from governor.domain.dapr.kinds import kinds
from governor.domain.dapr.reload import known_issue, lists_kind, parse, why_not_reloading
from governor.errors import GovernorError, Kind
from governor.kube.client.discovery_documents import OLDEST_SERVER

OLDEST_DAPR: Final = "1.16"
_INSTALL_DAPR: Final = "install Dapr: helm install dapr dapr/dapr --namespace dapr-system --create-namespace --wait"
_NEXT: Final = {
    Kind.UNAUTHENTICATED: "renew the credential of the kubeconfig's user, and check its certificate authority",
    Kind.DENIED: "use a kubeconfig whose user may read the cluster's version and kinds",
    Kind.PRECONDITION: "check the kubeconfig",
    Kind.INVALID: "correct the kubeconfig",
}
_WATCH_INTERVAL: Final = "--watch-interval"
_ACCOUNTS: Final = ("ALLOWED_SERVICE_ACCOUNTS", "ALLOWED_SERVICE_ACCOUNTS_PREFIX_NAMES")
_NEWER: Final = frozenset({"MCPServer", "WorkflowAccessPolicy"})
_CREATES: Final = "helm creates it with --create-namespace, as in the command of `governor runtime join-command`"
_NAMED: Final = 6


def failed_cluster(subject: str, error: GovernorError) -> CheckResult:
    """Return the result for a cluster that cannot be read at all."""
    reason = "".join(word.capitalize() for word in error.code.split("-"))
    next_step = _NEXT.get(error.kind, "check the address in the kubeconfig and the network, then run it again")
    return CheckResult(subject, problem("Reachable", reason, str(error)), next_step)


def check_cluster(facts: ClusterFacts, governor_server: str) -> Iterator[CheckResult]:
    """Yield the results for a cluster that responds."""
    yield CheckResult(facts.server, ok("Reachable", "Answers", "the API server responds"))
    yield _check_version(facts)
    yield from _check_unreadable(facts)
    yield from _check_dapr(facts)
    yield from _check_kinds(facts)
    yield from _check_namespaces(facts)
    yield from _check_permissions(facts)
    yield _check_definition(facts)
    yield from _check_network(facts, governor_server)


def _check_version(facts: ClusterFacts) -> CheckResult:
    text = f"Kubernetes {facts.version}"
    if _numbers(facts.version) >= _numbers(OLDEST_SERVER):
        return CheckResult("version", ok("Supported", "Supported", text))
    condition = problem("Supported", "TooOld", f"{text}: the oldest supported version is {OLDEST_SERVER}")
    return CheckResult("version", condition, f"upgrade the cluster to Kubernetes {OLDEST_SERVER} or later")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _check_unreadable(facts: ClusterFacts) -> Iterator[CheckResult]:
    for what, reason in facts.unreadable.items():
        condition = problem("Readable", "Denied", f"{what} cannot be checked: {reason}")
        yield CheckResult(
            what, condition, "use a kubeconfig whose user may read it, or ask the cluster's administrator"
        )


def _check_dapr(facts: ClusterFacts) -> Iterator[CheckResult]:
    found = {each.service.name: each for each in facts.services}
    if not found:
        if "deployments" not in facts.unreadable:
            yield CheckResult("dapr", problem("Installed", "NotInstalled", "Dapr is not installed"), _INSTALL_DAPR)
        return
    for name in (*SERVICES, PLACEMENT):
        yield _check_service(name, [each for each in facts.services if each.service.name == name])
    yield from _check_dapr_version(facts)
    if injector := found.get("dapr-sidecar-injector"):
        yield _check_accounts(injector)
    if operator := found.get("dapr-operator"):
        yield _check_watchdog(operator)


def _check_service(name: str, found: list[DaprService]) -> CheckResult:
    if not found and name == PLACEMENT:
        text = "it is not installed; actors do not work, and workloads with actors are not restarted"
        return CheckResult(name, ok("Available", "NotInstalled", text), "install Dapr with placement if you use actors")
    if not found:
        text = "it is not installed, so new pods get no working sidecar and no workload is restarted"
        return CheckResult(name, problem("Available", "NotInstalled", text), _INSTALL_DAPR)
    first = next((each for each in found if each.service.is_available), found[0]).service
    counts = f"{first.available} of {first.desired} replicas available in namespace {first.namespace}"
    if first.is_available:
        return CheckResult(name, ok("Available", "Available", counts))
    next_step = f"kubectl get pods --namespace {first.namespace} --selector app={name}"
    return CheckResult(name, problem("Available", "NotAvailable", counts), next_step)


def _check_dapr_version(facts: ClusterFacts) -> Iterator[CheckResult]:
    versions = sorted({each.version for each in facts.services if each.version})
    text = f"Dapr {', '.join(versions) or 'of an unknown version'}"
    if len(versions) > 1:
        condition = problem("SameVersion", "VersionsDiffer", f"{text}: an upgrade of Dapr is not complete")
        yield CheckResult(
            "dapr version", condition, "complete the upgrade of Dapr: kubectl get pods --namespace dapr-system"
        )
        return
    parsed = parse(versions[0]) if versions else None
    if parsed is not None and parsed < _numbers(OLDEST_DAPR):
        condition = problem("Supported", "TooOld", f"{text}: the oldest supported version is {OLDEST_DAPR}")
        yield CheckResult("dapr version", condition, f"upgrade Dapr to {OLDEST_DAPR} or later")
    elif versions and (issue := known_issue(versions[0])):
        yield CheckResult("dapr version", ok("Supported", "KnownIssue", issue), "upgrade Dapr")
    else:
        yield CheckResult("dapr version", ok("Supported", "Supported", text))
    yield _check_hot_reload(facts, versions[0] if versions else "")


def _check_hot_reload(facts: ClusterFacts, version: str) -> CheckResult:
    why_not = why_not_reloading(version)
    set_by = {
        f"{name}/{configuration}": is_on
        for name, each in facts.namespaces.items()
        for configuration, is_on in each.hot_reload.items()
    }
    off = sorted(name for name, is_on in set_by.items() if not is_on)
    if why_not:
        on = sorted(name for name, is_on in set_by.items() if is_on)
        text = f"{why_not}; enabled by: {', '.join(on) or 'no Configuration here'}"
        next_step = (
            "changes restart the workloads that do not reload; enable HotReload in their Configuration, or upgrade"
        )
        return CheckResult("hot reload", ok("HotReload", "OptIn", text), next_step)
    if off:
        text = f"disabled by the Configuration {', '.join(off)}"
        return CheckResult("hot reload", ok("HotReload", "Disabled", text), "changes restart the workloads that use it")
    return CheckResult("hot reload", ok("HotReload", "OnByDefault", "sidecars load changed Components while they run"))


def _check_accounts(injector: DaprService) -> CheckResult:
    given = [injector.environment[name] for name in _ACCOUNTS if injector.environment.get(name)]
    more = f", and by {', '.join(given)}" if given else ""
    text = f"pods created by the controllers of kube-system{more} get sidecars; other ServiceAccounts' pods do not"
    return CheckResult("injector accounts", ok("Injects", "Listed" if given else "Default", text))


def _check_watchdog(operator: DaprService) -> CheckResult:
    arguments = operator.arguments
    position = arguments.index(_WATCH_INTERVAL) + 1 if _WATCH_INTERVAL in arguments else len(arguments)
    interval = arguments[position] if position < len(arguments) else "0"
    if interval in ("", "0"):
        text = "off: Dapr does not replace pods that started without a sidecar; the agent reports and restarts them"
        return CheckResult("watchdog", ok("Watchdog", "Off", text))
    text = f"on ({interval}): Dapr deletes pods that started without a sidecar, whatever the agent does"
    return CheckResult("watchdog", ok("Watchdog", "On", text))


def _check_kinds(facts: ClusterFacts) -> Iterator[CheckResult]:
    version = next((each.version for each in facts.services if each.version), "")
    wanted = [name for name in kinds() if name not in _NEWER or lists_kind(name, version)]
    missing = [name for name in wanted if (DAPR, name) not in facts.served]
    if missing:
        text = f"not served: {', '.join(missing)}; changes with these kinds fail"
        next_step = "apply the definitions of Dapr's chart (its directory crds): helm upgrade does not"
        yield CheckResult("dapr kinds", problem("Served", "KindsMissing", text), next_step)
    else:
        yield CheckResult("dapr kinds", ok("Served", "AllServed", f"{len(wanted)} kinds are served"))


def _check_namespaces(facts: ClusterFacts) -> Iterator[CheckResult]:
    for name, each in facts.namespaces.items():
        subject = f"namespace {name}"
        will_be_created = name == facts.agent_namespace and name not in facts.managed
        if each.terminating:
            yield CheckResult(
                subject,
                problem("Exists", "Terminating", "it is being deleted"),
                "wait, then create it again, or choose another",
            )
        elif not each.exists and will_be_created:
            yield CheckResult(subject, ok("Exists", "Missing", "it does not exist yet"), _CREATES)
        elif not each.exists:
            condition = problem("Exists", "Missing", "it does not exist, and the agent needs a Role in it")
            yield CheckResult(subject, condition, f"kubectl create namespace {name}")
        elif f"namespace {name}" not in facts.unreadable:
            yield CheckResult(subject, ok("Exists", "Exists", "it exists"))
        if each.governor is not None and name in facts.managed:
            condition = ok("Ungoverned", "Governed", f"it is governed by {each.governor}")
            yield CheckResult(subject, condition, "for another runtime choose other namespaces")


def _check_permissions(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Yield what the user lacks to install the chart; a role may only grant what its creator has or may escalate."""
    granted = set(agent_questions(facts.managed, facts.agent_namespace))
    lacking: dict[str, list[str]] = {}
    for each in sorted(facts.denied, key=str):
        if each.verb != ESCALATE and _is_needed(each, facts) and not (each in granted and _may_escalate(each, facts)):
            lacking.setdefault(each.namespace, []).append(str(each))
    for namespace, missing in sorted(lacking.items()):
        place = f"in namespace {namespace}" if namespace else "in the cluster"
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        text = f"you may not, {place}: {', '.join(missing[:_NAMED])}{more}"
        next_step = (
            "let a cluster administrator install the chart, or grant you these; a role grants only what its creator has"
        )
        yield CheckResult(f"permissions {place}", problem("Permitted", "Denied", text), next_step)
    if not lacking:
        text = "you may install the chart with all its roles"
        yield CheckResult("permissions", ok("Permitted", "Allowed", text))


def _is_needed(question: Question, facts: ClusterFacts) -> bool:
    if question.resource == "namespaces":
        return not facts.namespaces[facts.agent_namespace].exists
    if question.resource == "customresourcedefinitions" and question.verb == "create":
        return not _has_definition(facts)
    return True


def _may_escalate(question: Question, facts: ClusterFacts) -> bool:
    kind = "roles" if question.namespace else "clusterroles"
    return Question(ESCALATE, RBAC, kind, question.namespace) not in facts.denied


def _has_definition(facts: ClusterFacts) -> bool:
    return (RUNTIME_STATUSES.group, RUNTIME_STATUSES.kind) in facts.served


def _check_definition(facts: ClusterFacts) -> CheckResult:
    if _has_definition(facts):
        return CheckResult("RuntimeStatus", ok("Served", "Served", "kubectl get runtimestatuses works"))
    text = "the kind is not installed; without it the agent works, and kubectl does not show what it verified"
    next_step = "the agent's chart installs it, unless runtimeStatus.install is false"
    return CheckResult("RuntimeStatus", ok("Served", "NotInstalled", text), next_step)


def _check_network(facts: ClusterFacts, governor_server: str) -> Iterator[CheckResult]:
    text = f"it cannot be tested from here that pods reach the governor server ({governor_server})"
    next_step = (
        "if the agent's log says that it cannot reach it: set proxy.url, or allow egress from the agent's namespace"
    )
    yield CheckResult("network", ok("Network", "NotTested", text), next_step)
    if policies := facts.namespaces[facts.agent_namespace].egress_policies:
        text = f"egress is restricted by {_listing(policies)}"
        next_step = (
            "allow the agent DNS, the API server, the governor server, and the ports 3501 and 9090 of the sidecars"
        )
        yield CheckResult(f"egress of {facts.agent_namespace}", ok("Network", "Restricted", text), next_step)
    for name in facts.managed:
        if policies := facts.namespaces[name].ingress_policies:
            yield _restricted_ingress(name, policies)


def _restricted_ingress(namespace: str, policies: Iterable[str]) -> CheckResult:
    text = f"ingress is restricted by {_listing(policies)}"
    next_step = (
        "allow the agent's namespace the ports 3501 and 9090 of the sidecars; otherwise the agent reaches them through "
        "the API server (sidecarAccess)"
    )
    return CheckResult(f"ingress of {namespace}", ok("Network", "Restricted", text), next_step)


def _listing(names: Iterable[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:_NAMED]) + (f" and {len(every) - _NAMED} more" if len(every) > _NAMED else "")
