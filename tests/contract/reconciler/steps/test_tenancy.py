"""What a chart may do: the permissions of a service account, and registries that need credentials."""

import base64
import json
from typing import Any

import yaml

from governor.kube.objects import ApiResource, Object
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEFINITIONS, SECRETS, config_map, definition
from tests.contract.reconciler.bed import state
from tests.contract.reconciler.steps.bed import ModuleBed, listed
from tests.contract.reconciler.test_inputs import put_secret

ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True)
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)
ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
CLUSTER_ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_BINDINGS = ApiResource(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)


def cluster_role(name: str) -> Object:
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    return {"apiVersion": ROLES.api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]}


async def create_tenant(bed: ModuleBed, *resources: str) -> None:
    """Create a service account that may do anything with these resources of the namespace."""

    def manifest(kind: ApiResource, **content: Any) -> Object:
        metadata = {"name": "tenant", "namespace": bed.space}
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **content}

    rule = {"apiGroups": [""], "resources": list(resources), "verbs": ["*"]}
    role = {"apiGroup": ROLES.group, "kind": "Role", "name": "tenant"}
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": bed.space}
    await bed.client.create(ACCOUNTS, manifest(ACCOUNTS), manager="user")
    await bed.client.create(ROLES, manifest(ROLES, rules=[rule]), manager="user")
    await bed.client.create(BINDINGS, manifest(BINDINGS, roleRef=role, subjects=[subject]), manager="user")


async def test_a_service_account_bounds_what_a_chart_may_contain(bed: ModuleBed) -> None:
    await create_tenant(bed, "configmaps")
    await bed.add("orders")
    allowed = listed(config_map("a", n="1"))
    await bed.deploy("orders", values=allowed, serviceAccountName="tenant")
    live = await bed.find(CONFIG_MAPS, "a")
    assert live is not None
    stolen = config_map("stolen", bed.namespace)
    forbidden = listed(config_map("a", n="2"), stolen, cluster_role(bed.namespace))
    await bed.install("orders", "orders", values=forbidden, serviceAccountName="tenant")
    found = await bed.becomes("orders", "NotApplied", values=forbidden)
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "system:serviceaccount" in found["status"]["message"]
    assert await bed.find(CLUSTER_ROLES, bed.namespace) is None
    assert await bed.find(CONFIG_MAPS, "stolen", bed.namespace) is None
    await bed.deploy("orders", values=allowed, serviceAccountName="tenant")
    await bed.edit("a", n="3")
    await bed.has_data("a", {"n": "1"})
    await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("a") is None


async def test_a_lookup_and_hooks_have_the_permissions_of_the_service_account_too(bed: ModuleBed) -> None:
    await create_tenant(bed, "configmaps")
    text = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: a}}
data: {{found: {{{{ lookup "v1" "Secret" "{bed.namespace}" "s" | toJson | quote }}}}}}
"""
    await put_secret(bed, "password: hunter2")
    await bed.add("spy", chart=bed.write_chart("spy", a=text))
    await bed.install("spy", "spy", serviceAccountName="tenant")
    found = await bed.becomes("spy", "RenderFailed")
    assert 'cannot get resource "secrets"' in found["status"]["message"]
    hook = cluster_role(bed.namespace)
    hook["metadata"]["annotations"] = {"helm.sh/hook": "pre-install"}
    await bed.add("hooked", values=listed(hook, config_map("b")))
    await bed.install("hooked", "hooked", serviceAccountName="tenant")
    found = await bed.becomes("hooked", "HookFailed")
    assert 'cannot get resource "clusterroles"' in found["status"]["message"]
    assert await bed.data("b") is None


async def test_values_from_a_secret_appear_in_no_message(bed: ModuleBed) -> None:
    """The API server quotes what it refuses."""
    port = {"name": "Hunter_22", "port": 80}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [port]}}
    await put_secret(bed, f"objects: [{json.dumps(service)}]")
    await bed.add("orders")
    await bed.install("orders", "orders", valuesFrom=[{"secretRef": {"name": "s"}}])
    found = await bed.becomes("orders", "NotApplied")
    assert "spec.ports[0].name" in found["status"]["message"]
    await bed.has_event("orders", "Warning", "NotApplied")
    shown = str(found) + str(await bed.shows("Cluster", "local", lambda each: state(each) == "Warning"))
    assert "Hunter_22" not in shown + str(await bed.events("orders"))


async def test_credentials_of_a_chart_are_read_from_a_secret(bed: ModuleBed) -> None:
    source = {"archive": "http://127.0.0.1:9/a.tgz", "digest": f"sha256:{0:064x}", "credentialsSecret": "registry"}
    await bed.add_module("orders", chart=source)
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "CredentialsMissing")
    assert (state(found), found["status"]["actor"]) == ("Error", "operator")
    data = {name: base64.b64encode(b"x").decode() for name in ("username", "password")}
    metadata = {"name": "registry", "namespace": bed.namespace}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    await bed.client.create(SECRETS, secret, manager="user")
    await bed.becomes("orders", "ChartUnavailable")


async def test_definitions_of_a_chart_are_read_and_written_with_the_permissions_of_the_service_account(
    bed: ModuleBed,
) -> None:
    await create_tenant(bed, "configmaps")
    crd = definition("Part", bed.group)
    chart = bed.write_chart("parts", crds=yaml.safe_dump(crd), main=yaml.safe_dump(config_map("main")))
    await bed.client.create(DEFINITIONS, crd, manager="kubectl")
    await bed.add("parts", chart=chart)
    await bed.install("parts", "parts", serviceAccountName="tenant")
    found = await bed.becomes("parts", "NotApplied")
    assert "system:serviceaccount" in found["status"]["message"]
    reader = {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get"]}
    await bed.client.create(CLUSTER_ROLES, cluster_role(bed.namespace) | {"rules": [reader]}, manager="user")
    role = {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": bed.namespace}
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": bed.space}
    binding = {"metadata": {"name": bed.namespace}, "roleRef": role, "subjects": [subject]}
    kind = {"apiVersion": CLUSTER_BINDINGS.api_version, "kind": CLUSTER_BINDINGS.kind}
    await bed.client.create(CLUSTER_BINDINGS, kind | binding, manager="user")
    await bed.becomes("parts", "Ready")
    await bed.has_event("parts", "Normal", "DefinitionsLeft")
