"""The status of a Cluster: aggregate, conditions, ageing to Unknown, and a bounded size."""

import datetime
from typing import Any

import msgspec
import pytest

from governor.domain.conditions import Actor
from governor.kube.controller.conditions import Condition, format_time
from governor.reconciler.kinds.cluster import Cluster, ClusterStatus
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem, State
from governor.reconciler.resolution.placement import Placement
from governor.reconciler.states.cluster_state import MAX_LINES, Observed, Reach, cluster_status
from tests.unit.reconciler.bed import CREATED, cluster, digest, instance, unreadable

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
ANSWERS = Reach(None, "uid-1", "v1.36.0")
AWAY = Reach(Problem("Unreachable", "cluster local cannot be reached: refused", Actor.OPERATOR))


def spec(name: str) -> ModuleInstanceSpec:
    return ModuleInstanceSpec(name, "local", name, CREATED, "1.0.0", digest("1.0.0"), name, name)


def reported(name: str, state: str, **conditions: str) -> ModuleInstance:
    listed = [{"type": each, "status": value, "observedGeneration": 1} for each, value in conditions.items()]
    return instance(spec(name), status={"state": state, "observedGeneration": 1, "conditions": listed})


def observed(*instances: ModuleInstance, **unresolved: Problem) -> Observed:
    wanted = {each.spec.module: Placement(each.spec.module, "x", "1.0.0", each.spec) for each in instances}
    problems = {name: Placement(name, "x", "", problem) for name, problem in unresolved.items()}
    return Observed(wanted | problems, {each.spec.module: each for each in instances})


def status(found: Observed, reach: Reach = ANSWERS, of: Cluster | None = None, after_s: float = 300.0) -> ClusterStatus:
    return cluster_status(of or cluster(), found, reach, NOW, after_s)


def conditions(found: ClusterStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in found.conditions}


def unreachable_for(seconds: float, **more: Any) -> Cluster:
    since = format_time(NOW - datetime.timedelta(seconds=seconds))
    before = ClusterStatus(
        uid="uid-0", version="v1.35.0", conditions=(Condition("Reachable", "False", last_transition_time=since),)
    )
    return msgspec.structs.replace(cluster(**more), status=before)


def test_a_cluster_without_modules_is_ready() -> None:
    found = status(observed())
    assert (found.state, found.ready, found.uid, found.version) == (State.READY, "0/0", "uid-1", "v1.36.0")
    assert {status for status, _ in conditions(found).values()} == {"True"}
    assert found.message == "no module is enabled on this cluster"


def test_a_cluster_is_ready_when_all_its_modules_are() -> None:
    good = {"Deployed": "True", "Healthy": "True"}
    found = status(observed(reported("a", "Ready", **good), reported("b", "Ready", **good)))
    assert (found.state, found.ready, found.message) == (State.READY, "2/2", "all 2 modules are ready")
    assert {status for status, _ in conditions(found).values()} == {"True"}


def test_health_of_the_deployment_and_of_the_modules_are_separate() -> None:
    healthy_but_old = reported("a", "Processing", Deployed="False", Healthy="True")
    deployed_but_ill = reported("b", "Warning", Deployed="True", Healthy="False")
    found = conditions(status(observed(healthy_but_old)))
    assert (found["Deployed"][0], found["Healthy"][0]) == ("False", "True")
    found = conditions(status(observed(deployed_but_ill)))
    assert (found["Deployed"][0], found["Healthy"][0]) == ("True", "False")


@pytest.mark.parametrize(
    "one",
    [
        instance(spec("a"), status={"state": "Ready", "observedGeneration": 1}),
        reported("a", "Ready", Deployed="Maybe"),
        instance(
            spec("a"),
            generation=2,
            status={"conditions": [{"type": "Deployed", "status": "True", "observedGeneration": 1}]},
        ),
    ],
    ids=["absent", "nonsense", "of an older generation"],
)
def test_a_condition_that_says_nothing_about_the_present_is_unknown(one: ModuleInstance) -> None:
    assert conditions(status(observed(one)))["Deployed"] == ("Unknown", "NotReported")


def test_unresolved_modules_come_first_and_say_who_must_act() -> None:
    problem = Problem("ModuleMissing", "there is no Module for b 2.0.0", Actor.OPERATOR)
    found = status(observed(reported("a", "Ready"), b=problem))
    assert (found.state, found.ready) == (State.ERROR, "1/2")
    first, _ = found.modules
    assert (first.module, first.reason, first.actor) == ("b", "ModuleMissing", Actor.OPERATOR)
    assert conditions(found)["Resolved"] == ("False", "ModuleMissing")
    assert found.message == "1 of 2 modules are not ready: b: ModuleMissing: there is no Module for b 2.0.0"


def test_an_unreadable_module_instance_is_an_error() -> None:
    found = status(Observed({}, {"a": unreadable("a.local")}))
    assert found.state is State.ERROR
    assert found.modules[0].reason == "Unreadable"


@pytest.mark.parametrize(("away_s", "state"), [(0.0, State.READY), (299.0, State.READY), (300.0, State.UNKNOWN)])
def test_a_cluster_that_does_not_answer_ages_to_unknown(away_s: float, state: State) -> None:
    found = status(observed(reported("a", "Ready")), AWAY, unreachable_for(away_s))
    assert found.state is state
    assert found.modules[0].state is state
    assert conditions(found)["Reachable"] == ("False", "Unreachable")
    assert (found.uid, found.version) == ("uid-0", "v1.35.0"), "what it said last"
    assert "cannot be reached" in found.message


def test_an_unknown_module_shows_its_last_known_state() -> None:
    found = status(observed(reported("a", "Warning")), AWAY, unreachable_for(900.0))
    assert found.modules[0].message == "last known state: Warning"
    assert found.counts is not None
    assert (found.counts.unknown, found.counts.warning) == (1, 0)


def test_a_cluster_that_answers_again_is_not_unknown() -> None:
    assert status(observed(reported("a", "Ready")), ANSWERS, unreachable_for(900.0)).state is State.READY


def test_a_cluster_that_was_never_reached_is_pending_and_starts_to_age_now() -> None:
    assert status(observed(), AWAY, cluster()).state is State.PENDING
    assert status(observed(), AWAY, cluster(), after_s=0.0).state is State.UNKNOWN


def test_a_damaged_time_of_the_condition_starts_to_age_now() -> None:
    damaged = ClusterStatus(
        uid="uid-0", conditions=(Condition("Reachable", "False", last_transition_time="yesterday"),)
    )
    found = status(observed(), AWAY, msgspec.structs.replace(cluster(), status=damaged))
    assert found.state is State.READY


def test_a_paused_cluster_says_so() -> None:
    assert status(observed(), of=cluster(paused=True)).message == "paused: no module is enabled on this cluster"


def test_the_status_of_many_modules_is_bounded_and_counts_all() -> None:
    problem = Problem("Conflict", "x" * 5000, Actor.USER)
    found = status(observed(**{f"m{number}": problem for number in range(2000)}))
    assert len(found.modules) == MAX_LINES
    assert found.counts is not None
    assert found.counts.warning == 2000
    assert len(msgspec.json.encode(found)) < 500_000


def test_the_same_observation_gives_the_same_status() -> None:
    first = status(observed(reported("a", "Ready"), b=Problem("Conflict", "x", Actor.USER)))
    later = cluster_status(
        cluster(),
        observed(reported("a", "Ready"), b=Problem("Conflict", "x", Actor.USER)),
        ANSWERS,
        NOW + datetime.timedelta(hours=1),
        300.0,
    )
    assert first == later
