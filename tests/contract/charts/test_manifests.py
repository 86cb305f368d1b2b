"""Plain manifests from the charts, as ``kubectl apply`` takes them."""

from pathlib import Path

import pytest
import yaml

from testbed.kube.control_plane import ControlPlane
from tests.contract.charts.bed import manifests
from tools.manifests import main

IMAGE = {"repository": "registry.example.com/governor"}


@pytest.mark.parametrize("chart", ["governor-agent", "governor-server", "governor-reconciler"])
async def test_kubectl_applies_the_manifests_and_applies_them_again_without_a_change(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, chart: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values, output = tmp_path / "values.yaml", tmp_path / "out" / "all.yaml"
    more = {"namespaces": [namespace], "joinToken": {"existingSecret": "join"}} if chart == "governor-agent" else {}
    values.write_text(yaml.safe_dump({"image": IMAGE, **more}))

    assert main([chart, f"--namespace={namespace}", f"--values={values}", f"--output={output}"]) == 0

    rendered = manifests(output.read_text())
    labels = {item for each in rendered for item in each["metadata"]["labels"].items()}
    assert {item for item in labels if "helm" in "".join(item).lower()} == set()
    cluster_wide = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    assert {each["metadata"].get("namespace", "") for each in rendered if each["kind"] not in cluster_wide} == {
        namespace
    }
    first = (await control_plane.kubectl("apply", "-f", str(output))).splitlines()
    again = (await control_plane.kubectl("apply", "-f", str(output))).splitlines()
    assert len(first) == len(again) == len(rendered)
    configured = [line.split()[0] for line in again if not line.endswith(" unchanged")]
    # kubectl sends the selector of a budget with each patch, and calls that configured; the spec stays the same.
    assert [each for each in configured if not each.startswith("poddisruptionbudget")] == []
    for each in configured:
        get = ("get", each, f"--namespace={namespace}", "--output=jsonpath={.metadata.generation}")
        assert await control_plane.kubectl(*get) == "1"
    assert f"kubectl apply --server-side -f {output}" in capsys.readouterr().out
    await control_plane.kubectl("delete", "--wait=false", "-f", str(output))


def test_what_the_chart_rejects_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "all.yaml"

    assert main(["governor-agent", f"--output={output}"]) == 1

    assert "is required" in capsys.readouterr().err
    assert not output.exists()
