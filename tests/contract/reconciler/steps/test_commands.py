"""``governor module`` and ``governor cluster``: modules as their users see them.

No reconciler runs meanwhile: it would log to the output of the commands.
"""

import base64
import json
from pathlib import Path

import pytest

from testbed.recipes import provide
from tests.contract.kube.applyset.bed import CONFIG_MAPS, SECRETS
from tests.contract.reconciler.bed import LOCAL
from tests.contract.reconciler.steps.bed import ModuleBed
from tests.contract.reconciler.test_setup import governor_command

PASSWORD = "hunter2-hunter2"
MAIN = """
apiVersion: v1
kind: ConfigMap
metadata: {name: main}
data:
  number: {{ .Values.number | quote }}
  login: "user:{{ .Values.password }}"
  installed: {{ .Release.IsInstall | quote }}
---
apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {token: {{ randAlphaNum 24 }}}
{{- if .Values.more }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: more}
{{- end }}
"""


@pytest.fixture
async def orders(idle: ModuleBed, monkeypatch: pytest.MonkeyPatch) -> ModuleBed:
    """A hub with an installed module whose drift is reported only; commands find the hub and a renderer."""
    bed = idle
    monkeypatch.setenv("KUBECONFIG", str(bed.plane.kubeconfig))
    monkeypatch.setenv("GOVERNOR_RECONCILER_NAMESPACE", bed.namespace)
    monkeypatch.setenv("PATH", str(provide(["renderer"])["renderer"].parent))
    data = {"values.yaml": base64.b64encode(f"password: {PASSWORD}".encode()).decode()}
    metadata = {"name": "login", "namespace": bed.namespace}
    await bed.client.create(
        SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}, manager="user"
    )
    await bed.add("orders", chart=bed.write_chart("orders", main=MAIN), drift={"mode": "warn"})
    async with bed.reconciling():
        await install(bed, number=1, more=True)
        await bed.becomes("orders", "Ready")
        await bed.shows("Cluster", "local", lambda each: each["status"].get("ready") == "1/1")
    return bed


INSTALLATION = """
apiVersion: runtime-governor.dev/v1alpha1
kind: Installation
metadata: {name: orders}
spec:
  module: orders
  version: 1.0.0
  cluster: local
  values: {number: 7}
  valuesFrom: [{secretRef: {name: login}}]
"""


async def test_a_dry_run_of_a_file_returns_the_manifest_and_what_would_change(
    orders: ModuleBed, tmp_path: Path
) -> None:
    file = tmp_path / "change.yaml"
    file.write_text(INSTALLATION)
    before = await orders.get("ModuleInstance", "orders.local")
    code, output, _ = await governor_command("module", "diff", "orders", "-f", str(file), "--manifest", "-o", "json")
    assert code == 1
    found = json.loads(output)
    changes = {each["object"].split("/")[-1]: each["change"] for each in found["differences"]}
    assert changes == {"main": "changed", "more": "removed"}
    assert 'number: "7"' in found["manifest"]
    assert PASSWORD not in output
    code, output, _ = await governor_command("module", "diff", "orders", "-f", str(file))
    assert code == 1
    assert "kind: ConfigMap" not in output, "without the manifest"
    assert await orders.get("ModuleInstance", "orders.local") == before, "nothing is written"
    assert (await orders.data("main") or {})["number"] == "1"


async def test_a_rollback_is_requested_and_withdrawn(orders: ModuleBed) -> None:
    code, _, errors = await governor_command("module", "rollback", "orders")
    assert code != 0
    assert "there is nothing to roll back to" in errors
    async with orders.reconciling():
        await install(orders, number=2)
        await orders.becomes("orders", "Ready", values={"number": 2})
    assert (await governor_command("module", "rollback", "orders"))[1].startswith("orders on local is rolled back")
    async with orders.reconciling():
        await orders.becomes("orders", "RolledBack")
    assert (await orders.data("main") or {})["number"] == "1"
    assert (await governor_command("module", "rollback", "orders", "--undo"))[0] == 0
    async with orders.reconciling():
        await orders.becomes("orders", "Ready")
    assert (await orders.data("main") or {})["number"] == "2"


async def install(bed: ModuleBed, **values: object) -> None:
    await bed.install("orders", "orders", values=values, valuesFrom=[{"secretRef": {"name": "login"}}])


@pytest.mark.usefixtures("orders")
async def test_the_conditions_of_a_module_are_shown() -> None:
    code, output, _ = await governor_command("module", "list")
    assert (code, output.split()[6:10]) == (0, ["orders", "local", "1.0.0", "Ready"])
    code, output, _ = await governor_command("module", "describe", "orders")
    assert code == 0
    for line in ("State:         Ready: 3 objects are ready", "Deployed: True", "History:\n  1.0.0, "):
        assert line in output
    code, output, _ = await governor_command("cluster", "describe", "local")
    assert (code, "Modules (1/1 ready):\n  MODULE  VERSION  STATE" in output) == (0, True)
    code, output, _ = await governor_command("module", "render", "orders")
    assert (code, PASSWORD in output, "login: user:***" in output) == (0, False, True)


async def test_a_diff_shows_drift_and_what_a_pending_change_would_do(orders: ModuleBed) -> None:
    assert await governor_command("module", "diff", "orders") == (0, "", "")
    await orders.edit("main", number="stolen")
    main = f"ConfigMap {orders.space}/main"
    drift = f'{main}: changed\n  ~ data.number: "stolen" -> "1"\n'
    assert await governor_command("module", "diff", "orders") == (1, drift, "")

    await orders.apply("Cluster", "local", LOCAL | {"paused": True})
    async with orders.reconciling():
        await install(orders, number=PASSWORD)
        await orders.shows(
            "ModuleInstance", "orders.local", lambda each: each["spec"]["values"] == {"number": PASSWORD}
        )
    code, output, _ = await governor_command("module", "diff", "orders", "-o", "json")
    assert code == 1
    changed = {"path": "data.number", "operation": "changed", "old": "stolen", "new": "***"}
    installed = {"path": "data.installed", "operation": "changed", "old": "true", "new": "false"}
    first, removed = json.loads(output)
    assert (first["object"], first["change"]) == (main, "changed")
    assert sorted(first["differences"], key=str) == sorted([changed, installed], key=str)
    assert removed == {"object": f"ConfigMap {orders.space}/more", "change": "removed"}
    await orders.client.delete(CONFIG_MAPS, "main", orders.space)
    _, output, _ = await governor_command("module", "diff", "orders")
    assert output.splitlines()[0] == f"{main}: created"


async def test_a_module_that_is_not_there_is_explained(orders: ModuleBed) -> None:
    async with orders.reconciling():
        await orders.apply("Installation", "gone", {"module": "gone", "channel": "stable", "cluster": "local"})
        await orders.shows("Cluster", "local", lambda each: "ChannelMissing" in str(each.get("status")))
    assert "there is no Channel stable" in (await governor_command("module", "list"))[1]
    commands = {
        "gone": "module gone is not on local: there is no Channel stable: create it, or name another",
        "none": "module none is not on local: no Installation asks for it; `governor module list` shows what exists",
    }
    for name, expected in commands.items():
        for command in ("describe", "diff", "render", "rollback"):
            code, output, errors = await governor_command("module", command, name)
            assert (code, output, expected in errors) == (4, "", True), errors
