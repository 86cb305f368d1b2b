"""The checks of ``doctor --kubeconfig``."""

from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.restarts.control_plane import PLACEMENT, SERVICES, Service
from governor.cli.commands.cluster_diagnosis import check_cluster, failed_cluster
from governor.cli.commands.cluster_facts import (
    ESCALATE,
    RBAC,
    ClusterFacts,
    DaprService,
    NamespaceFacts,
    Question,
    agent_questions,
    dapr_service,
    questions,
)
from governor.cli.commands.diagnosis import CheckResult, diagnose, diagnosis_text
from governor.domain.dapr.kinds import GROUP as DAPR
from governor.domain.dapr.kinds import kinds
from governor.errors import GovernorError, Kind

SERVER = "https://cluster.example:6443"
GOVERNOR = "https://governor.example"
OWN = "runtime-governor"
STATUS = ("runtime-governor.dev", "RuntimeStatus")


def services(version: str = "1.18.3", **changes: DaprService | None) -> tuple[DaprService, ...]:
    """Return an available control plane of Dapr, with other services in place of some, or without them."""
    arguments = {"dapr-operator": ("--watch-interval", "0")}
    found: dict[str, DaprService | None] = {
        name: DaprService(Service(name, "dapr-system", 1, 1), version, arguments.get(name, ()))
        for name in (*SERVICES, PLACEMENT)
    }
    found |= {name.replace("_", "-"): each for name, each in changes.items()}
    return tuple(each for each in found.values() if each)


def facts(**changes: Any) -> ClusterFacts:
    """Return a cluster in which everything is fine, with changes."""
    healthy = ClusterFacts(
        SERVER,
        "v1.36.3",
        frozenset({*((DAPR, name) for name in kinds()), STATUS}),
        services(),
        ("orders",),
        OWN,
        {"orders": NamespaceFacts(), OWN: NamespaceFacts()},
        frozenset(),
    )
    return msgspec.structs.replace(healthy, **changes)


def results(found: ClusterFacts) -> dict[str, CheckResult]:
    checked = list(check_cluster(found, GOVERNOR))
    assert len({each.subject for each in checked}) == len(checked)
    return {each.subject: each for each in checked}


def reasons(found: ClusterFacts) -> dict[str, str]:
    """Return the reasons of the problems, each of which must have a next step."""
    problems = {name: each for name, each in results(found).items() if each.is_problem}
    assert all(each.next for each in problems.values())
    return {name: each.condition.reason for name, each in problems.items()}


def notes(found: ClusterFacts) -> dict[str, str]:
    notes = {name: each for name, each in results(found).items() if not each.is_problem and each.next}
    return {name: each.condition.reason for name, each in notes.items()}


def test_a_fit_cluster_has_no_problem_and_one_note() -> None:
    assert reasons(facts()) == {}
    assert notes(facts()) == {"network": "NotTested"}
    text = diagnosis_text(diagnose(check_cluster(facts(), GOVERNOR))).splitlines()
    assert text[-1] == "no problems found"
    assert text[-2].startswith("note: network: if the agent's log says")
    assert [line.split()[:3] for line in text if line.startswith("note ")] == [["note", "network", "NotTested"]]


@pytest.mark.parametrize(("version", "reason"), [("v1.29.9", "TooOld"), ("v1.30.0-eks-1", ""), ("v2.0.1+k3s1", "")])
def test_the_oldest_supported_kubernetes_is_checked(version: str, reason: str) -> None:
    assert reasons(facts(version=version)).get("version", "") == reason


def down(name: str) -> DaprService:
    return DaprService(Service(name, "dapr-system", 0, 1), "1.18.3")


DAPR_CASES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "not installed": ({"services": ()}, {"dapr": "NotInstalled"}),
    "no injector": ({"services": services(dapr_sidecar_injector=None)}, {"dapr-sidecar-injector": "NotInstalled"}),
    "sentry down": ({"services": services(dapr_sentry=down("dapr-sentry"))}, {"dapr-sentry": "NotAvailable"}),
    "no placement": ({"services": services(dapr_placement_server=None)}, {}),
    "too old": ({"services": services("1.15.9")}, {"dapr version": "TooOld"}),
    "private build": ({"services": services("edge")}, {}),
    "half upgraded": (
        {"services": (*services("1.18.3", dapr_sentry=None), services("1.16.0")[1])},
        {"dapr version": "VersionsDiffer"},
    ),
    "kinds missing": ({"served": frozenset({(DAPR, "Component")})}, {"dapr kinds": "KindsMissing"}),
    "older kinds": (
        {
            "services": services("1.16.0"),
            "served": frozenset((DAPR, name) for name in kinds() if name not in ("MCPServer", "WorkflowAccessPolicy")),
        },
        {},
    ),
    "unreadable": (
        {"services": (), "unreadable": {"deployments": "may not list", "statefulsets": "may not list"}},
        {"deployments": "Denied", "statefulsets": "Denied"},
    ),
}


@pytest.mark.parametrize("case", DAPR_CASES)
def test_what_dapr_lacks_is_named(case: str) -> None:
    changes, expected = DAPR_CASES[case]
    assert reasons(facts(**changes)) == expected


def test_what_the_user_may_want_to_know_of_dapr_is_noted() -> None:
    assert notes(facts(services=services("1.18.1")))["dapr version"] == "KnownIssue"
    assert notes(facts(services=services(dapr_placement_server=None)))[PLACEMENT] == "NotInstalled"
    opt_in = {"orders": NamespaceFacts(hot_reload={"appconfig": True}), OWN: NamespaceFacts()}
    old = results(facts(services=services("1.16.0"), namespaces=opt_in))["hot reload"]
    assert (old.condition.reason, "enabled by: orders/appconfig" in old.condition.message) == ("OptIn", True)
    disabled = {"orders": NamespaceFacts(hot_reload={"appconfig": False}), OWN: NamespaceFacts()}
    assert notes(facts(namespaces=disabled))["hot reload"] == "Disabled"
    assert notes(facts(served=facts().served - {STATUS}))["RuntimeStatus"] == "NotInstalled"


def test_the_watchdog_and_the_accounts_of_the_injector_are_read_from_the_workloads() -> None:
    container = {
        "image": "docker.io/daprio/dapr:1.17.0",
        "args": ["--watch-interval", "10m"],
        "env": [{"name": "ALLOWED_SERVICE_ACCOUNTS", "value": "ci:deployer"}, {"name": "POD", "valueFrom": {}}],
    }
    manifest: dict[str, Any] = {
        "metadata": {"namespace": "dapr-system", "labels": {"app": "dapr-operator"}},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"availableReplicas": 1},
    }
    operator = dapr_service(manifest)
    assert operator.version == "1.17.0"
    injector = msgspec.structs.replace(operator, service=Service("dapr-sidecar-injector", "dapr-system", 1, 1))
    found = results(facts(services=services("1.17.0", dapr_operator=operator, dapr_sidecar_injector=injector)))
    assert found["watchdog"].condition.reason == "On"
    assert "ci:deployer" in found["injector accounts"].condition.message
    manifest["metadata"]["labels"]["app.kubernetes.io/version"] = "1.17.1"
    assert dapr_service(manifest).version == "1.17.1"


def test_namespaces_that_cannot_be_managed_are_named() -> None:
    namespaces = {
        "gone": NamespaceFacts(exists=False),
        "ending": NamespaceFacts(terminating=True),
        OWN: NamespaceFacts(exists=False),
    }
    found = facts(managed=("gone", "ending"), namespaces=namespaces)
    assert reasons(found) == {"namespace gone": "Missing", "namespace ending": "Terminating"}
    assert notes(found)[f"namespace {OWN}"] == "Missing"
    assert reasons(facts(managed=(OWN,), namespaces={OWN: namespaces[OWN]})) == {f"namespace {OWN}": "Missing"}


def test_network_policies_are_noted_where_they_matter() -> None:
    restricted = NamespaceFacts(ingress_policies=("deny-in",), egress_policies=("deny-out",))
    found = notes(facts(namespaces={"orders": restricted, OWN: restricted}))
    assert found == {"network": "NotTested", "ingress of orders": "Restricted", f"egress of {OWN}": "Restricted"}


def test_a_user_without_permissions_is_told_which_are_missing_where() -> None:
    denied = frozenset(questions(("orders",), OWN))
    found = results(facts(denied=denied))
    problems = {name: each.condition.message for name, each in found.items() if each.is_problem}
    assert set(problems) == {
        "permissions in the cluster",
        f"permissions in namespace {OWN}",
        "permissions in namespace orders",
    }
    assert "create clusterrolebindings.rbac.authorization.k8s.io" in problems["permissions in the cluster"]
    assert "more" in problems["permissions in namespace orders"]


def test_who_may_escalate_needs_not_have_what_the_agent_gets() -> None:
    agent = frozenset(agent_questions(("orders",), OWN))
    assert set(reasons(facts(denied=agent))) == set()
    without = agent | {Question(ESCALATE, RBAC, "roles", "orders"), Question(ESCALATE, RBAC, "clusterroles")}
    assert set(reasons(facts(denied=without))) == {"permissions in namespace orders", "permissions in the cluster"}


def test_what_is_there_already_needs_no_permission_to_create_it() -> None:
    denied = frozenset(
        {
            Question("create", "", "namespaces"),
            Question("create", "apiextensions.k8s.io", "customresourcedefinitions"),
        }
    )
    assert reasons(facts(denied=denied)) == {}
    unreadable = frozenset({Question("get", "apiextensions.k8s.io", "customresourcedefinitions")})
    assert reasons(facts(denied=unreadable)) == {"permissions in the cluster": "Denied"}
    missing = {"orders": NamespaceFacts(), OWN: NamespaceFacts(exists=False)}
    assert reasons(facts(denied=denied, namespaces=missing, served=facts().served - {STATUS})) == {
        "permissions in the cluster": "Denied"
    }


@pytest.mark.parametrize("kind", Kind)
def test_a_cluster_that_cannot_be_read_is_one_problem_with_a_next_step(kind: Kind) -> None:
    found = failed_cluster(SERVER, GovernorError(kind, "kube-unreachable", "no route to host"))
    assert (found.is_problem, found.condition.reason) == (True, "KubeUnreachable")
    assert found.next
