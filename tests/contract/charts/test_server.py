"""The server's chart as rendered by helm, compared with committed snapshots and validated by a real API server.

After an intended change, rewrite the snapshots: ``GOVERNOR_WRITE_SNAPSHOTS=1 .venv/bin/pytest tests/contract/charts``.
"""

import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from governor import __version__
from governor.process.settings import load
from governor.server.settings import Settings
from testbed.kube.control_plane import ControlPlane
from toolchain import cache
from toolchain.helm import HELM
from toolchain.repository import REPOSITORY

CHART = REPOSITORY / "charts" / "governor-server"
SNAPSHOTS = Path(__file__).parent / "snapshots" / "governor-server"
IMAGE = "image.repository=registry.example.com/governor"
CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    "tls-from-secret": ("tls.existingSecret=governor-tls", "publicUrl=https://governor.example.com:8420/"),
    "own-tls-elsewhere": ("publicUrl=https://192.0.2.10:8420", "service.type=LoadBalancer"),
    "ingress": (
        "ingress.enabled=true",
        "ingress.host=governor.example.com",
        "ingress.className=nginx",
        "ingress.tlsSecret=governor-example-com",
        r"ingress.annotations.nginx\.ingress\.kubernetes\.io/backend-protocol=HTTPS",
    ),
    "existing-key": ("sealingKey.existingSecret=governor-sealing",),
    "other-places": (
        "image.tag=1.2.3",
        "image.pullSecrets={registry}",
        "persistence.size=20Gi",
        "persistence.storageClassName=fast",
        "resources.limits.memory=1Gi",
        "logLevel=debug",
    ),
}
REJECTED: tuple[dict[str, str], ...] = (
    {
        "replicaCount=2": "Additional property replicaCount is not allowed",
        "tls.secretName=x": "Additional property secretName is not allowed",
        "ingress.enabled=maybe": "ingress.enabled: Invalid type. Expected: boolean, given: string",
        "publicUrl=http://governor.example.com": "publicUrl: Does not match pattern '^(https://",
        "persistence.size=0": "persistence.size: Invalid type. Expected: string",
        "service.type=ExternalName": (
            'service.type must be one of the following: "ClusterIP", "NodePort", "LoadBalancer"'
        ),
        "tls.existingSecret=Not_A_Name": "tls.existingSecret: Does not match pattern",
        "logLevel=loud": 'logLevel must be one of the following: "debug", "info", "warning", "error"',
        "image.pullPolicy=Sometimes": (
            'image.pullPolicy must be one of the following: "Always", "IfNotPresent", "Never"'
        ),
        "resources.limits.memory=much": "resources.limits.memory: Does not match pattern",
    },
    {
        "publicUrl=https://governor.example.com/path": "publicUrl: Does not match pattern '^(https://",
        "persistence.size=big": "persistence.size: Does not match pattern",
    },
    {"image.repository=": "image.repository is required: there is no public registry"},
    {"ingress.enabled=true": "ingress.host is required with ingress.enabled"},
)
"""Values and the reasons for their rejection; a run reports all violations of the schema, but one failed template."""

Manifest = dict[str, Any]


class Helm:
    """Helm with a private home directory."""

    def __init__(self, home: Path) -> None:
        homes = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = {"HOME": str(home), **homes}
        self._program = cache.provide(HELM)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command and return its outcome, failed or not."""
        argv = [str(self._program), *arguments]
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False, timeout=60)

    @functools.cache  # noqa: B019 - lives as long as the module
    def render(self, *values: str) -> str:
        """Return the manifests of a release with the chart's name, rendered once."""
        rendered = self.run("template", "governor-server", str(CHART), "--namespace=fleet", *settings(*values))
        assert rendered.returncode == 0, rendered.stderr
        return rendered.stdout


def settings(*values: str) -> Iterator[str]:
    return (f"--set={value}" for value in (IMAGE, *values))


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture
async def namespace(control_plane: ControlPlane) -> str:
    """The name of a new namespace that admits only pods which are restricted."""
    metadata = {"generateName": "chart-", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    created = await control_plane.ask("POST", "/api/v1/namespaces", {"metadata": metadata})
    return str(created["metadata"]["name"])


def compare(name: str, text: str) -> None:
    """Compare a text with its snapshot; rewrite the snapshot first if requested."""
    file = SNAPSHOTS / name
    if os.environ.get("GOVERNOR_WRITE_SNAPSHOTS") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "if the change is intended, rewrite the snapshots and review the diff"


def manifests(rendered: str) -> dict[str, Manifest]:
    """Return the manifests by kind, of which the chart has one each."""
    found = [each for each in yaml.safe_load_all(rendered) if each]
    by_kind = {each["kind"]: each for each in found}
    assert len(by_kind) == len(found)
    return by_kind


def test_helm_lint_reports_nothing(helm: Helm) -> None:
    outcome = helm.run("lint", "--strict", str(CHART), *settings())

    assert outcome.returncode == 0, outcome.stdout
    assert "WARNING" not in outcome.stdout


def test_the_chart_has_the_version_of_the_product() -> None:
    """The chart's own version must be a semantic version, which writes a pre-release with a hyphen."""
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert described["appVersion"] == __version__
    assert described["version"] == __version__.replace(".dev", "-dev.")


@pytest.mark.parametrize("case", CASES)
def test_rendered_manifests_match_the_snapshots_and_contain_no_secret(helm: Helm, case: str) -> None:
    rendered = helm.render(*CASES[case])

    compare(f"{case}.yaml", rendered)
    assert "Secret" not in manifests(rendered)


@pytest.mark.parametrize("values", REJECTED, ids=lambda values: next(iter(values)))
def test_invalid_values_are_rejected_by_name(helm: Helm, values: dict[str, str]) -> None:
    outcome = helm.run("template", "governor-server", str(CHART), *settings(*values))

    assert outcome.returncode != 0
    assert [reason for reason in values.values() if reason not in outcome.stderr] == []


def test_every_value_has_a_default_and_a_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    assert set(ruled(schema)) == set(named(values, schema))


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
def test_the_server_accepts_its_settings(helm: Helm, tmp_path: Path, case: str) -> None:
    text = manifests(helm.render(*CASES[case]))["ConfigMap"]["data"]["server.yaml"]
    (tmp_path / "sealing.key").write_text("00" * 32)
    file = tmp_path / "server.yaml"
    file.write_text(text.replace("/etc/governor/sealing", str(tmp_path)))

    taken = load(Settings, "server", environ={}, config=file)

    assert (taken.sealing_key is None) == (case != "existing-key")
    assert (taken.tls_certificate is None) == (case != "tls-from-secret")
    assert taken.pin_authority == (case != "ingress")
    assert {name for name in taken.tls_names if "192" in name} == ({"192.0.2.10"} if "elsewhere" in case else set())


def test_long_and_numeric_release_names_become_valid_names(helm: Helm) -> None:
    for release in ("7", "a-name-that-is-as-long-as-helm-lets-a-name-of-a-release-be"[:53]):
        rendered = helm.run("template", release, str(CHART), *settings())
        for manifest in manifests(rendered.stdout).values():
            assert len(manifest["metadata"]["name"]) <= 52
            assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == release


@pytest.mark.parametrize("case", CASES)
async def test_the_api_server_accepts_every_manifest(
    helm: Helm, control_plane: ControlPlane, namespace: str, case: str
) -> None:
    rendered = helm.render(*CASES[case])
    arguments = ("--dry-run=server", f"--namespace={namespace}", "--output=name", "-f", "-")

    accepted = (await control_plane.kubectl("create", *arguments, stdin=rendered)).splitlines()

    assert len(accepted) == len(manifests(rendered)) == (6 if case == "ingress" else 5)
    assert "statefulset.apps/governor-server" in accepted


async def test_restricted_namespaces_admit_the_pod(helm: Helm, control_plane: ControlPlane, namespace: str) -> None:
    template = manifests(helm.render(*CASES["existing-key"]))["StatefulSet"]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"]["name"] = "server"

    created = await control_plane.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(pod))

    assert created == "pod/server created\n"


@pytest.mark.parametrize("case", CASES)
async def test_notes_match_the_snapshots(helm: Helm, control_plane: ControlPlane, case: str) -> None:
    place = ("--namespace=fleet", f"--kubeconfig={control_plane.kubeconfig}")
    outcome = helm.run("install", "governor-server", str(CHART), "--dry-run=client", *place, *settings(*CASES[case]))
    assert outcome.returncode == 0, outcome.stderr
    _, _, notes = outcome.stdout.partition("NOTES:\n")

    compare(f"{case}.notes.txt", notes)
