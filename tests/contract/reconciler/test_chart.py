"""The reconciler's chart: as in committed snapshots, accepted by a real API server, with the least permissions.

After an intended change, rewrite the snapshots: run this file with ``GOVERNOR_WRITE_SNAPSHOTS=1``.
"""

import asyncio
import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from governor import __version__
from governor.kube.client import Client
from governor.kube.config.access import Access
from governor.kube.objects import Object
from governor.process.settings import load
from governor.reconciler.kinds.channel import CHANNEL
from governor.reconciler.settings import Settings
from governor.values.secret import Secret
from testbed.kube.api_faults import ApiFaults, ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.controller.bed import events_of
from tests.contract.reconciler.bed import LOCAL, HubBed, reason, state
from tests.contract.reconciler.definition_bed import install_old, stored_versions
from toolchain import cache
from toolchain.helm import HELM
from toolchain.repository import REPOSITORY

NAME = "governor-reconciler"
CHART = REPOSITORY / "charts" / NAME
SNAPSHOTS = Path(__file__).parents[1] / "charts" / "snapshots" / NAME
IMAGE = "image.repository=registry.example.com/governor"
CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    "other-places": (
        "image.tag=1.2.3",
        "image.pullSecrets={registry}",
        "replicas=2",
        "localCluster=false",
        "unknownAfter=60",
        "prometheusAnnotations=false",
        "resources.limits.memory=1Gi",
        "logLevel=debug",
    ),
}
REJECTED = {
    "replicaCount=2": "Additional property replicaCount is not allowed",
    "replicas=9": "replicas: Must be less than or equal to 5",
    "unknownAfter=0": "unknownAfter: Must be greater than 0",
    "localCluster=maybe": "localCluster: Invalid type. Expected: boolean, given: string",
    "logLevel=loud": 'logLevel must be one of the following: "debug", "info", "warning", "error"',
    "resources.limits.memory=much": "resources.limits.memory: Does not match pattern",
}
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def helm(home: Path, *arguments: str, values: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """Run helm with a private home directory."""
    environment = {"HOME": str(home), **{f"HELM_{each}_HOME": str(home) for each in ("CACHE", "CONFIG", "DATA")}}
    argv = [str(cache.provide(HELM)), *arguments, *(f"--set={each}" for each in (IMAGE, *values))]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)


async def render(home: Path, *values: str, namespace: str = "fleet") -> str:
    arguments = ("template", NAME, str(CHART), f"--namespace={namespace}")
    rendered = await asyncio.to_thread(helm, home, *arguments, values=values)
    assert rendered.returncode == 0, rendered.stderr
    return rendered.stdout


def manifests(rendered: str) -> dict[str, Object]:
    """Return the manifests by kind, of which the chart has one each."""
    return {each["kind"]: each for each in yaml.safe_load_all(rendered)}


def compare(name: str, text: str) -> None:
    file = SNAPSHOTS / name
    if os.environ.get("GOVERNOR_WRITE_SNAPSHOTS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "if the change is intended, rewrite the snapshots and review the diff"


async def test_the_chart_is_valid_and_has_the_version_of_the_product(tmp_path: Path) -> None:
    outcome = await asyncio.to_thread(helm, tmp_path, "lint", "--strict", str(CHART))
    assert outcome.returncode == 0, outcome.stdout
    assert "WARNING" not in outcome.stdout
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert described["appVersion"] == __version__
    assert described["version"] == __version__.replace(".dev", "-dev.")


async def test_invalid_values_are_rejected_by_name(tmp_path: Path) -> None:
    outcome = await asyncio.to_thread(helm, tmp_path, "template", NAME, str(CHART), values=tuple(REJECTED))
    assert outcome.returncode != 0
    assert [each for each in REJECTED.values() if each not in outcome.stderr] == []
    outcome = await asyncio.to_thread(helm, tmp_path, "template", NAME, str(CHART), values=("image.repository=",))
    assert "image.repository is required: there is no public registry" in outcome.stderr


def test_every_value_has_a_default_and_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(ruled(schema)) == set(named(yaml.safe_load((CHART / "values.yaml").read_text()), schema))


def ruled(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, rule in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from ruled(rule, f"{path}{name}.")


def named(values: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{path}{name}"
        rule = schema["properties"].get(name, {})
        if isinstance(value, dict) and "properties" in rule:
            yield from named(value, rule, f"{path}{name}.")


@pytest.mark.parametrize("case", CASES)
async def test_rendered_manifests_match_the_snapshots_and_are_accepted(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, case: str
) -> None:
    compare(f"{case}.yaml", await render(tmp_path, *CASES[case]))
    rendered = await render(tmp_path, *CASES[case], namespace=namespace)
    accepted = await control_plane.kubectl("create", "--dry-run=server", "--output=name", "-f", "-", stdin=rendered)
    assert len(accepted.splitlines()) == len(manifests(rendered)) == 7

    text = manifests(rendered)["ConfigMap"]["data"]["reconciler.yaml"]
    (tmp_path / "reconciler.yaml").write_text(text)
    settings = load(Settings, "reconciler", environ={}, config=tmp_path / "reconciler.yaml")
    assert (settings.namespace, settings.local_cluster) == (namespace, case == "default")


async def test_restricted_namespaces_admit_the_pod(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    labels = ("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    await control_plane.kubectl(*labels)
    template = manifests(await render(tmp_path, namespace=namespace))["Deployment"]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"]["name"] = "admitted"
    created = await control_plane.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(pod))
    assert created == "pod/admitted created\n"


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
    """It runs with the rendered roles; each of their rules is used by one of its requests."""
    rendered = manifests(await render(tmp_path, namespace=hub.namespace))
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    for kind in kinds:
        await control_plane.kubectl("create", "-f", "-", stdin=json.dumps(rendered[kind]))
    await install_old(bare, hub.namespace, 1)
    token = await control_plane.request_token(hub.namespace, NAME)
    async with ApiFaults(control_plane, None) as proxy:
        access = Access(proxy.url, control_plane.authority.certificate, token=Secret(token))
        async with hub.reconciling(access, local_cluster=True):
            await hub.shows("Channel", "c0", lambda each: each.get("status"))
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
    created = {("create", "moduleinstances"), ("create", "customresourcedefinitions")}
    sent = {used(each) for each in requests} | created
    assert sent - allowed == set(), "a request that no rule allows"
    unused = allowed - sent
    assert unused == UNUSED_HERE, "a rule that no request needs"


UNUSED_HERE = {("patch", each) for each in ("modules", "installations")}
"""Objects of these kinds are stored anew in the same way as Channels."""


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
