"""The reconciler's chart: its permissions with and without a ClusterRole, its cache and its memory."""

import dataclasses
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from governor.process.settings import load
from governor.reconciler.render.linked import Limits
from governor.reconciler.settings import Settings
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.charts.bed import RECONCILER, Helm, as_list, manifests

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_RENDERERS = 3
"""The two of the pool, and the one for charts that take long."""
_MIB = {"Mi": 1, "Gi": 1024}


@dataclasses.dataclass(frozen=True)
class Action:
    """Something that RBAC permits or denies; without a namespace, in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    group: str = ""


class Installed:
    """The ServiceAccount and the rules of a release."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._user = f"system:serviceaccount:{namespace}:{RECONCILER.name}"

    async def permits(self, action: Action) -> bool:
        """Ask the API server whether the reconciler may do something."""
        spec = {"user": self._user, "resourceAttributes": dataclasses.asdict(action)}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool((await self._plane.ask("POST", REVIEWS, review))["status"]["allowed"])


async def install(plane: ControlPlane, helm: Helm, namespace: str, *values: str) -> Installed:
    """Create the rules of a release, and wait until the API server's authorizer has all of them."""
    rendered = manifests(RECONCILER.render(helm, *values, namespace=namespace))
    rules = [each for each in rendered if "rbac" in each["apiVersion"] or each["kind"] == "ServiceAccount"]
    await plane.kubectl("apply", "-f", "-", stdin=as_list(rules))
    installed = Installed(plane, namespace)
    await until(partial(installed.permits, Action("delete", "secrets", namespace)))
    await until(partial(installed.permits, Action("impersonate", "serviceaccounts", "elsewhere")))
    return installed


def foreign(namespace: str) -> list[Action]:
    """Return what a chart may need, and what the reconciler does not need for itself."""
    return [
        Action("create", "deployments", namespace, "apps"),
        Action("create", "namespaces"),
        Action("escalate", "clusterroles", group="rbac.authorization.k8s.io"),
        Action("get", "secrets", "elsewhere"),
        Action("impersonate", "users"),
        Action("impersonate", "groups"),
    ]


async def test_with_the_cluster_role_charts_may_contain_anything(
    helm: Helm, control_plane: ControlPlane, namespace: str
) -> None:
    installed = await install(control_plane, helm, namespace)
    for each in foreign(namespace):
        await until(partial(installed.permits, each))


async def test_without_one_the_reconciler_has_its_own_state_and_acts_as_service_accounts(
    helm: Helm, control_plane: ControlPlane, namespace: str
) -> None:
    installed = await install(control_plane, helm, namespace, "clusterRole=")

    verbs = ("get", "list", "watch", "create", "update", "delete")
    own = [Action(verb, each, namespace) for each in ("configmaps", "secrets") for verb in verbs]
    assert [each for each in own if not await installed.permits(each)] == []
    assert [each for each in foreign(namespace) if await installed.permits(each)] == []


async def test_the_cluster_role_can_be_changed_by_an_upgrade(
    helm: Helm, control_plane: ControlPlane, namespace: str
) -> None:
    place = (f"--namespace={namespace}", f"--kubeconfig={control_plane.kubeconfig}")
    for role in ("cluster-admin", "view", ""):
        settings = RECONCILER.settings("replicas=0", f"clusterRole={role}")
        helm.output("upgrade", "--install", RECONCILER.name, str(RECONCILER.path), *place, *settings)
        found = (await control_plane.ask("GET", BINDINGS))["items"]
        bound = {each["roleRef"]["name"] for each in found if each["metadata"]["name"].startswith(f"{namespace}:")}
        assert bound == {f"{namespace}:{RECONCILER.name}", role} - {""}
    helm.output("uninstall", RECONCILER.name, *place)


@pytest.fixture
def pod(helm: Helm) -> Any:
    """The pod's specification, by default values."""
    (found,) = (each for each in manifests(RECONCILER.render(helm)) if each["kind"] == "Deployment")
    return found["spec"]["template"]["spec"]


@pytest.mark.parametrize("is_local", [True, False])
def test_the_reconciler_accepts_its_settings(helm: Helm, tmp_path: Path, *, is_local: bool) -> None:
    rendered = manifests(RECONCILER.render(helm, f"localCluster={str(is_local).lower()}"))
    (settings,) = (each["data"] for each in rendered if each["kind"] == "ConfigMap")
    file = tmp_path / "reconciler.yaml"
    file.write_text(settings["reconciler.yaml"])
    taken = load(Settings, "reconciler", environ={}, config=file)
    assert (taken.namespace, taken.local_cluster) == ("fleet", is_local)


def test_the_chart_cache_is_in_a_writable_volume(helm: Helm, pod: Any) -> None:
    (settings,) = (each["data"] for each in manifests(RECONCILER.render(helm)) if each["kind"] == "ConfigMap")
    cache = PurePosixPath(yaml.safe_load(settings["reconciler.yaml"])["chart-cache"])
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if cache.is_relative_to(each["mountPath"]))
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    assert not mount.get("readOnly")
    assert volume["emptyDir"] == {}
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_memory_suffices_for_all_renderers(pod: Any) -> None:
    (container,) = pod["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert int(limit[:-2]) * _MIB[limit[-2:]] >= 512 + _RENDERERS * Limits().memory_mib
