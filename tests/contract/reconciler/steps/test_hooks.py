"""The hooks of a chart in the life of a module. How one event is run is tested with ``reconciler.hooks``."""

import shutil
from pathlib import Path

import pytest

from governor.kube.objects import Object
from governor.reconciler.steps import hooks
from tests.contract.kube.applyset.bed import CONFIG_MAPS, SECRETS, config_map, exists
from tests.contract.reconciler.bed import condition, state
from tests.contract.reconciler.hooks.bed import JOBS, TIME
from tests.contract.reconciler.steps.bed import ModuleBed, listed

EVENTS = (
    "pre-install",
    "post-install",
    "pre-upgrade",
    "post-upgrade",
    "pre-rollback",
    "post-rollback",
    "pre-delete",
    "post-delete",
    "test",
)
MARKS = """
{{- range $event := splitList "," .Values.events }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: hook-{{ $event }}
  annotations: {helm.sh/hook: {{ $event }}, helm.sh/hook-delete-policy: hook-failed}
data: {note: {{ $.Values.note | quote }}}
{{- end }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: main}
data: {note: {{ .Values.note | quote }}}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: prepare
  annotations: {helm.sh/hook: pre-install}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: local.test/none:1}]}
"""


async def runs(bed: ModuleBed) -> dict[str, str]:
    """Return the note of the last run of each hook, by event."""
    found = [each async for each in bed.client.list(CONFIG_MAPS, bed.space)]
    marks = {each["metadata"]["name"]: each["data"]["note"] for each in found if "note" in each.get("data", {})}
    return {name.removeprefix("hook-"): note for name, note in marks.items() if name.startswith("hook-")}


async def test_hooks_run_for_the_change_that_they_are_for_and_for_no_repair(bed: ModuleBed) -> None:
    chart = bed.write_chart("marks", marks=MARKS)
    await bed.add("orders", chart=chart, values={"events": ",".join(EVENTS)})
    await bed.deploy("orders", values={"note": "1"})
    first = {"pre-install": "1", "post-install": "1"}
    assert await runs(bed) == first
    await bed.edit("main", note="stolen")
    await bed.has_data("main", {"note": "1"})
    await bed.becomes("orders", "Ready")
    assert await runs(bed) == first
    found = await bed.deploy("orders", values={"note": "2"})
    second = first | {"pre-upgrade": "2", "post-upgrade": "2"}
    assert await runs(bed) == second
    assert succeeded(found) == {"pre-upgrade", "post-upgrade"}
    found = await bed.deploy("orders", values={"note": "1"})
    assert await runs(bed) == second | {"pre-rollback": "1", "post-rollback": "1"}
    assert found["status"]["lastApplied"]["operation"] == "rollback"


async def test_an_install_hook_runs_again_until_it_has_succeeded_and_holds_back_the_objects(bed: ModuleBed) -> None:
    chart = bed.write_chart("jobs", jobs=JOB, rest="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: main}\n")
    await bed.add("orders", chart=chart)
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "HookRunning")
    assert "waiting for the pre-install hook Job.batch prepare" in found["status"]["message"]
    assert (state(found), condition(found, "Deployed")["status"]) == ("Processing", "False")
    first = await bed.find(JOBS, "prepare")
    await fail(bed, "prepare")
    await bed.has_event("orders", "Warning", "HookFailed")
    assert await bed.data("main") is None

    async def is_another() -> bool:
        again = await bed.find(JOBS, "prepare")
        return first is not None and again is not None and again["metadata"]["uid"] != first["metadata"]["uid"]

    await bed.until(is_another)
    await complete(bed, "prepare")
    found = await bed.becomes("orders", "Ready")
    assert "operation" not in found["status"]["lastApplied"], "an install"
    assert await bed.data("main") == {}


async def test_a_failed_hook_is_not_run_again_at_once_although_its_own_objects_change(
    bed: ModuleBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MIN_PAUSE_S", 3600.0)
    monkeypatch.setattr(hooks, "MAX_PAUSE_S", 3600.0)
    policies = {"helm.sh/hook": "pre-install", "helm.sh/hook-delete-policy": "before-hook-creation,hook-failed"}
    await bed.add(
        "orders", chart=bed.write_chart("jobs", jobs=JOB.replace("{helm.sh/hook: pre-install}", str(policies)))
    )
    await bed.install("orders", "orders")
    await bed.becomes("orders", "HookRunning")
    await fail(bed, "prepare")
    found = await bed.becomes("orders", "HookFailed")
    for number in range(2):
        await bed.add(f"m{number}", values=listed(config_map(f"m{number}")))
        await bed.deploy(f"m{number}")
    assert await bed.find(JOBS, "prepare") is None
    assert (await bed.becomes("orders", "HookFailed"))["status"]["message"] == found["status"]["message"]
    await bed.install("orders", "orders", values={"changed": True})
    await bed.until(lambda: bed.find(JOBS, "prepare"))
    await complete(bed, "prepare")
    await bed.becomes("orders", "Ready", values={"changed": True})


async def fail(bed: ModuleBed, name: str) -> None:
    why = {"status": "True", "reason": "BackoffLimitExceeded", "message": "no more", "lastTransitionTime": TIME}
    conditions = [why | {"type": "FailureTarget"}, why | {"type": "Failed"}]
    await bed.write_status(JOBS, name, {"startTime": TIME, "conditions": conditions})


async def complete(bed: ModuleBed, name: str) -> None:
    done = {"status": "True", "lastTransitionTime": TIME}
    conditions = [done | {"type": "SuccessCriteriaMet"}, done | {"type": "Complete"}]
    await bed.write_status(JOBS, name, {"startTime": TIME, "completionTime": TIME, "conditions": conditions})


async def test_delete_hooks_run_without_their_chart_and_vanish_with_the_module(bed: ModuleBed) -> None:
    chart = bed.write_chart("marks", marks=MARKS)
    await bed.add("orders", chart=chart, values={"events": "pre-delete,post-delete"})
    await bed.deploy("orders", values={"note": "1"})
    assert await exists(bed.client, SECRETS, "release-orders", bed.namespace)
    await forget_chart(bed, chart)
    await bed.client.patch(CONFIG_MAPS, "main", bed.space, {"metadata": {"finalizers": ["a.b/c"]}}, manager="user")
    await bed.delete("Installation", "orders")
    await bed.becomes("orders", "Removing")
    assert await runs(bed) == {"pre-delete": "1"}
    await bed.client.patch(
        CONFIG_MAPS, "hook-pre-delete", bed.space, {"metadata": {"finalizers": ["a.b/c"]}}, manager="user"
    )
    await bed.client.patch(CONFIG_MAPS, "main", bed.space, {"metadata": {"finalizers": None}}, manager="user")

    await bed.shows("ModuleInstance", "orders.local", lambda each: succeeded(each) >= {"pre-delete", "post-delete"})
    await bed.client.patch(
        CONFIG_MAPS, "hook-pre-delete", bed.space, {"metadata": {"finalizers": None}}, manager="user"
    )
    await bed.gone("ModuleInstance", "orders.local")
    assert await runs(bed) == {}
    assert not await exists(bed.client, SECRETS, "release-orders", bed.namespace)


def succeeded(found: Object) -> set[str]:
    """Return the events whose hooks have succeeded."""
    return {each["event"] for each in found["status"].get("hooks", ()) if each["state"] == "Succeeded"}


async def forget_chart(bed: ModuleBed, chart: Path) -> None:
    """Delete the Module, its chart, and every copy of it."""
    shutil.rmtree(chart)
    shutil.rmtree(bed.charts)
    await bed.delete("Module", "orders-1.0.0")


async def test_a_hook_for_an_unknown_event_is_refused_by_name(bed: ModuleBed) -> None:
    unknown: Object = config_map("odd")
    unknown["metadata"]["annotations"] = {"helm.sh/hook": "pre-instal"}
    await bed.add("orders", values=listed(unknown, config_map("a")))
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "HookUnknown")
    assert (state(found), found["status"]["actor"]) == ("Error", "operator")
    assert "pre-instal of ConfigMap odd" in found["status"]["message"]
    assert await bed.data("a") is None
