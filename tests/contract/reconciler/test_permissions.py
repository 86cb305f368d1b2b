"""The permissions of the reconciler's chart are those that the reconciler uses."""

import functools
import json
from pathlib import Path

import msgspec

from governor.kube.client import Client
from governor.kube.config.access import Access
from governor.kube.objects import Object
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.kinds.channel import CHANNEL
from governor.values.secret import Secret
from testbed.kube.api_faults import ApiFaults, ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.charts.bed import RECONCILER, Helm, by_kind
from tests.contract.kube.applyset.bed import CONFIG_MAPS
from tests.contract.kube.controller.bed import events_of
from tests.contract.reconciler.bed import LOCAL, HubBed, reason, state
from tests.contract.reconciler.definition_bed import install_old, stored_versions
from tests.contract.reconciler.render.bed import chart

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def used(request: ApiRequest) -> tuple[str, str]:
    """Return verb and resource of a request, as RBAC sees them; the resource is empty for what is no resource."""
    parts = request.path.strip("/").split("/")
    if parts[0] not in ("api", "apis") or len(parts) < (3 if parts[0] == "api" else 4):
        return "", ""
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    verb = VERBS[request.method]
    if verb == "get" and len(rest) == 1:
        verb = "watch" if request.is_watch else "list"
    return verb, "/".join([rest[0], *rest[2:]])


def granted(role: Object) -> set[tuple[str, str]]:
    rules = role["rules"]
    return {(verb, each) for rule in rules for each in rule["resources"] for verb in rule["verbs"]}


async def test_the_reconciler_needs_all_of_its_permissions_and_no_other(
    bare: Client, hub: HubBed, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """It runs with the rendered roles, without one for modules; each of their rules is used by one of its requests."""
    rendered = by_kind(RECONCILER.render(Helm(tmp_path), "clusterRole=", namespace=hub.namespace))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    for kind in kinds:
        await control_plane.kubectl("create", "-f", "-", stdin=json.dumps(rendered[kind]))
    await install_old(bare, hub.namespace, 1)
    token = await control_plane.request_token(hub.namespace, RECONCILER.name)
    async with ApiFaults(control_plane, None) as proxy:
        access = Access(proxy.url, control_plane.authority.certificate, token=Secret(token))
        async with hub.reconciling(access, local_cluster=True):
            await hub.shows("Channel", "c0", lambda each: each.get("status"))
            await install_for_tenant(hub, chart(tmp_path, "generating", passwords=PASSWORDS))
            await hub.add_module("dapr")
            sources = [{"configMapRef": {"name": "c"}}]
            await hub.install("dapr", "dapr", valuesFrom=sources)
            await hub.shows("ModuleInstance", "dapr.local", lambda each: reason(each) == "ValuesMissing")
            await hub.apply("Cluster", "eu", {"access": {"kubeconfigSecret": {"name": "eu"}}})
            await put_secret(control_plane, hub.namespace, "eu")
            await hub.shows("Cluster", "eu", lambda each: reason(each, "Reachable") == "AccessInvalid")
            await hub.shows("Cluster", "local", lambda each: state(each) == "Warning")
            await hub.install("dapr", "dapr", values={"changed": 1}, valuesFrom=sources)
            await hub.shows("ModuleInstance", "dapr.local", lambda each: each["spec"].get("values"))
            await repeated_event(hub)
            await hub.delete("Installation", "dapr")
            await hub.gone("ModuleInstance", "dapr.local")
            await hub.delete("Cluster", "local")
            await hub.gone("Cluster", "local")
        requests = [each for each in proxy.requests if used(each)[0]]
    assert await stored_versions(bare) == [CHANNEL.resource.version]
    await hub.apply("Cluster", "local", LOCAL)

    allowed = granted(rendered["Role"]) | granted(rendered["ClusterRole"])
    # By server-side apply, which is a patch: the API server checks this verb if the object does not exist.
    created = {("create", each) for each in ("moduleinstances", "customresourcedefinitions", *PROTECTION)}
    checked = {("impersonate", "serviceaccounts"), ("override", "moduleinstances")}
    sent = {used(each) for each in requests} | created | checked
    assert sent - allowed <= OF_THE_TENANT, "a request that no rule allows"
    unused = allowed - sent
    assert unused == UNUSED_HERE, "a rule that no request needs"


PROTECTION = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
UNUSED_HERE = {("patch", each) for each in ("modules", "installations")}
"""Objects of these kinds are stored again in the same way as Channels."""


OF_THE_TENANT = {("patch", "configmaps")}
"""What is done with the permissions of the service account that an Installation names."""
PASSWORDS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: passwords}
data:
  {{- range untilStep 0 (int .Values.count) 1 }}
  "{{ . }}": {{ randAlphaNum 8 }}
  {{- end }}
"""


async def install_for_tenant(hub: HubBed, path: Path) -> None:
    """Install, change and remove a module with the permissions of a service account that may write ConfigMaps."""
    space = f"{hub.namespace}-tenant"
    await hub.plane.kubectl("create", "namespace", space)
    await hub.plane.kubectl("create", "serviceaccount", "tenant", f"--namespace={space}")
    role = ("--verb=get,create,patch,delete", "--resource=configmaps")
    await hub.plane.kubectl("create", "role", "tenant", f"--namespace={space}", *role)
    binding = ("--role=tenant", f"--serviceaccount={space}:tenant")
    await hub.plane.kubectl("create", "rolebinding", "tenant", f"--namespace={space}", *binding)
    source = {"directory": str(path), "digest": digest_of(path)}
    await hub.add_module("tenant", chart=source, namespace=space)
    for count in (1, 2):
        values = {"count": count}
        await hub.install("tenant", "tenant", values=values, serviceAccountName="tenant", protection="policy")
        found = functools.partial(is_ready_with, values)
        await hub.shows("ModuleInstance", "tenant.local", found)
    assert len((await hub.client.get(CONFIG_MAPS, "passwords", space))["data"]) == 2
    await hub.delete("Installation", "tenant")
    await hub.gone("ModuleInstance", "tenant.local")


def is_ready_with(values: Object, found: Object) -> bool:
    is_observed = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
    return state(found) == "Ready" and is_observed and found["spec"].get("values") == values


async def put_secret(plane: ControlPlane, namespace: str, name: str) -> None:
    data = {"kubeconfig": "e30="}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": data}
    await plane.kubectl("create", "-f", "-", stdin=msgspec.json.encode(secret).decode())


def has_reason(expected: str, found: Object) -> bool:
    return reason(found) == expected


async def repeated_event(hub: HubBed) -> None:
    """Cause the same Event twice, and wait until its count is updated."""

    async def is_counted() -> bool:
        found = await events_of(hub.client, "dapr.local", hub.namespace)
        return any(each["count"] > 1 for each in found)

    for paused in (True, False, True, False):
        await hub.apply("Cluster", "local", LOCAL | {"paused": paused})
        expected = "Paused" if paused else "ValuesMissing"
        await hub.shows("ModuleInstance", "dapr.local", functools.partial(has_reason, expected))
    await until(is_counted)
