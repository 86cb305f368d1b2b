"""The agent's chart: its settings are those of the agent, and releases share the kind RuntimeStatus."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from governor.agent.platforms.kubernetes.permissions import OBSERVED
from governor.agent.settings import Settings
from governor.process.settings import load
from testbed.kube.control_plane import ControlPlane
from tests.contract.charts.bed import AGENT, Helm, manifests
from tests.contract.charts.test_charts import CASES

DEFINITION = "customresourcedefinition/runtimestatuses.runtime-governor.dev"


def kind(rendered: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in manifests(rendered) if each["kind"] == name)
    return found


@pytest.mark.parametrize("case", CASES[AGENT])
def test_the_agent_accepts_its_settings(helm: Helm, tmp_path: Path, case: str) -> None:
    rendered = AGENT.render(helm, *CASES[AGENT][case])
    file = tmp_path / "agent.yaml"
    file.write_text(kind(rendered, "ConfigMap")["data"]["agent.yaml"])
    (container,) = kind(rendered, "Deployment")["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value", "rgj1.abc") for each in container["env"]}
    environ = {name: value for name, value in given.items() if name != "GOVERNOR_AGENT_CONFIG"}

    taken = load(Settings, "agent", environ=environ, config=file)

    assert (taken.platform, taken.namespaces) == ("kubernetes", ("orders", "payments"))
    assert (taken.state_namespace, taken.agent_name) == ("fleet", AGENT.name)
    assert taken.leader_election == (case not in ("other-places", "observing")), "one replica needs no Lease"
    assert (taken.observe, taken.output) == ((True, "json") if case == "observing" else (False, "table"))
    assert (taken.join_token is not None) == case.startswith("joining")
    assert taken.adopted_managers == (("helm", "kubectl") if case == "other-places" else ())


def test_only_the_access_through_the_api_server_has_its_permission(helm: Helm) -> None:
    rendered = {access: AGENT.render(helm, f"sidecarAccess={access}") for access in ("auto", "proxy", "direct")}
    assert {access for access, text in rendered.items() if "pods/proxy" in text} == {"auto", "proxy"}


def test_only_several_replicas_have_leader_election_and_a_disruption_budget(helm: Helm) -> None:
    one, two = AGENT.render(helm, "replicas=1"), AGENT.render(helm)
    assert ["leases" in text for text in (one, two)] == [False, True]
    assert ["PodDisruptionBudget" in text for text in (one, two)] == [False, True]
    assert [kind(text, "Deployment")["spec"]["strategy"]["type"] for text in (one, two)] == [
        "Recreate",
        "RollingUpdate",
    ]


def test_only_with_preflight_the_agent_may_create_jobs(helm: Helm) -> None:
    rendered = {value: AGENT.render(helm, f"preflight={value}") for value in ("true", "false")}
    assert [value for value, text in rendered.items() if "resources: [jobs]" in text] == ["true"]
    assert [value for value, text in rendered.items() if "networkpolicies" in text] == ["true"]


def test_an_agent_that_observes_may_only_read_in_its_namespaces_and_has_no_state(helm: Helm) -> None:
    rendered = manifests(AGENT.render(helm, "observe.enabled=true"))

    roles = {each["metadata"]["namespace"]: each["rules"] for each in rendered if each["kind"] == "Role"}
    rules = [{"apiGroups": [each.group], "resources": [*each.resources], "verbs": [*each.verbs]} for each in OBSERVED]
    assert roles == {"orders": rules, "payments": rules}
    kinds = {each["kind"] for each in rendered}
    assert kinds == {"ConfigMap", "Deployment", "Role", "RoleBinding", "ServiceAccount"}


@pytest.mark.parametrize(("replicas", "pods"), [(0, 0), (1, 1), (2, 1)])
def test_an_agent_that_observes_has_at_most_one_pod(helm: Helm, replicas: int, pods: int) -> None:
    rendered = AGENT.render(helm, "observe.enabled=true", f"replicas={replicas}")
    assert kind(rendered, "Deployment")["spec"]["replicas"] == pods


class Releases:
    """Releases of the agent's chart on a real API server."""

    def __init__(self, helm: Helm, plane: ControlPlane, namespace: str) -> None:
        self._helm = helm
        self.plane = plane
        self._namespace = namespace

    def run(self, verb: str, release: str, chart: Path = AGENT.path) -> str:
        """Run a command of helm for a release in the namespace, and return its output."""
        given = [str(chart), *AGENT.settings(f"namespaces={{{self._namespace}}}")] if verb != "uninstall" else []
        place = (f"--namespace={self._namespace}", f"--kubeconfig={self.plane.kubeconfig}")
        return self._helm.output(verb, release, *given, *place)

    async def owner(self) -> str:
        """Return the release that owns the definition, and its printed columns."""
        release = r"{.metadata.annotations.meta\.helm\.sh/release-name}"
        columns = "{.spec.versions[0].additionalPrinterColumns[*].name}"
        return await self.plane.kubectl("get", DEFINITION, f"--output=jsonpath={release}: {columns}")


@pytest.fixture
async def releases(helm: Helm, control_plane: ControlPlane, namespace: str) -> AsyncIterator[Releases]:
    """Releases on an API server without the definition."""
    await control_plane.kubectl("delete", "--ignore-not-found", DEFINITION)
    yield Releases(helm, control_plane, namespace)
    await control_plane.kubectl("delete", "--ignore-not-found", DEFINITION)


async def test_the_first_release_owns_the_definition_and_upgrades_it_and_nobody_deletes_it(
    releases: Releases, tmp_path: Path
) -> None:
    newer = shutil.copytree(AGENT.path, tmp_path / "newer")
    file = newer / "files" / "runtimestatuses.yaml"
    file.write_text(file.read_text().replace("name: Reason", "name: Cause"))
    old, new = "Verified Reason Instances Digest Since Age", "Verified Cause Instances Digest Since Age"

    releases.run("install", "one")
    releases.run("install", "two")
    assert await releases.owner() == f"one: {old}"
    releases.run("upgrade", "two", newer)
    assert await releases.owner() == f"one: {old}"
    releases.run("upgrade", "one", newer)
    assert await releases.owner() == f"one: {new}"
    releases.run("uninstall", "one")
    releases.run("upgrade", "two")
    assert await releases.owner() == f"one: {new}"
    releases.run("install", "one")
    assert await releases.owner() == f"one: {old}"


async def test_a_definition_that_kubectl_has_applied_is_left_to_kubectl(releases: Releases) -> None:
    await releases.plane.kubectl("apply", "--server-side", "-f", str(AGENT.path / "files" / "runtimestatuses.yaml"))
    releases.run("install", "one")
    releases.run("upgrade", "one")
    assert (await releases.owner()).startswith(": Verified")
