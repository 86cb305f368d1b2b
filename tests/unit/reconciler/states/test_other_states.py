"""The status of Installations, Channels and ModuleInstances."""

from governor.domain.conditions import Actor
from governor.kube.controller import Status
from governor.reconciler.kinds.module_instance import Applied, ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem, State
from governor.reconciler.resolution.placement import Placement
from governor.reconciler.states.channel_state import channel_status
from governor.reconciler.states.installation_state import OnCluster, installation_status
from governor.reconciler.states.instance_state import instance_status
from governor.reconciler.steps.step import Halted, Paused
from tests.unit.reconciler.bed import CREATED, channel, digest, installation, instance

SPEC = ModuleInstanceSpec("dapr", "local", "dapr", CREATED, "1.0.0", digest("1.0.0"), "dapr", "dapr")
PROBLEM = Problem("LabelMissing", "no label region", Actor.OPERATOR)
READY = instance(SPEC, status={"state": "Ready", "observedGeneration": 1})
WANTED = Placement("dapr", "dapr", "1.0.0", SPEC)


def condition(found: Status, condition_type: str) -> tuple[str, str, str]:
    (each,) = (each for each in found.conditions if each.type == condition_type)
    return each.status, each.reason, each.message


def test_an_installation_is_ready_when_its_module_is_on_all_clusters() -> None:
    found = installation_status(installation("dapr"), {"a": OnCluster(WANTED, READY), "b": OnCluster(WANTED, READY)})
    assert (found.state, found.ready, found.version, found.clusters) == (State.READY, "2/2", "1.0.0", 2)
    assert condition(found, "Ready")[0] == condition(found, "Resolved")[0] == "True"


def test_an_installation_names_the_clusters_on_which_it_is_not_resolved() -> None:
    unresolved = OnCluster(Placement("dapr", "dapr", "1.0.0", PROBLEM), None)
    clusters = {"z": unresolved, "b": OnCluster(WANTED, READY), **{f"c{number}": unresolved for number in range(9)}}
    found = installation_status(installation("dapr"), clusters)
    assert (found.state, found.ready) == (State.ERROR, "1/11")
    expected = "on c0, c1, c2, c3, c4 and 5 more: no label region"
    assert condition(found, "Resolved") == ("False", "LabelMissing", expected)
    assert condition(found, "Ready") == ("False", "LabelMissing", "on c0: no label region")


def test_a_selector_without_match_waits_and_a_missing_cluster_is_a_warning() -> None:
    waiting = installation_status(installation("dapr", clusterSelector={"matchLabels": {"a": "b"}}), {})
    assert (waiting.state, waiting.ready) == (State.PENDING, "0/0")
    assert condition(waiting, "Resolved")[:2] == ("True", "NoClusters")
    missing = installation_status(installation("dapr"), {})
    assert missing.state is State.WARNING
    assert condition(missing, "Resolved")[:2] == ("False", "ClusterMissing")


def test_a_channel_names_what_is_missing() -> None:
    complete = channel_status(channel(dapr="1.0.0"), [])
    assert (complete.modules, condition(complete, "Complete")[0]) == (1, "True")
    lacking = channel_status(channel(dapr="1.0.0", redis="2.0.0"), ["redis"])
    assert condition(lacking, "Complete") == (
        "False",
        "ModuleMissing",
        "there are no Modules for redis 2.0.0: create them",
    )


def test_a_problem_and_a_pause_keep_what_was_applied() -> None:
    applied = {"version": "1.0.0", "chartDigest": digest("1.0.0"), "valuesDigest": "x", "time": "2026-01-01T00:00:00Z"}
    before = instance(SPEC, status={"state": "Ready", "lastApplied": applied, "history": [applied]})
    failed = instance_status(before.status, Halted(Problem("ValuesMissing", "no Secret", Actor.USER)))
    assert (failed.state, failed.reason, failed.actor) == (State.WARNING, "ValuesMissing", Actor.USER)
    paused = instance_status(before.status, Paused())
    assert (paused.state, paused.reason, paused.actor) == (State.READY, "Paused", Actor.NOBODY)
    for found in (failed, paused):
        assert isinstance(found.last_applied, Applied)
        assert len(found.history) == 1
