"""The texts of ``governor module`` and ``governor cluster``."""

import datetime

import msgspec

from governor.domain.conditions import Actor
from governor.reconciler.descriptions import cluster_text, module_text, modules_table
from governor.reconciler.kinds.module_instance import ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from tests.unit.reconciler.bed import CREATED, cluster, digest, instance

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
SPEC = ModuleInstanceSpec(
    "orders", "local", "shop", CREATED, "2.0.0", digest("2.0.0"), "shop", "orders", depends_on=("dapr", "redis")
)
APPLIED = {"version": "1.0.0", "chartDigest": digest("1.0.0"), "valuesDigest": "x", "time": "2026-01-01T10:00:00Z"}
CONDITION = {
    "type": "Resolved",
    "status": "True",
    "reason": "Resolved",
    "message": "all\nthere\x1b[0m",
    "lastTransitionTime": "2026-01-01T11:50:00Z",
}
STATUS = {
    "state": "Ready",
    "observedGeneration": 1,
    "reason": "Resolved",
    "message": "it works",
    "conditions": [CONDITION],
    "lastApplied": APPLIED,
}


def test_modules_are_listed_by_cluster_and_name() -> None:
    held = msgspec.structs.replace(SPEC, module="a", hold=Problem("Conflict", "two of them", Actor.USER))
    text = modules_table([instance(SPEC, status=STATUS), instance(held)], NOW)
    assert text.splitlines() == [
        "MODULE  CLUSTER  VERSION  STATE    FOR  MESSAGE",
        "a       local    2.0.0    Warning  -    two of them",
        "orders  local    2.0.0    Ready    10m  it works",
    ]


def test_modules_without_an_instance_are_listed_from_the_status_of_their_cluster() -> None:
    line = {"module": "gone", "state": "Warning", "reason": "ChannelMissing", "message": "no Channel", "actor": "user"}
    known = line | {"module": "orders", "message": "older than that of the instance"}
    text = modules_table([instance(SPEC, status=STATUS)], NOW, [cluster(status={"modules": [line, known]})])
    assert text.splitlines() == [
        "MODULE  CLUSTER  VERSION  STATE    FOR  MESSAGE",
        "gone    local    -        Warning  -    no Channel",
        "orders  local    2.0.0    Ready    10m  it works",
    ]
    assert modules_table([], NOW, [cluster(status={})]) == ""


def test_a_module_is_described_with_conditions_and_history() -> None:
    text = module_text(instance(SPEC, status=STATUS), NOW)
    assert "Depends on:    dapr, redis" in text
    assert "Applied:       1.0.0" in text
    assert "State:         Ready: it works" in text
    assert "Action by" not in text
    assert "  Resolved: True for 10m, Resolved: all there\\x1b[0m" in text
    assert f"  1.0.0, 2h ago, chart {digest('1.0.0')}" in text


def test_a_module_on_hold_says_who_must_act() -> None:
    held = msgspec.structs.replace(SPEC, hold=Problem("Conflict", "two of them", Actor.USER))
    text = module_text(instance(held), NOW)
    assert "State:         Warning: two of them\nAction by:     user" in text
    assert "History:\n  nothing was applied yet" in text


def test_a_cluster_is_described_with_one_line_per_module() -> None:
    line = {
        "module": "orders",
        "state": "Error",
        "version": "2.0.0",
        "reason": "X",
        "message": "y",
        "actor": "operator",
    }
    counts = {"total": 3, "ready": 0, "progressing": 0, "warning": 0, "error": 3, "unknown": 0}
    status = {"state": "Error", "message": "bad", "ready": "0/3", "modules": [line], "counts": counts}
    text = cluster_text(cluster(labels={"region": "eu"}, status=status), NOW)
    assert "Labels:     region=eu" in text
    assert "State:      Error: bad" in text
    assert "  orders  2.0.0    Error  X       operator   y" in text
    assert "  and 2 more: kubectl get moduleinstances" in text


def test_a_cluster_that_was_never_observed_is_pending() -> None:
    assert "State:      Pending:" in cluster_text(cluster(), NOW)
