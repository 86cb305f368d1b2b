"""The modules of `make bench-reconciler`, and when they count as applied."""

from typing import Any

import msgspec
import pytest

from bench.reconciler.hub import installation, is_applied, module
from bench.reconciler.metrics import is_caught_up
from governor.reconciler.kinds.installation import Installation
from governor.reconciler.kinds.module import Module
from governor.reconciler.kinds.module_instance import ModuleInstance

DIGEST = f"sha256:{1:064x}"
APPLIED = {"version": "1.0.0", "chartDigest": DIGEST, "valuesDigest": "any", "time": "2026-01-01T00:00:00Z"}
READY = {"state": "Ready", "observedGeneration": 2, "lastApplied": APPLIED}
CAUGHT_UP = """
leader_election_master_status{name="governor-reconciler"} 1
controller_runtime_reconcile_total{controller="module-instances",result="success"} 10
controller_runtime_reconcile_total{controller="module-instances",result="requeue_after"} 10
controller_runtime_reconcile_total{controller="installations",result="success"} 90
controller_runtime_active_workers{controller="module-instances"} 0
workqueue_depth{name="module-instances"} 0
workqueue_depth{name="clusters"} 0
"""


def instance(revision: str = "second", **status: Any) -> ModuleInstance:
    spec = {
        "module": "module-0000",
        "cluster": "local",
        "installation": "module-0000",
        "installationCreated": "2026-01-01T00:00:00Z",
        "version": "1.0.0",
        "chartDigest": DIGEST,
        "namespace": "bench",
        "releaseName": "module-0000",
        "values": {"number": 0, "revision": revision},
    }
    metadata = {"name": "module-0000.local", "generation": 2}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": READY | status}, ModuleInstance)


def test_all_modules_share_a_chart_and_no_two_have_the_same_names_or_values() -> None:
    modules = [msgspec.convert(module(number, DIGEST), Module) for number in range(3)]
    installations = [msgspec.convert(installation(number, "first"), Installation) for number in range(3)]

    assert len({(each.spec.chart.directory, each.spec.chart.digest) for each in modules}) == 1
    assert len({each.spec.module for each in modules}) == 3
    assert [each.spec.module for each in installations] == [each.spec.module for each in modules]
    assert [each.spec.values["number"] for each in installations] == [0, 1, 2]


def test_an_instance_that_is_ready_with_the_revision_is_applied() -> None:
    assert is_applied(instance(), "second")


@pytest.mark.parametrize(
    "found",
    [
        instance("first"),
        instance(observedGeneration=1),
        instance(state="Processing"),
        instance(lastApplied=None),
        instance(lastApplied=APPLIED | {"version": "0.9.0"}),
    ],
    ids=["old-values", "not-observed", "not-ready", "never-applied", "old-version"],
)
def test_an_instance_that_lacks_one_condition_is_not_applied(found: ModuleInstance) -> None:
    assert not is_applied(found, "second")


def test_a_reconciler_that_leads_and_has_nothing_to_do_has_caught_up() -> None:
    assert is_caught_up(CAUGHT_UP, 10)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('_status{name="governor-reconciler"} 1', '_status{name="governor-reconciler"} 0'),
        ('"module-instances",result="success"} 10', '"module-instances",result="success"} 9'),
        ('_workers{controller="module-instances"} 0', '_workers{controller="module-instances"} 1'),
        ('workqueue_depth{name="clusters"} 0', 'workqueue_depth{name="clusters"} 1'),
    ],
    ids=["does-not-lead", "one-not-reconciled", "works", "waits"],
)
def test_a_reconciler_with_something_left_to_do_has_not_caught_up(old: str, new: str) -> None:
    assert old in CAUGHT_UP
    assert not is_caught_up(CAUGHT_UP.replace(old, new), 10)
