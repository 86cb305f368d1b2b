"""What the sidecars of a cluster prove, and what they do not."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.plans.affected import Changes, scope_of
from governor.agent.platforms.kubernetes.proof.instances import Probed, has_exited, has_failed, started_after
from governor.agent.platforms.kubernetes.proof.judgement import (
    Failure,
    Situation,
    findings_of,
    fresh_proofs,
    judge_workload,
    unsettled_types,
)
from governor.agent.platforms.kubernetes.proof.probes import confirmed
from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod, Update, Workload
from governor.agent.verification.findings import combine
from governor.agent.verification.resources import loaded_digest
from governor.agent.verification.sidecar_api import Counters, LoadedComponent, Metadata, Named, SidecarStatus
from governor.agent.verification.verdicts import Expected, Proof
from governor.domain.documents import ResourceRef
from governor.domain.reports import Cause, Evidence, Instances, State, WorkloadRef

WRITTEN = datetime(2026, 11, 18, 12, tzinfo=UTC)
LATER = WRITTEN + timedelta(seconds=1)
EARLIER = WRITTEN - timedelta(hours=1)
ORDERS = WorkloadRef("shop", "Deployment", "orders")
STORE = ResourceRef("Component", "shop", "store")
LIMITS = ResourceRef("Resiliency", "shop", "limits")


def store(host: str) -> dict[str, Any]:
    spec = {"type": "state.redis", "version": "v1", "metadata": [{"name": "redisHost", "value": host}]}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Component", "metadata": {"name": "store"}, "spec": spec}


def limits(timeout: str) -> dict[str, Any]:
    spec = {"policies": {"timeouts": {"short": timeout}}}
    return {"apiVersion": "dapr.io/v1alpha1", "kind": "Resiliency", "metadata": {"name": "limits"}, "spec": spec}


CHANGED_STORE = Expected(STORE, store("b"), store("a"))
CHANGED_LIMITS = Expected(LIMITS, limits("2s"), limits("1s"))


def pod(name: str = "orders-1", container: str = "c1", **more: Any) -> Pod:
    sidecar = more.pop("sidecar", Container("daprd", container, ready=True))
    return Pod("shop", name, f"uid-{name}", more.pop("created", EARLIER), "orders", ORDERS, sidecar=sidecar, **more)


def workload(*pods: Pod, **more: Any) -> Workload:
    return Workload(ORDERS, "apps/v1", Update.ROLLING, pods, more.pop("desired", len(pods)), app_id="orders", **more)


def status(inits: int = 1, failed: int = 0, app_id: str = "orders", *, healthy: bool = True) -> SidecarStatus:
    metadata = Metadata(
        id=app_id,
        runtime_version="1.18.3",
        enabled_features=("HotReload",),
        components=(LoadedComponent("store", "state.redis", "v1"),),
        resiliencies=(Named("limits"),),
    )
    return SidecarStatus(healthy, metadata, Counters({"state.redis": inits}, {"store": failed} if failed else {}))


def probed(of: Pod, answer: SidecarStatus | None, *errors: str) -> dict[str, Probed]:
    return {of.uid: Probed(of, answer, LATER, errors=errors)}


def situation(*expected: Expected, before: Any = None, now: Any = None, **more: Any) -> Situation:
    written = more.pop("written", dict.fromkeys((STORE, LIMITS), WRITTEN))
    return Situation(Changes(expected), before or {}, now or {}, written, more.pop("proofs", {}), **more)


def states(of: Workload, given: Situation) -> dict[ResourceRef, State]:
    (judged,) = judge_workload(of, given)
    return {ref: verdict.state for ref, verdict in judged.verdicts.items()}


def test_a_component_is_proven_by_the_counters_of_the_same_instance() -> None:
    one = pod()
    given = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(2)))

    assert states(workload(one), given) == {STORE: State.VERIFIED}


@pytest.mark.parametrize(
    ("foreign", "state"),
    [
        ({}, State.UNPROVEN),
        ({"scopes": frozenset({"orders"})}, State.UNPROVEN),
        ({"scopes": frozenset({"other"})}, State.VERIFIED),
        ({"namespace": "bank"}, State.VERIFIED),
        ({"type": "pubsub.redis"}, State.VERIFIED),
    ],
)
def test_a_component_of_another_owner_that_reloads_too_makes_the_counter_worthless(
    foreign: dict[str, Any], state: State
) -> None:
    one = pod()
    other = msgspec.structs.replace(ForeignResource("shop", "theirs", "u/2", "state.redis", LATER), **foreign)
    given = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(2)), reloaded=(other,))
    (judged,) = judge_workload(workload(one), given)

    assert judged.verdicts[STORE].state is state
    assert judged.counted == ({STORE} if state is State.VERIFIED else set())
    if state is State.UNPROVEN:
        assert "Component theirs of another owner and the same type changed too" in judged.verdicts[STORE].text


@pytest.mark.parametrize("kind", ["Resiliency", "HTTPEndpoint", "Configuration"])
@pytest.mark.parametrize(
    ("version", "foreign", "state"),
    [
        ("1.18.3", {}, State.UNPROVEN),
        ("1.18.3", {"scopes": frozenset({"other"}), "name": "elsewhere"}, State.VERIFIED),
        ("1.18.3", {"namespace": "bank"}, State.VERIFIED),
        ("1.17.0", {}, State.VERIFIED),
    ],
    ids=["loaded", "out of scope", "another namespace", "an older Dapr"],
)
def test_a_resource_of_another_owner_that_restarts_the_sidecar_in_place_makes_all_counters_worthless(
    kind: str, version: str, foreign: dict[str, Any], state: State
) -> None:
    one = pod(configuration="theirs")
    other = ForeignResource("shop", "theirs", "u/2", "", LATER, kind=kind)

    def answer(inits: int) -> SidecarStatus:
        known = status(inits)
        return msgspec.structs.replace(known, metadata=msgspec.structs.replace(known.metadata, runtime_version=version))

    given = situation(
        CHANGED_STORE,
        before=probed(one, answer(1)),
        now=probed(one, answer(2)),
        reloaded=(msgspec.structs.replace(other, **foreign),),
        is_foreign_known=True,
    )
    (judged,) = judge_workload(workload(one), given)

    assert judged.verdicts[STORE].state is state
    if state is State.UNPROVEN:
        text = f"{kind} theirs of another owner changed too, for which the sidecar restarts within its process"
        assert text in judged.verdicts[STORE].text


@pytest.mark.parametrize(
    ("scopes", "state"), [(frozenset({"orders"}), State.UNPROVEN), (frozenset({"other"}), State.VERIFIED)]
)
def test_a_secret_store_is_not_proven_while_a_component_of_another_owner_keeps_its_old_secrets(
    scopes: frozenset[str], state: State
) -> None:
    kind = "secretstores.hashicorp.vault"
    new, old = store("b"), store("a")
    new["spec"]["type"] = old["spec"]["type"] = kind
    reader = ForeignResource("shop", "theirs", "u/1", "state.redis", EARLIER, scopes, frozenset({"store"}))
    one = pod()
    listed = (LoadedComponent("store", kind, "v1"),)

    def answer(inits: int) -> SidecarStatus:
        known = status()
        metadata = msgspec.structs.replace(known.metadata, components=listed)
        return msgspec.structs.replace(known, metadata=metadata, counters=Counters({kind: inits}, {}))

    given = situation(before=probed(one, answer(1)), now=probed(one, answer(2)))
    changes = Changes([Expected(STORE, new, old)], foreign=[reader])
    given = msgspec.structs.replace(given, changes=changes)

    assert states(workload(one), given) == {STORE: state}


def test_a_component_whose_counter_did_not_rise_is_never_proven() -> None:
    one = pod()
    given = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(1)))

    assert states(workload(one), given) == {STORE: State.UNPROVEN}


@pytest.mark.parametrize(
    ("limits_are_proven", "state"),
    [(True, State.VERIFIED), (False, State.UNPROVEN)],
)
@pytest.mark.parametrize("is_changed", [True, False])
def test_counters_prove_nothing_after_a_change_for_which_the_sidecar_restarts_within_its_process(
    limits_are_proven: bool, state: State, is_changed: bool
) -> None:
    one, unchanged = pod(), Expected(LIMITS, limits("2s"), limits("2s"))
    expected = CHANGED_LIMITS if is_changed else unchanged
    proofs = {one.instance: {LIMITS: Proof(expected.digest, Evidence("agent", EARLIER, "proven"))}}
    given = situation(
        CHANGED_STORE,
        expected,
        before=probed(one, status(1)),
        now=probed(one, status(4)),
        proofs=proofs if limits_are_proven else {},
    )

    (judged,) = judge_workload(workload(one), given)

    assert judged.verdicts[STORE].state is state
    if not limits_are_proven:
        assert "counters are not evidence" in judged.verdicts[STORE].text


def test_a_listed_resource_that_only_a_start_loads_is_not_proven_by_a_running_sidecar() -> None:
    one = pod()
    given = situation(CHANGED_LIMITS, before=probed(one, status()), now=probed(one, status()))

    assert states(workload(one), given) == {LIMITS: State.UNPROVEN}


@pytest.mark.parametrize(
    ("created", "digest", "state"),
    [(LATER, "", State.VERIFIED), (WRITTEN, "", State.UNPROVEN), (WRITTEN, "d1", State.VERIFIED)],
)
def test_a_new_pod_proves_by_the_servers_clock_or_by_the_agents_restart(
    created: datetime, digest: str, state: State
) -> None:
    one = pod(created=created, restart_digest=digest)
    given = situation(CHANGED_LIMITS, now=probed(one, status()), digests={ORDERS: "d1"})

    assert states(workload(one), given) == {LIMITS: state}


def test_a_container_that_was_restarted_in_its_pod_proves_nothing() -> None:
    old, new = pod(container="c1"), pod(container="c2")
    given = situation(CHANGED_STORE, before=probed(old, status(1)), now=probed(new, status(2)))

    assert states(workload(new), given) == {STORE: State.UNPROVEN}


def test_a_sidecar_that_exits_fails_the_resource_that_its_log_names() -> None:
    old = pod()
    ended = Container("daprd", "c2", restarts=1, waiting="CrashLoopBackOff", last_exit="Error, exit code 1")
    new = pod(sidecar=ended)
    given = situation(
        CHANGED_STORE,
        CHANGED_LIMITS,
        before=probed(old, status()),
        now=probed(new, None, "process component store error: connection refused"),
    )

    assert states(workload(new), given) == {STORE: State.FAILED, LIMITS: State.UNPROVEN}


@pytest.mark.parametrize("created", [EARLIER, LATER], ids=["live proof", "fresh proof"])
def test_nothing_is_proven_while_kubernetes_says_that_the_sidecar_is_not_ready(created: datetime) -> None:
    one = pod(sidecar=Container("daprd", "c1", started=EARLIER), created=created)
    before = probed(one, status(1)) if created is EARLIER else None
    given = situation(CHANGED_STORE, before=before, now=probed(one, status(2)))
    (judged,) = judge_workload(workload(one), given)

    assert judged.verdicts[STORE].state is State.UNPROVEN
    assert judged.verdicts[STORE].text.endswith("; but Kubernetes reports its container daprd as not ready")
    assert not dict(judged.proofs(LATER, {}))
    assert not judged.counted


def test_an_application_that_is_not_ready_does_not_matter() -> None:
    one = pod(ready=False)
    given = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(2)))

    assert states(workload(one), given) == {STORE: State.VERIFIED}


def test_a_sidecar_that_is_not_ready_and_failed_has_failed() -> None:
    one = pod(sidecar=Container("daprd", "c1", started=EARLIER))
    given = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(1, failed=1)))

    assert states(workload(one), given) == {STORE: State.FAILED}


def counting(**types: int) -> SidecarStatus:
    """Return the status of a sidecar with these initialisations, of ``state_redis`` for example."""
    counters = Counters({name.replace("_", "."): number for name, number in types.items()}, {})
    return msgspec.structs.replace(status(), counters=counters)


def test_counters_prove_nothing_beside_a_change_for_which_a_sidecar_restarts_within_its_process() -> None:
    one = pod()
    given = situation(CHANGED_STORE, CHANGED_LIMITS, before=probed(one, status(1)), now=probed(one, status(2)))
    (judged,) = judge_workload(workload(one), given)

    assert judged.verdicts[STORE].state is State.UNPROVEN
    assert "its counters are not evidence" in judged.verdicts[STORE].text


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, State.UNPROVEN),
        ({"is_foreign_known": False}, State.VERIFIED),
        ({"reloaded": (ForeignResource("shop", "theirs", "u/2", "pubsub.redis", LATER),)}, State.VERIFIED),
    ],
    ids=["nothing explains it", "what others change is not listed yet", "another owner explains it"],
)
def test_counters_that_rise_for_no_change_are_a_restart_within_the_process(more: dict[str, Any], state: State) -> None:
    one = pod()
    before, now = counting(state_redis=1, pubsub_redis=1), counting(state_redis=2, pubsub_redis=2)
    known = {"is_foreign_known": True, **more}
    given = situation(CHANGED_STORE, before=probed(one, before), now=probed(one, now), **known)
    (judged,) = judge_workload(workload(one), given)

    assert judged.verdicts[STORE].state is state
    if state is State.UNPROVEN:
        assert "pubsub.redis was initialised too, although nothing of that type changed" in judged.verdicts[STORE].text


KILLED = Container("daprd", "c2", restarts=1, started=LATER, ready=True, last_exit="OOMKilled", killed=True)
EXITED = "the sidecar of pod orders-1 exited: OOMKilled, exit code 137"


def test_a_running_sidecar_that_is_killed_fails_nothing_and_its_next_start_proves_nothing() -> None:
    new = pod(sidecar=KILLED)
    given = situation(CHANGED_STORE, before=probed(pod(), status(1)), now=probed(new, status(2), EXITED))
    (judged,) = judge_workload(workload(new), given)

    assert judged.verdicts[STORE].state is State.UNPROVEN
    assert f"{EXITED}, which does not count against the change" in judged.verdicts[STORE].text


def test_the_next_start_of_a_new_pods_sidecar_that_was_killed_proves_the_change() -> None:
    ended = pod(sidecar=msgspec.structs.replace(KILLED, restarts=0, ready=False, started=None), created=LATER)
    started = pod(sidecar=KILLED, created=LATER)
    during = situation(CHANGED_STORE, now=probed(ended, None, EXITED))
    after = situation(CHANGED_STORE, now=probed(started, status(1)))

    assert states(workload(ended), during) == {STORE: State.UNPROVEN}
    assert states(workload(started), after) == {STORE: State.VERIFIED}


@pytest.mark.parametrize(("restarts", "state"), [(3, State.UNPROVEN), (4, State.FAILED)])
def test_a_sidecar_that_is_killed_for_the_fourth_time_fails_the_change(restarts: int, state: State) -> None:
    new = pod(sidecar=msgspec.structs.replace(KILLED, restarts=restarts))
    given = situation(CHANGED_STORE, before=probed(pod(), status(1)), now=probed(new, status(1), EXITED))

    assert states(workload(new), given) == {STORE: state}


CRASHED = msgspec.structs.replace(KILLED, last_exit="Error, exit code 1", killed=False)


@pytest.mark.parametrize(
    ("disturbed", "proven", "created", "restarts", "state"),
    [
        (STORE, "", EARLIER, 1, State.UNPROVEN),
        (STORE, "", EARLIER, 4, State.FAILED),
        (LIMITS, "", EARLIER, 1, State.FAILED),
        (STORE, "as delivered", EARLIER, 1, State.FAILED),
        (STORE, "", LATER, 1, State.FAILED),
    ],
    ids=["may have loaded it", "fourth time", "does not load it", "has proven the repair", "newer pod"],
)
def test_an_exit_of_a_sidecar_that_may_have_loaded_what_others_wrote_is_not_held_against_the_change(
    disturbed: ResourceRef, proven: str, created: datetime, restarts: int, state: State
) -> None:
    old, new = (pod(created=created), pod(created=created, sidecar=msgspec.structs.replace(CRASHED, restarts=restarts)))
    proof = Proof(loaded_digest(store("b")), Evidence("pod", WRITTEN, proven))
    given = situation(
        CHANGED_STORE,
        before=probed(old, status(1)),
        now=probed(new, status(2), EXITED),
        disturbed=frozenset({disturbed}),
        proofs={old.instance: {STORE: proof}} if proven else {},
    )
    (judged,) = judge_workload(workload(new), given)

    assert (judged.verdicts[STORE].state, judged.disturbed) == (state, state is State.UNPROVEN)


def test_the_sidecar_of_another_application_is_no_evidence() -> None:
    one = pod()
    given = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(2, app_id="other")))

    assert states(workload(one), given) == {STORE: State.UNPROVEN}


def test_a_pod_without_a_sidecar_proves_nothing_and_says_so() -> None:
    given = situation(CHANGED_STORE)
    (judged,) = judge_workload(workload(pod(sidecar=None)), given)

    assert "has no sidecar" in judged.verdicts[STORE].text


def test_counts_grow_while_a_change_is_under_way_and_name_who_lacks_at_the_end() -> None:
    first, second = pod("orders-1"), pod("orders-2")
    both = workload(first, second, desired=3)
    given = situation(
        CHANGED_STORE,
        before={**probed(first, status(1)), **probed(second, status(1))},
        now={**probed(first, status(2)), **probed(second, status(1))},
    )

    under_way = combine([STORE], {ORDERS: findings_of(both, judge_workload(both, given), given)}, LATER)
    over = msgspec.structs.replace(given, is_over=True)
    ended = combine([STORE], {ORDERS: findings_of(both, judge_workload(both, over), over)}, LATER)

    assert under_way.workloads[0].instances == Instances(total=3, verified=1)
    assert under_way.resources[0].state is State.APPLIED
    assert ended.workloads[0].instances == Instances(total=3, verified=1, unproven=2)
    assert "1 of 3 instances verified" in ended.workloads[0].evidence[-1].text
    assert "orders-2" in ended.workloads[0].evidence[-1].text


def test_a_failed_restart_fails_what_is_not_verified_with_its_cause() -> None:
    one = pod()
    failure = Failure("the restart was undone: pod x has no sidecar", Cause.RUNTIME)
    given = situation(
        CHANGED_LIMITS, before=probed(one, status()), now=probed(one, status()), failures={ORDERS: failure}
    )
    (found,) = findings_of(workload(one), judge_workload(workload(one), given), given)

    assert (found.resources[LIMITS].state, found.resources[LIMITS].cause) == (State.FAILED, Cause.RUNTIME)


def test_only_the_servers_clock_and_own_restarts_count_as_a_start_after_the_write() -> None:
    late_container = Container("daprd", "c2", started=LATER)

    assert not started_after(pod(sidecar=late_container), WRITTEN, "")
    assert not started_after(pod(created=LATER), None, "")
    assert not started_after(pod(), WRITTEN, "")


def test_an_exit_from_before_the_change_is_not_held_against_it() -> None:
    tired = pod(sidecar=Container("daprd", "c9", restarts=3, ready=True, last_exit="OOMKilled, exit code 137"))

    assert not has_exited(tired, tired)
    assert not has_exited(tired, None)


def test_a_counter_that_an_earlier_change_may_raise_is_no_evidence() -> None:
    one = pod()
    given = situation(
        CHANGED_STORE,
        before=probed(one, status(1)),
        now=probed(one, status(2)),
        unsettled={one.instance: frozenset({"state.redis"})},
    )

    assert states(workload(one), given) == {STORE: State.UNPROVEN}


def test_what_a_sidecar_has_and_never_proved_is_unsettled() -> None:
    changes, one = Changes([CHANGED_STORE]), pod()
    old = changes.seen_by(frozenset({scope_of(one)}))[0].old_digest
    proof = Proof(old, Evidence("pod orders-1", LATER, "listed"))

    assert unsettled_types(one, changes, {}) == {"state.redis"}
    assert unsettled_types(one, changes, {STORE: proof}) == frozenset()
    assert unsettled_types(one, Changes([Expected(STORE, store("b"), None)]), {}) == frozenset()


def test_of_an_unsettled_sidecar_only_what_a_counter_would_prove_is_hopeless() -> None:
    one, gone = pod(), Expected(LIMITS, None, limits("1s"))
    (judged,) = judge_workload(
        workload(one), situation(CHANGED_STORE, gone, before=probed(one, status(1)), now=probed(one, status(1)))
    )

    assert judged.unproven().keys() == {STORE, LIMITS}
    assert judged.unproven(frozenset({"state.redis"})).keys() == {STORE}
    assert judged.unproven(frozenset()) == {}


@pytest.mark.parametrize(
    ("created", "answer", "proven"),
    [
        (LATER, status(), {STORE, LIMITS}),
        (WRITTEN, status(), set()),
        (LATER, status(healthy=False), set()),
        (LATER, None, set()),
        (LATER, status(failed=1), {LIMITS}),
    ],
)
def test_a_sidecar_proves_what_it_loaded_at_its_start_before_the_next_change(
    created: datetime, answer: SidecarStatus | None, proven: set[ResourceRef]
) -> None:
    changes, one = Changes([CHANGED_STORE, CHANGED_LIMITS]), pod(created=created)
    written = dict.fromkeys((STORE, LIMITS), WRITTEN)
    old = {each.ref: each.old_digest for each in changes.seen_by(frozenset({scope_of(one)}))}

    found = dict(fresh_proofs(Probed(one, answer, LATER), changes, written, {}))

    assert {ref: each.digest for ref, each in found.items()} == {ref: old[ref] for ref in proven}
    assert dict(fresh_proofs(Probed(one, answer, LATER), changes, written, found)) == {}


@pytest.mark.parametrize(
    ("before", "now", "failed"),
    [(status(failed=0), status(failed=1), True), (status(failed=1), status(failed=1), False), (None, status(), False)],
)
def test_a_sidecar_has_failed_if_a_component_could_not_be_initialised_since(
    before: SidecarStatus | None, now: SidecarStatus, failed: bool
) -> None:
    earlier = Probed(pod(), before, EARLIER) if before else None

    assert has_failed(Probed(pod(), now, LATER), earlier) is failed


@pytest.mark.parametrize(
    ("replaced", "carried", "is_over", "state"),
    [
        (frozenset(), "", False, State.FAILED),
        (frozenset({ORDERS}), "", False, State.APPLIED),
        (frozenset({ORDERS}), "", True, State.UNPROVEN),
        (frozenset({ORDERS}), "d1", False, State.FAILED),
    ],
)
def test_a_pod_that_a_restart_replaces_fails_no_change(
    replaced: frozenset[WorkloadRef], carried: str, is_over: bool, state: State
) -> None:
    old = pod()
    ended = pod(sidecar=Container("daprd", "c2", restarts=1, last_exit="Error, exit code 1"), restart_digest=carried)
    given = situation(
        CHANGED_STORE,
        before=probed(old, status(1)),
        now=probed(ended, None, "redis store: error connecting: context canceled"),
        digests={ORDERS: "d1"},
        replaced=replaced,
        is_over=is_over,
    )

    (found,) = findings_of(workload(ended), judge_workload(workload(ended), given), given)

    assert found.resources[STORE].state is state
    assert "context canceled" in found.resources[STORE].evidence[-1].text


def test_a_finding_has_the_evidence_of_its_proof_and_not_that_nothing_has_changed_since() -> None:
    one = pod()
    first = situation(CHANGED_STORE, before=probed(one, status(1)), now=probed(one, status(2)))
    (judged,) = judge_workload(workload(one), first)
    proofs = dict(judged.proofs(LATER, {}))
    again = situation(CHANGED_STORE, before=first.before, now=first.now, proofs={one.instance: proofs})

    (judged,) = judge_workload(workload(one), again)
    (found,) = findings_of(workload(one), (judged,), again)

    assert dict(judged.proofs(LATER, proofs)) == {}
    assert found.resources[STORE].evidence == (proofs[STORE].evidence,)
    assert "initialised 1 -> 2 times" in proofs[STORE].evidence.text


def test_an_answer_of_a_pod_that_changed_meanwhile_is_dropped() -> None:
    asked, restarted = pod(ip="10.0.0.1"), pod(ip="10.0.0.1", container="c2")
    answers = probed(asked, status())

    assert confirmed(answers, [workload(asked)]) == answers
    assert confirmed(answers, [workload(restarted)])[asked.uid].status is None
    assert confirmed(answers, [])[asked.uid].status is None


def test_a_workload_whose_only_pod_is_missing_is_not_verified() -> None:
    empty = workload(desired=1)
    given = situation(CHANGED_STORE)
    found = combine([STORE], {ORDERS: findings_of(empty, judge_workload(empty, given), given)}, LATER)

    assert not found.verified
    assert found.workloads[0].instances == Instances(total=1)
