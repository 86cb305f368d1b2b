"""Objects that Helm, Flux or Argo CD own, taken over in place by a module."""

import base64
import gzip
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from governor.kube.objects import ApiResource, Object, ObjectRef, ref_of
from governor.reconciler.release.objects import MANAGER, SETTINGS
from testbed.recipes import provide
from tests.contract.charts.bed import Helm
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEFINITIONS, DEPLOYMENTS, SECRETS, config_map
from tests.contract.reconciler.bed import LOCAL, state
from tests.contract.reconciler.kill_bed import KillBed, writes
from tests.contract.reconciler.steps.bed import ModuleBed, listed
from tests.contract.reconciler.test_setup import governor_command

SERVICES = ApiResource("", "v1", "Service", "services", namespaced=True)
ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
KINDS = {each.kind: each for each in (CONFIG_MAPS, SECRETS, DEPLOYMENTS, SERVICES, ACCOUNTS)}
RELEASE: Object = {"helmRelease": {}}

SHOP = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web, release: {{ .Release.Name }}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {first: {{ .Release.IsInstall | quote }}}
    spec:
      serviceAccountName: web
      containers:
      - name: main
        image: {{ .Values.image }}
        ports: [{containerPort: 8080}]
        {{- with .Values.env }}
        env:
        {{- range $name, $value := . }}
        - {name: {{ $name }}, value: {{ $value | quote }}}
        {{- end }}
        {{- end }}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: web}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: {{ .Values.level }}}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: {{ .Values.password }}}
{{- if .Values.more }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: more}
{{- end }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: migration
  annotations: {"helm.sh/hook": "pre-install,pre-upgrade,post-install"}
data: {n: "1"}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: orders.GROUP}
spec:
  group: GROUP
  names: {kind: Order, plural: orders}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""
VALUES: Object = {"image": "example/web:1", "level": "info", "password": "hunter2-hunter2", "env": {"A": "1", "B": "2"}}


def write_chart(bed: ModuleBed) -> Path:
    return bed.write_chart("shop", crds=CRD.replace("GROUP", bed.group), all=SHOP)


def helm_install(bed: ModuleBed, chart: Path, command: str = "install", **values: Any) -> None:
    """Install the chart with Helm's command, as a user did before."""
    helm = Helm(chart.parent / "helm")
    flags = [f"--set={name}={value}" for name, value in flat(VALUES | values)]
    place = (f"--namespace={bed.space}", f"--kubeconfig={bed.plane.kubeconfig}")
    helm.output(command, "shop", str(chart), *place, *flags)


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in values.items():
        found += flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return found


async def live_objects(bed: ModuleBed, *more: str) -> dict[ObjectRef, Object]:
    """Return the objects of the release as they are."""
    names = [("Deployment", "web"), ("Service", "web"), ("ServiceAccount", "web"), ("ConfigMap", "settings")]
    names += [("Secret", "login"), ("ConfigMap", "migration"), *(("ConfigMap", each) for each in more)]
    found = [await bed.client.get(KINDS[kind], name, bed.space) for kind, name in names]
    found.append(await bed.client.get(DEFINITIONS, f"orders.{bed.group}"))
    return {ref_of(each): each for each in found}


def managers(found: Object) -> set[str]:
    return {each["manager"] for each in found["metadata"]["managedFields"] if not each.get("subresource")}


def content(found: Object) -> Object:
    """Return an object without what belongs to its owner. The generation of a Deployment counts its annotations."""
    metadata = {key: found["metadata"].get(key) for key in ("name", "uid", "creationTimestamp")}
    return {key: value for key, value in found.items() if key not in ("metadata", "status")} | {"metadata": metadata}


async def test_a_helm_release_is_taken_over_in_place_and_let_go_by_helm(
    idle: ModuleBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, chart = idle, write_chart(idle)
    helm_install(bed, chart)
    await bed.client.patch(CONFIG_MAPS, "settings", bed.space, {"data": {"own": "user's"}}, manager="user")
    before = await live_objects(bed)
    await bed.add("shop", chart=chart)
    async with bed.reconciling():
        await bed.install("shop", "shop", values=VALUES, adopt=RELEASE)
        await bed.is_applied("shop")
        await bed.ready_deployment("web", 2)
        found = await bed.becomes("shop", "Ready")
        await bed.has_event("shop", "Normal", "Adopted")
        after = await live_objects(bed)
        assert {ref: content(each) for ref, each in after.items()} == {
            ref: content(each) for ref, each in before.items()
        }, "the same objects, with the same templates of pods"
        hook = next(each for each in after if each.name == "migration")
        assert after.pop(hook) == before.pop(hook), "no hook runs"
        for each in after.values():
            assert managers(each) <= {MANAGER, "user", "kube-apiserver"}, each
            assert "meta.helm.sh/release-name" not in each["metadata"].get("annotations", {})
            assert SETTINGS.owner_label in each["metadata"]["labels"]

        adopted = found["status"]["adopted"]
        assert adopted["source"] == f"Helm release {bed.space}/shop"
        command = adopted["nextStep"].partition("record of the release: ")[2]
        await bed.plane.kubectl(*shlex.split(command)[1:])
        helm = Helm(chart.parent / "helm")
        place = (f"--namespace={bed.space}", f"--kubeconfig={bed.plane.kubeconfig}")
        assert helm.output("list", "--all", "--short", *place) == ""
        assert helm.run("uninstall", "shop", *place).returncode != 0

        await bed.edit("settings", level="stolen")
        await bed.has_data("settings", {"level": "info", "own": "user's"})
        helm_values = VALUES | {"env": {"A": "1"}, "level": "debug"}
        await bed.install("shop", "shop", values=helm_values, adopt=RELEASE)
        await bed.is_applied("shop", values=helm_values)
        await bed.has_data("settings", {"level": "debug", "own": "user's"})
        await bed.ready_deployment("web", 2)
        found = await bed.becomes("shop", "Ready", values=helm_values)
        changes = (found["status"]["lastApplied"], *found["status"]["history"])
        assert [each.get("operation", "install") for each in changes] == ["upgrade", "install"]
        deployment = await bed.client.get(DEPLOYMENTS, "web", bed.space)
        assert deployment["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    monkeypatch.setenv("KUBECONFIG", str(bed.plane.kubeconfig))
    monkeypatch.setenv("GOVERNOR_RECONCILER_NAMESPACE", bed.namespace)
    _, output, _ = await governor_command("module", "describe", "shop")
    assert f"Adopted from:  Helm release {bed.space}/shop: " in output


async def test_nothing_is_written_while_the_chart_renders_something_else(
    idle: ModuleBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, chart = idle, write_chart(idle)
    helm_install(bed, chart, env={"A": "1", "B": "2", "OLD": "3"}, more=True)
    helm_install(bed, chart, "upgrade", env={"A": "1", "B": "2", "OLD": "3"}, more=True)
    before = await live_objects(bed, "more")
    await bed.add("shop", chart=chart)
    async with bed.reconciling():
        await bed.ready_deployment("web", 2)
        await bed.install("shop", "shop", values=VALUES | {"level": "debug"}, adopt=RELEASE)
        found = await bed.becomes("shop", "AdoptionDiffers")
    message = found["status"]["message"]
    assert state(found) == "Warning"
    assert f"Deployment.apps {bed.space}/web: spec.template.spec.containers" in message
    assert f"ConfigMap {bed.space}/settings: data.level" in message
    assert "more: is not rendered, and would stay" in message
    assert "hunter2" not in message
    monkeypatch.setenv("KUBECONFIG", str(bed.plane.kubeconfig))
    monkeypatch.setenv("GOVERNOR_RECONCILER_NAMESPACE", bed.namespace)
    monkeypatch.setenv("PATH", str(provide(["renderer"])["renderer"].parent))
    code, output, errors = await governor_command("module", "diff", "shop")
    assert (code, errors) == (1, "")
    assert '~ data.level: "info" -> "debug"' in output
    assert "OLD" in output
    assert "hunter2" not in output
    after = await live_objects(bed, "more")
    assert {ref: each["metadata"]["managedFields"] for ref, each in after.items() if ref.name != "web"} == {
        ref: each["metadata"]["managedFields"] for ref, each in before.items() if ref.name != "web"
    }
    assert {ref: content(each) for ref, each in after.items()} == {ref: content(each) for ref, each in before.items()}
    uid = after[ObjectRef("apps", "Deployment", bed.space, "web")]["metadata"]["uid"]
    async with bed.reconciling():
        await bed.install("shop", "shop", values=VALUES, adopt=RELEASE | {"allowChanges": True})
        await bed.is_applied("shop", values=VALUES)
    deployment = await bed.client.get(DEPLOYMENTS, "web", bed.space)
    assert deployment["metadata"]["uid"] == uid
    names = [each["name"] for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert names == ["A", "B"]
    assert await bed.data("more") == {}, "it is not the module's"


async def test_a_release_that_is_missing_busy_or_unreadable_is_not_taken_over(bed: ModuleBed) -> None:
    chart = write_chart(bed)
    await bed.add("shop", chart=chart)
    await bed.install("shop", "shop", values=VALUES, adopt=RELEASE)
    found = await bed.becomes("shop", "ReleaseMissing")
    assert f"there is no Helm release {bed.space}/shop" in found["status"]["message"]
    assert await bed.data("settings") is None

    await bed.apply("Cluster", "local", LOCAL | {"paused": True})
    await bed.becomes("shop", "Paused")
    helm_install(bed, chart)
    (name,) = [each["metadata"]["name"] async for each in bed.client.list(SECRETS, bed.space, labels="owner=helm")]
    stored = await bed.client.get(SECRETS, name, bed.space)
    await bed.client.patch(SECRETS, name, bed.space, {"data": {"release": pending(stored)}}, manager="user")
    await bed.apply("Cluster", "local", LOCAL)
    found = await bed.becomes("shop", "ReleaseBusy")
    assert "is pending-upgrade" in found["status"]["message"]
    await bed.client.patch(SECRETS, name, bed.space, {"data": {"release": "eA=="}}, manager="user")
    found = await bed.becomes("shop", "NotAdopted")
    assert f"Secret {bed.space}/{name}, cannot be read" in found["status"]["message"]
    await bed.client.patch(SECRETS, name, bed.space, {"data": stored["data"]}, manager="user")
    await bed.is_applied("shop")


def pending(secret: Object) -> str:
    """Return the content of Helm's record while an upgrade is under way."""
    text = gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))).decode()
    assert '"status":"deployed"' in text
    packed = gzip.compress(text.replace('"status":"deployed"', '"status":"pending-upgrade"').encode())
    return base64.b64encode(base64.b64encode(packed)).decode()


FLUX: Object = {"flux": {"kind": "Kustomization", "name": "apps", "namespace": "flux-system"}}
FLUX_LABELS = {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
ARGOCD: Object = {"argocd": {"name": "apps"}}


def marked(manifest: Object, kind: str, marks: Mapping[str, str]) -> Object:
    return {**manifest, "metadata": {**manifest["metadata"], kind: dict(marks)}}


async def test_objects_of_flux_and_argo_cd_are_taken_over_and_those_of_others_are_not(bed: ModuleBed) -> None:
    flux = marked(config_map("a", bed.space, n="1"), "labels", FLUX_LABELS)
    first = await bed.client.apply(CONFIG_MAPS, flux, manager="kustomize-controller")
    other = marked(
        config_map("other", bed.space, n="1"), "labels", FLUX_LABELS | {"kustomize.toolkit.fluxcd.io/name": "infra"}
    )
    other = await bed.client.apply(CONFIG_MAPS, other, manager="kustomize-controller")
    await bed.add("orders")
    values = listed(config_map("a", n="1"), config_map("other", n="1"))
    await bed.install("orders", "orders", values=values, adopt=FLUX)
    found = await bed.becomes("orders", "AdoptionDiffers")
    assert "other: exists already and is managed by kustomize-controller" in found["status"]["message"]
    assert await bed.client.get(CONFIG_MAPS, "a", bed.space) == first

    found = await bed.deploy("orders", values=listed(config_map("a", n="1")), adopt=FLUX)
    live = await bed.client.get(CONFIG_MAPS, "a", bed.space)
    assert (live["metadata"]["uid"], managers(live)) == (first["metadata"]["uid"], {MANAGER})
    assert set(live["metadata"]["labels"]) == {SETTINGS.owner_label}
    assert "patch kustomizations.kustomize.toolkit.fluxcd.io apps" in found["status"]["adopted"]["nextStep"]
    assert await bed.client.get(CONFIG_MAPS, "other", bed.space) == other

    tracking = {"argocd.argoproj.io/tracking-id": f"apps:/ConfigMap:{bed.space}/b"}
    argo = marked(config_map("b", bed.space, n="1"), "annotations", tracking)
    second = await bed.client.create(CONFIG_MAPS, argo, manager="argocd-controller")
    await bed.add("payments")
    found = await bed.deploy("payments", values=listed(config_map("b", n="1")), adopt=ARGOCD)
    live = await bed.client.get(CONFIG_MAPS, "b", bed.space)
    assert (live["metadata"]["uid"], managers(live)) == (second["metadata"]["uid"], {MANAGER})
    assert "annotations" not in live["metadata"]
    assert "delete applications.argoproj.io apps" in found["status"]["adopted"]["nextStep"]


async def test_an_adoption_that_is_killed_is_continued(kill_bed: KillBed) -> None:
    """Killed before the first object, between the two writes of one object, and when everything is written."""
    bed = kill_bed
    names = "abc"
    for name in names:
        manifest = marked(config_map(name, bed.space, n="1"), "labels", FLUX_LABELS)
        await bed.client.apply(CONFIG_MAPS, manifest, manager="kustomize-controller")
    before = {name: await bed.client.get(CONFIG_MAPS, name, bed.space) for name in names}
    objects = f"/{bed.space}/configmaps/[a-z]"
    await bed.add("orders")

    def is_write(after: int) -> None:
        bed.kill_before(lambda each: writes("PATCH", objects)(each) and "dryRun" not in each.query, after=after)

    is_write(0)
    await bed.install("orders", "orders", values=listed(*(config_map(each, n="1") for each in names)), adopt=FLUX)
    await bed.died()
    assert {name: await bed.client.get(CONFIG_MAPS, name, bed.space) for name in names} == before
    found = await bed.get("ModuleInstance", "orders.local")
    assert found["status"]["attempt"]["isAdoption"] is True
    is_write(1)
    await bed.restart()
    await bed.died()
    bed.kill_before(writes("PUT", "/configmaps/module-orders"), after=1)
    await bed.restart()
    await bed.died()
    await bed.restart()
    found = await bed.becomes("orders", "Ready")
    assert found["status"]["adopted"]["source"] == "Flux Kustomization flux-system/apps"
    after = {name: await bed.client.get(CONFIG_MAPS, name, bed.space) for name in names}
    for name, each in after.items():
        assert each["metadata"]["uid"] == before[name]["metadata"]["uid"]
        assert (each["data"], managers(each)) == ({"n": "1"}, {MANAGER})
        assert set(each["metadata"]["labels"]) == {SETTINGS.owner_label}
    await bed.check_foreign()
