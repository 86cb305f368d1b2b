"""What holds for each chart: rendered as in committed snapshots, validated by a real API server, with a schema.

After an intended change, rewrite the snapshots: ``GOVERNOR_WRITE_SNAPSHOTS=1 .venv/bin/pytest tests/contract/charts``.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from governor import __version__
from testbed.kube.control_plane import ControlPlane
from tests.contract.charts.bed import AGENT, RECONCILER, SERVER, Chart, Helm, manifests

RESTRICTED = (
    "networkPolicy.enabled=true",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
    "podDisruptionBudget.enabled=true",
)
CASES: dict[Chart, dict[str, tuple[str, ...]]] = {
    SERVER: {
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
            "prometheusAnnotations=false",
        ),
        "restricted": (*RESTRICTED, "networkPolicy.from[0].ipBlock.cidr=192.0.2.0/24"),
    },
    AGENT: {
        "default": (),
        "joining": ("joinToken.existingSecret=cluster-1-join",),
        "joining-inline": ("joinToken.value=rgj1.abc",),
        "behind-a-proxy": (
            "proxy.url=http://proxy.example.com:3128",
            r"proxy.noProxy=.svc\,10.0.0.0/8",
            "ca.existingConfigMap=company-ca",
        ),
        "behind-a-proxy-with-password": ("proxy.existingSecret=proxy", "ca.existingSecret=company-ca"),
        "other-places": (
            "image.tag=1.2.3",
            "image.pullSecrets={registry}",
            "sidecarAccess=direct",
            "preflight=false",
            "adoptedManagers={helm,kubectl}",
            "replicas=1",
            "resyncInterval=60",
            "runtimeStatus.install=false",
            "resources.limits.memory=1Gi",
            "logLevel=debug",
            "prometheusAnnotations=false",
        ),
        "restricted": RESTRICTED,
        "observing": ("observe.enabled=true", "observe.output=json"),
    },
    RECONCILER: {
        "default": (),
        "without-cluster-role": ("clusterRole=",),
        "scale-to-zero": ("scaleToZero=true", "replicas=2"),
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
    },
}
REJECTED: dict[Chart, tuple[dict[str, str], ...]] = {
    SERVER: (
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
            "podDisruptionBudget.enabled=1": "podDisruptionBudget.enabled: Invalid type. Expected: boolean",
        },
        {
            "publicUrl=https://governor.example.com/path": "publicUrl: Does not match pattern '^(https://",
            "persistence.size=big": "persistence.size: Does not match pattern",
        },
        {"image.repository=": "image.repository is required: there is no public registry"},
        {"ingress.enabled=true": "ingress.host is required with ingress.enabled"},
    ),
    AGENT: (
        {
            "replicas=two": "replicas: Invalid type. Expected: integer, given: string",
            "replicaCount=2": "Additional property replicaCount is not allowed",
            "namespaces={Orders}": "namespaces.0: Does not match pattern",
            "joinToken.value=rgt1.a.b": "joinToken.value: Does not match pattern",
            "joinToken.file=x": "Additional property file is not allowed",
            "sidecarAccess=tunnel": 'sidecarAccess must be one of the following: "auto", "direct", "proxy"',
            "resyncInterval=0": "resyncInterval: Must be greater than 0",
            "proxy.url=https://proxy.example.com": "proxy.url: Does not match pattern",
            "networkPolicy.egressPorts={70000}": "networkPolicy.egressPorts.0: Must be less than or equal to 65535",
            "runtimeStatus.install=maybe": "runtimeStatus.install: Invalid type. Expected: boolean, given: string",
            "observe.output=yaml": 'observe.output must be one of the following: "table", "json"',
        },
        {"proxy.url=http://me:password@proxy.example.com": "proxy.url: Does not match pattern"},
        {"namespaces=null": "namespaces is required"},
        {"image.repository=": "image.repository is required: there is no public registry"},
        {"joinToken.value=rgj1.a,joinToken.existingSecret=b": "set either joinToken.value or joinToken.existingSecret"},
        {"ca.existingConfigMap=a,ca.existingSecret=b": "set either ca.existingConfigMap or ca.existingSecret"},
        {"proxy.url=http://a:1,proxy.existingSecret=b": "set either proxy.url or proxy.existingSecret"},
        {"observe.enabled=true,joinToken.value=rgj1.a": "set either observe.enabled or joinToken"},
    ),
    RECONCILER: (
        {
            "replicaCount=2": "Additional property replicaCount is not allowed",
            "replicas=9": "replicas: Must be less than or equal to 5",
            "unknownAfter=0": "unknownAfter: Must be greater than 0",
            "clusterRole=a/b": "clusterRole: Does not match pattern",
            "localCluster=maybe": "localCluster: Invalid type. Expected: boolean, given: string",
            "logLevel=loud": 'logLevel must be one of the following: "debug", "info", "warning", "error"',
            "resources.limits.memory=much": "resources.limits.memory: Does not match pattern",
        },
        {"image.repository=": "image.repository is required: there is no public registry"},
    ),
}
"""Values and the reasons for their rejection; a run reports all violations of the schema, but one failed template."""

CHARTS = pytest.mark.parametrize("chart", CASES, ids=lambda chart: chart.name)
EACH_CASE = pytest.mark.parametrize(
    ("chart", "case"), [(chart, case) for chart, cases in CASES.items() for case in cases], ids=str
)
EACH_REJECTION = pytest.mark.parametrize(
    ("chart", "values"),
    [(chart, values) for chart, several in REJECTED.items() for values in several],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else str(given),
)


@CHARTS
def test_helm_lint_reports_nothing(helm: Helm, chart: Chart) -> None:
    outcome = helm.run("lint", "--strict", str(chart.path), *chart.settings())

    assert outcome.returncode == 0, outcome.stdout
    assert "WARNING" not in outcome.stdout


@CHARTS
def test_the_chart_has_the_version_of_the_product(chart: Chart) -> None:
    """The chart's own version must be a semantic version, which writes a pre-release with a hyphen."""
    described = chart.read("Chart.yaml")

    assert described["appVersion"] == __version__
    assert described["version"] == __version__.replace(".dev", "-dev.")


@EACH_CASE
def test_rendered_manifests_match_the_snapshots(helm: Helm, chart: Chart, case: str) -> None:
    rendered = chart.render(helm, *CASES[chart][case])

    chart.compare(f"{case}.yaml", rendered)
    assert [each["kind"] for each in manifests(rendered) if each["kind"] == "Secret"] == (
        ["Secret"] if case == "joining-inline" else []
    )


@EACH_REJECTION
def test_invalid_values_are_rejected_by_name(helm: Helm, chart: Chart, values: dict[str, str]) -> None:
    outcome = helm.run("template", chart.name, str(chart.path), *chart.settings(*values))

    assert outcome.returncode != 0
    assert [reason for reason in values.values() if reason not in outcome.stderr] == []


@CHARTS
def test_every_value_has_a_default_and_a_schema(chart: Chart) -> None:
    schema = chart.read("values.schema.json")

    assert set(ruled(schema)) == set(named(chart.read("values.yaml"), schema))


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


@CHARTS
def test_long_and_numeric_release_names_become_valid_names(helm: Helm, chart: Chart) -> None:
    for release in ("7", "a-name-that-is-as-long-as-helm-lets-a-name-of-a-release-be"[:53]):
        rendered = helm.output("template", release, str(chart.path), "--namespace=8", *chart.settings())
        for manifest in manifests(rendered):
            name = manifest["metadata"]["name"].removeprefix("8:").removeprefix("governor-settings.")
            assert len(name.removesuffix(":cluster-admin")) <= 52
            assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == release
            assert isinstance(manifest["metadata"].get("namespace", ""), str)


@EACH_CASE
async def test_the_api_server_accepts_every_manifest(
    helm: Helm, control_plane: ControlPlane, places: None, chart: Chart, case: str
) -> None:
    rendered = chart.render(helm, *CASES[chart][case])

    accepted = await control_plane.kubectl("create", "--dry-run=server", "--output=name", "-f", "-", stdin=rendered)

    assert len(accepted.splitlines()) == len(manifests(rendered))


@CHARTS
async def test_restricted_namespaces_admit_the_pod(
    helm: Helm, control_plane: ControlPlane, namespace: str, chart: Chart
) -> None:
    rendered = manifests(chart.render(helm))
    (template,) = (each["spec"]["template"] for each in rendered if "template" in each.get("spec", {}))
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"]["name"] = "admitted"

    created = await control_plane.kubectl("create", f"--namespace={namespace}", "-f", "-", stdin=json.dumps(pod))

    assert created == "pod/admitted created\n"


@EACH_CASE
def test_notes_match_the_snapshots(helm: Helm, control_plane: ControlPlane, chart: Chart, case: str) -> None:
    place = ("--namespace=fleet", f"--kubeconfig={control_plane.kubeconfig}", "--dry-run=client")
    printed = helm.output("install", chart.name, str(chart.path), *place, *chart.settings(*CASES[chart][case]))

    chart.compare(f"{case}.notes.txt", printed.partition("NOTES:\n")[2])
