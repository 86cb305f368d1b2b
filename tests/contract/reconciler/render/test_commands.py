"""``governor module render`` and ``governor module digest``, from files and from a hub on a real API server."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from governor.errors import Kind
from governor.kube.client import Client
from governor.process.exit_codes import EXIT_CODE
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.render.request import LookupCall
from governor.reconciler.render.target import capabilities_of, lookup_in
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import CONFIG_MAPS, SECRETS
from tests.contract.reconciler.bed import LOCAL, HubBed, manifest
from tests.contract.reconciler.render.bed import CHARTS, chart, config_map
from tests.contract.reconciler.test_setup import governor_command

PASSWORD = "hunter2-hunter2"


@pytest.fixture
def installed(programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs["renderer"].parent))


def documents(path: Path, **installation: Any) -> str:
    module = {"module": "small", "version": "1.0.0", "chart": {"directory": str(path), "digest": digest_of(path)}}
    wanted = {"module": "small", "version": "1.0.0", "cluster": "local", **installation}
    found = [manifest("Module", "small-1.0.0", module), manifest("Installation", "small", wanted)]
    return yaml.safe_dump_all(found)


def write(directory: Path, text: str) -> str:
    (directory / "documents.yaml").write_text(text)
    return str(directory / "documents.yaml")


@pytest.mark.usefixtures("installed")
async def test_a_module_in_files_is_rendered_without_a_cluster(tmp_path: Path) -> None:
    file = write(tmp_path, documents(CHARTS / "small", values={"replicas": 4, "password": PASSWORD}))
    code, output, errors = await governor_command("module", "render", "-f", file)
    assert (code, errors) == (0, "")
    objects = {each["kind"]: each for each in yaml.safe_load_all(output)}
    assert len(objects) == 7
    assert objects["Deployment"]["spec"]["replicas"] == 4
    assert objects["Secret"]["data"] == {"password": "***"}
    assert "# Source: small/templates/workload.yaml" in output


@pytest.mark.usefixtures("installed")
async def test_hooks_are_shown_with_their_events(tmp_path: Path) -> None:
    file = write(tmp_path, documents(CHARTS / "platform"))
    _, output, _ = await governor_command("module", "render", "small", "-f", file, "--kube-version=v1.33.0")
    hook = "# Hook: pre-install, pre-upgrade, weight -5, deleted on before-hook-creation, hook-succeeded"
    assert hook in output
    assert "v1.33.0" in output


@pytest.mark.usefixtures("installed")
async def test_unknown_hooks_are_reported_to_the_user(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd, annotations: {helm.sh/hook: 'crd-install'}}"
    file = write(tmp_path, documents(chart(tmp_path, odd=text)))
    code, output, errors = await governor_command("module", "render", "-f", file)
    assert (code, output) == (0, "")
    assert errors == (
        "unknown hook crd-install of ConfigMap odd in sample/templates/odd.yaml: a module with it is refused\n"
    )


WRONG = {
    "an unknown module": (
        ["module", "render", "other", "-f", "FILE"],
        "enables other on the cluster 'local'; the files install",
    ),
    "an unknown cluster": (["module", "render", "-f", "FILE", "--cluster=far"], "no Cluster is called far"),
    "no module": (["module", "render"], "name a module of the hub, or files with -f"),
    "a chart that is none": (["module", "digest", "DIRECTORY"], "has no Chart.yaml"),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("case", WRONG)
async def test_mistakes_are_explained(tmp_path: Path, case: str) -> None:
    arguments, expected = WRONG[case]
    file = write(tmp_path, documents(CHARTS / "small"))
    places = {"FILE": file, "DIRECTORY": str(tmp_path)}
    code, _, errors = await governor_command(*(places.get(each, each) for each in arguments))
    assert code != 0
    assert expected in errors


async def test_a_problem_of_the_documents_is_that_of_the_hub(tmp_path: Path) -> None:
    for installation, expected in (
        ({"version": "2.0.0"}, "there is no Module for small 2.0.0"),
        ({"valuesFrom": [{"secretRef": {"name": "s"}}]}, "valuesFrom needs a hub"),
        ({"valuesFromLabels": {"a": "b"}}, "has no label b"),
    ):
        file = write(tmp_path, documents(CHARTS / "small", **installation))
        code, _, errors = await governor_command("module", "render", "-f", file)
        assert code == EXIT_CODE[Kind.INVALID]
        assert expected in errors
    text = documents(CHARTS / "small").replace("digest:", "credentialsSecret: s\n    digest:", 1)
    _, _, errors = await governor_command("module", "render", "-f", write(tmp_path, text))
    assert "needs a hub" in errors
    file = write(tmp_path, "apiVersion: v1\nkind: Pod\n")
    _, _, errors = await governor_command("module", "render", "-f", file)
    assert "documents.yaml:1: only Module, Channel, Installation, Cluster" in errors


async def test_a_machine_without_a_renderer_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: dict[str, Path]
) -> None:
    file = write(tmp_path, documents(CHARTS / "small"))
    monkeypatch.setenv("PATH", str(tmp_path))
    _, _, errors = await governor_command("module", "render", "-f", file)
    assert "neither governor-renderer nor helm is in the PATH: install one of them" in errors
    monkeypatch.setenv("PATH", str(programs["helm"].parent))
    code, output, _ = await governor_command("module", "render", "-f", file)
    assert (code, output.count("# Source: ")) == (0, 7)


async def test_the_digest_of_a_chart_is_printed() -> None:
    outcome = await governor_command("module", "digest", str(CHARTS / "small"))
    assert outcome == (0, f"{digest_of(CHARTS / 'small')}\n", "")


LOOKING = config_map(
    '  found: {{ (lookup "v1" "ConfigMap" .Values.at "pinned").data.size | quote }}\n'
    "  password: {{ .Values.password | quote }}\n"
    '  served: {{ .Capabilities.APIVersions.Has "runtime-governor.dev/v1alpha1/Module" | quote }}'
)


@pytest.mark.usefixtures("installed")
async def test_a_module_of_a_hub_is_rendered_for_its_cluster(
    hub: HubBed, control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    monkeypatch.setenv("GOVERNOR_RECONCILER_NAMESPACE", hub.namespace)
    path = chart(tmp_path, found=LOOKING)
    metadata = {"namespace": hub.namespace}
    pinned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "pinned", **metadata},
        "data": {"size": "5"},
    }
    await hub.client.create(CONFIG_MAPS, pinned, manager="user")
    data = {"values.yaml": base64.b64encode(f"password: {PASSWORD}".encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", **metadata}, "data": data}
    await hub.client.create(SECRETS, secret, manager="user")
    async with hub.reconciling():
        await hub.apply("Cluster", "local", LOCAL | {"paused": True})
        await hub.add_module("looking", chart={"directory": str(path), "digest": digest_of(path)})
        sources = [{"secretRef": {"name": "s"}}]
        await hub.install("looking", "looking", values={"at": hub.namespace}, valuesFrom=sources)
        await hub.shows("ModuleInstance", "looking.local", lambda each: each.get("status"))
    code, output, errors = await governor_command("module", "render", "looking")
    assert (code, errors) == (0, "")
    (found,) = yaml.safe_load_all(output)
    assert found["data"] == {"found": "5", "password": "***", "served": "true"}


async def test_lookups_see_the_objects_of_the_cluster(client: Client, namespace: str) -> None:
    look_up = lookup_in(client)
    found = await look_up(LookupCall("v1", "Namespace", "", namespace))
    assert found is not None
    assert found["metadata"]["name"] == namespace
    assert await look_up(LookupCall("v1", "ConfigMap", namespace, "absent")) is None
    listed = await look_up(LookupCall("v1", "Namespace", "ignored", ""))
    assert listed is not None
    assert namespace in [each["metadata"]["name"] for each in listed["items"]]
    assert listed["kind"] == "NamespaceList"


async def test_capabilities_are_those_that_the_cluster_serves(client: Client) -> None:
    found = await capabilities_of(client)
    assert found.kube_version.startswith("v1.")
    assert found.api_versions is not None
    assert {"v1", "v1/Pod", "apps/v1", "apps/v1/Deployment"} <= set(found.api_versions)
