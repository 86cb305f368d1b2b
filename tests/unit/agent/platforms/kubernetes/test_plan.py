"""Plans for a cluster: the action of each workload, rejections, and the order of restarts."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec
import pytest

from governor.agent.platforms.kubernetes.plans.affected import Changes, is_unloaded
from governor.agent.platforms.kubernetes.plans.hot_reload import SidecarFacts
from governor.agent.platforms.kubernetes.plans.plan import (
    Action,
    Observed,
    Plan,
    Rejection,
    WorkloadPlan,
    plan,
    restraint,
)
from governor.agent.platforms.kubernetes.resources.foreign import ForeignResource
from governor.agent.platforms.kubernetes.restarts.control_plane import INJECTOR, ControlPlane, Service
from governor.agent.platforms.kubernetes.workloads.workload import Container, Update, Workload
from governor.agent.verification.verdicts import Expected
from governor.domain.bundles import Delivery
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy, Unproven, WindowScope
from governor.domain.windows import HELD, WAITING_FOR_WINDOW, Hold, Window
from tests.unit.agent.platforms.kubernetes.bed import (
    COLD,
    FACTS,
    HOT,
    LATER,
    NOW,
    Manifest,
    change,
    component,
    facts,
    pod,
    proofs,
    resource,
    unchanged,
    workload,
)

STORE = change(component("store", "new"), component("store", "old"))
RETRIES = change(resource("Resiliency", "retries", {"policies": {"x": 1}}), resource("Resiliency", "retries"))
Former: TypeAlias = Mapping[ResourceRef, Sequence[Manifest]]
REPORT = ApplyPolicy(unproven=Unproven.REPORT)
ROLLING = ApplyPolicy(strategy=Strategy.ROLLING)


def observed(*workloads: Workload, known: SidecarFacts = FACTS, **more: Any) -> Observed:
    return Observed(workloads, **{"sidecars": facts(workloads, known), **more})


def planned(
    changes: list[Expected], before: Observed, policy: ApplyPolicy | None = None, former: Former | None = None
) -> Plan:
    made = plan(Changes(changes, former), before, policy or ApplyPolicy())
    assert isinstance(made, Plan)
    return made


def only(
    changes: list[Expected],
    workload: Workload,
    known: SidecarFacts = FACTS,
    policy: ApplyPolicy | None = None,
    former: Former | None = None,
    **more: Any,
) -> WorkloadPlan:
    [found] = planned(changes, observed(workload, known=known, **more), policy, former).workloads
    return found


def dapr(**fields: str) -> ControlPlane:
    return ControlPlane((Service(INJECTOR, "dapr-system", 1, 1, **fields),))


def actions(made: Plan) -> dict[str, Action]:
    return {each.workload.name: each.action for each in made.workloads}


class TestAffected:
    def test_a_component_affects_the_app_ids_in_its_scopes(self) -> None:
        scoped = change(component("store", "new", scopes=["a"]), component("store", scopes=["a"]))
        made = planned([scoped], observed(workload("a"), workload("b")))
        assert actions(made) == {"a": Action.RELOAD, "b": Action.KEEP}
        assert made.workloads[1].expected == ()

    def test_a_resource_that_leaves_a_scope_affects_the_workload_that_loses_it(self) -> None:
        moved = change(component("store", scopes=["b"]), component("store", scopes=["a"]))
        made = planned([moved], observed(workload("a"), workload("b"), workload("c")))
        assert actions(made) == {"a": Action.RELOAD, "b": Action.RELOAD, "c": Action.KEEP}
        losing, gaining = made.workloads[0].expected[0], made.workloads[1].expected[0]
        assert (losing.new, losing.old) == (None, moved.old)
        assert (gaining.new, gaining.old) == (moved.new, None)

    def test_a_workload_in_another_namespace_is_kept(self) -> None:
        assert only([STORE], workload(namespace="other")).action is Action.KEEP

    def test_a_configuration_affects_the_pods_that_name_it(self) -> None:
        tracing = change(resource("Configuration", "tracing", {"x": 1}), resource("Configuration", "tracing"))
        made = planned([tracing], observed(workload("a", configuration="tracing"), workload("b"), known=COLD))
        assert actions(made) == {"a": Action.RESTART, "b": Action.KEEP}

    def test_a_kind_that_sidecars_do_not_load_affects_no_workload(self) -> None:
        assert only([change(resource("Secret", "s", {"x": 1}), None)], workload()).action is Action.KEEP

    def test_a_middleware_affects_its_scope_and_needs_a_restart(self) -> None:
        limit = component("limit", "new", "middleware.http.ratelimit", scopes=["a"])
        made = planned([change(limit, None)], observed(workload("a"), workload("b")))
        assert actions(made) == {"a": Action.RESTART, "b": Action.KEEP}

    def test_components_that_read_from_a_changed_secret_store_need_a_restart(self) -> None:
        vault = change(*(component("vault", value, "secretstores.hashicorp.vault") for value in ("new", "old")))
        reader = component("reader", auth={"secretStore": "vault"}, scopes=["a"])
        apps = [workload("a"), workload("b")]
        proven = proofs([each.pods[0] for each in apps], reader)
        made = planned([vault, unchanged(reader)], observed(*apps, proofs=proven))
        assert actions(made) == {"a": Action.RESTART, "b": Action.RELOAD}
        [(ref, reason)] = made.workloads[0].obstacles.items()
        assert ref.name == "reader"
        assert "secrets that it has read from vault" in reason

    def test_so_do_those_of_other_owners_if_the_store_stays(self) -> None:
        new, old = (component("vault", value, "secretstores.hashicorp.vault") for value in ("new", "old"))
        reader = ForeignResource("default", "theirs", "u/1", "state.redis", NOW, frozenset({"a"}), frozenset({"vault"}))
        apps = [workload("a"), workload("b")]
        made = plan(Changes([change(new, old)], foreign=[reader]), observed(*apps), ApplyPolicy())
        assert isinstance(made, Plan)
        assert actions(made) == {"a": Action.RESTART, "b": Action.RELOAD}
        [reason] = made.workloads[0].obstacles.values()
        assert "Component theirs of another owner keeps the secrets read from it" in reason
        removed = plan(Changes([change(None, old)], foreign=[reader]), observed(*apps), ApplyPolicy())
        assert isinstance(removed, Plan)
        assert actions(removed) == {"a": Action.RELOAD, "b": Action.RELOAD}

    def test_a_component_outside_the_scope_of_the_store_that_it_names_is_not_affected_by_it(self) -> None:
        new, old = (component("vault", value, "secretstores.x", scopes=["b"]) for value in ("new", "old"))
        reader = component("reader", auth={"secretStore": "vault"})
        app = workload("a")
        found = only([change(new, old), unchanged(reader)], app, proofs=proofs(app.pods, reader))
        assert found.action is Action.KEEP

    def test_a_new_store_with_a_new_component_needs_no_restart(self) -> None:
        vault = component("vault", type_="secretstores.hashicorp.vault")
        reader = component("reader", auth={"secretStore": "vault"})
        assert only([change(vault, None), change(reader, None)], workload()).action is Action.RELOAD

    def test_finished_and_deleted_pods_are_ignored(self) -> None:
        app = workload()
        for gone in ({"phase": "Succeeded"}, {"deleting": True}):
            pods = (pod(app.ref, **gone),)
            found = only([STORE], workload(pods=pods, desired=0), COLD)
            assert found.action is Action.KEEP
            assert found.expected


class TestReload:
    @pytest.mark.parametrize(
        "kind", ["Configuration", "HTTPEndpoint", "Resiliency", "MCPServer", "WorkflowAccessPolicy"]
    )
    def test_kinds_without_a_live_proof_need_a_restart(self, kind: str) -> None:
        changed = change(resource(kind, "x", {"x": 1}), resource(kind, "x"))
        found = only([changed], workload(configuration="x"))
        assert found.action is Action.RESTART
        assert "does not show which content" in found.obstacles[changed.ref]

    @pytest.mark.parametrize(
        ("known", "reason"),
        [
            (SidecarFacts("1.12.4"), "Dapr 1.12.4 loads a changed Component only at startup"),
            (SidecarFacts("1.16.0"), "hot reload is off"),
            (SidecarFacts("1.18.3"), "hot reload is off"),
            (SidecarFacts("1.18.3", HOT, has_metrics=False), "metrics are off"),
            (SidecarFacts("1.18.3", HOT, healthy=False), "not healthy"),
        ],
    )
    def test_what_a_sidecar_cannot_do_needs_a_restart(self, known: SidecarFacts, reason: str) -> None:
        found = only([STORE], workload(), known)
        assert found.action is Action.RESTART
        assert reason in found.obstacles[STORE.ref]

    @pytest.mark.parametrize("version", ["1.13.0", "1.16.0", "1.18.0", "edge"])
    def test_a_sidecar_with_hot_reload_loads_a_component(self, version: str) -> None:
        assert only([STORE], workload(), SidecarFacts(version, HOT)).action is Action.RELOAD

    @pytest.mark.parametrize(("version", "action"), [("1.13.0", Action.RESTART), ("1.14.0", Action.RELOAD)])
    def test_subscriptions_are_reloaded_since_1_14(self, version: str, action: Action) -> None:
        assert (
            only([change(resource("Subscription", "s"), None)], workload(), SidecarFacts(version, HOT)).action is action
        )

    @pytest.mark.parametrize(("version", "action"), [("1.18.2", Action.RESTART), ("1.18.3", Action.RELOAD)])
    def test_an_actor_state_store_is_reloaded_since_1_18_3(self, version: str, action: Action) -> None:
        spec = {"type": "state.redis", "metadata": [{"name": "actorStateStore", "value": "true"}]}
        changed = change(resource("Component", "actors", spec), None)
        assert only([changed], workload(), SidecarFacts(version, HOT)).action is action

    def test_two_changed_bindings_of_one_type_need_a_restart(self) -> None:
        first, second = (change(component(name, type_="bindings.kafka"), None) for name in "ab")
        assert only([first], workload()).action is Action.RELOAD
        assert only([first, second], workload()).action is Action.RESTART

    def test_a_removed_component_is_reloaded_without_metrics(self) -> None:
        removed = change(None, component("store"))
        assert only([removed], workload(), SidecarFacts("1.18.3", HOT, has_metrics=False)).action is Action.RELOAD

    def test_the_weakest_sidecar_of_a_workload_decides(self) -> None:
        app = workload()
        pods = (pod(app.ref, "new"), pod(app.ref, "old"))
        known = {pods[0].uid: FACTS, pods[1].uid: COLD}
        found = only([STORE], workload(pods=pods), sidecars=known)
        assert found.action is Action.RESTART
        assert "pod old: " in found.obstacles[STORE.ref]

    def test_a_sidecar_that_could_not_be_probed_needs_a_restart(self) -> None:
        assert only([STORE], workload(), sidecars={}).action is Action.RESTART

    def test_policy_report_reloads_and_names_what_is_not_proven(self) -> None:
        found = only([STORE, RETRIES], workload(), policy=REPORT)
        assert found.action is Action.RELOAD
        assert set(found.obstacles) == {RETRIES.ref}

    def test_an_unproven_reload_becomes_a_restart_when_the_caller_says_so(self) -> None:
        app = workload()
        further = {app.pods[0].uid: {STORE.ref: "not loaded in time"}}
        found = only([STORE], app, obstacles=further, applied=True)
        assert found.action is Action.RESTART
        assert found.obstacles[STORE.ref].endswith("not loaded in time")


class TestProgress:
    def test_proven_resources_are_kept(self) -> None:
        app, store = workload(), component("store")
        assert only([unchanged(store)], app, proofs=proofs(app.pods, store)).action is Action.KEEP

    def test_a_proof_from_before_the_write_does_not_prove_a_change(self) -> None:
        app = workload()
        assert STORE.new
        before = proofs(app.pods, STORE.new)
        assert only([STORE], app, proofs=before).action is Action.RELOAD
        assert only([STORE], app, proofs=before, applied=True).action is Action.KEEP

    def test_an_unproven_resource_in_an_old_pod_needs_a_restart(self) -> None:
        found = only([unchanged(component("store"))], workload(), written=NOW)
        assert found.action is Action.RESTART
        assert "nothing shows" in next(iter(found.obstacles.values()))

    def test_a_pod_that_is_newer_than_the_write_is_only_verified(self) -> None:
        app = workload()
        newer = workload(pods=(pod(app.ref, created=LATER),))
        assert only([unchanged(component("store"))], newer, COLD, written=NOW).action is Action.AWAIT
        assert only([STORE], newer, COLD, written=NOW).action is Action.RESTART
        assert only([STORE], newer, COLD, written=NOW, applied=True).action is Action.AWAIT

    def test_no_pod_counts_as_newer_than_a_removal_whose_time_is_not_known(self) -> None:
        app, retries = workload(), component("retries")
        newer = workload(pods=(pod(app.ref, created=LATER),))
        changes = [unchanged(retries), change(None, component("store"))]
        state: Manifest = {"proofs": proofs(newer.pods, retries), "written": NOW, "applied": True}
        assert only(changes, newer, COLD, **state).action is Action.RESTART
        assert only(changes, newer, FACTS, **state).action is Action.RELOAD
        bare = workload(kind="ReplicaSet", update=Update.NONE, desired=1, pods=newer.pods)
        assert only(changes, bare, COLD, **state).action is Action.EVICT

    def test_a_pod_that_is_newer_than_the_write_is_not_restarted_because_it_starts_slowly(self) -> None:
        app, store = workload(), component("store")
        slow = pod(app.ref, "slow", created=LATER)
        scaled = workload(pods=(*app.pods, slow))
        state: Manifest = {
            "proofs": proofs(app.pods, store),
            "obstacles": {slow.uid: {unchanged(store).ref: "the sidecar is not healthy"}},
            "written": NOW,
            "applied": True,
        }
        assert only([unchanged(store)], scaled, **state).action is Action.AWAIT

    def test_a_container_that_restarted_in_an_old_pod_is_replaced_if_it_proves_nothing(self) -> None:
        app, store = workload(), component("store")
        again = workload(pods=(pod(app.ref, sidecar=Container("daprd:1", id="c2", started=LATER, restarts=1)),))
        obstacles = {again.pods[0].uid: {unchanged(store).ref: "no sidecar was started after the write"}}
        found = only([unchanged(store)], again, written=NOW, applied=True, obstacles=obstacles)
        assert found.action is Action.RESTART

    def test_a_sidecar_that_restarted_since_the_write_is_only_verified(self) -> None:
        app = workload()
        again = workload(pods=(pod(app.ref, sidecar=Container("daprd:1", id="c2", started=LATER, restarts=1)),))
        assert only([STORE], again, COLD, written=NOW, applied=True).action is Action.AWAIT

    @pytest.mark.parametrize(
        "sidecar", [Container("daprd:1"), Container("daprd:1", id="c1", waiting="CrashLoopBackOff")]
    )
    def test_a_sidecar_that_is_about_to_start_is_only_verified(self, sidecar: Container) -> None:
        app = workload()
        assert only([STORE], workload(pods=(pod(app.ref, sidecar=sidecar),)), sidecars={}).action is Action.AWAIT

    def test_a_workload_without_pods_is_awaited_only_if_it_should_have_some(self) -> None:
        assert only([STORE], workload(pods=(), desired=2)).action is Action.AWAIT
        assert only([STORE], workload(pods=(), desired=0)).action is Action.KEEP

    def test_a_workload_is_not_restarted_twice_for_the_same_write(self) -> None:
        app = workload()
        wanted = only([STORE], app, COLD, versions={STORE.ref: "a/1"})
        assert wanted.action is Action.RESTART
        patched = msgspec.structs.replace(app, restart_digest=wanted.digest)
        assert only([STORE], patched, COLD, applied=True, versions={STORE.ref: "a/1"}).action is Action.AWAIT
        # The same content is written again after another one.
        assert only([STORE], patched, COLD, applied=True, versions={STORE.ref: "a/3"}).action is Action.RESTART
        assert only([STORE], patched, COLD, applied=True, versions={STORE.ref: "b/1"}).action is Action.RESTART

    def test_a_new_attempt_may_restart_again(self) -> None:
        app = workload()
        patched = msgspec.structs.replace(app, restart_digest=only([STORE], app, COLD).digest)
        assert only([STORE], patched, COLD, applied=True).action is Action.AWAIT
        assert only([STORE], patched, COLD, applied=True, attempt=2).action is Action.RESTART

    def test_pods_that_carry_the_annotation_are_not_restarted(self) -> None:
        app = workload()
        wanted = only([STORE], app, COLD)
        carried = workload(pods=(pod(app.ref, restart_digest=wanted.digest),))
        assert only([STORE], carried, COLD, applied=True).action is Action.AWAIT

    @pytest.mark.parametrize("kept", [None, component("store", scopes=["other"])])
    def test_a_workload_is_not_restarted_again_once_what_it_lost_is_gone(self, kept: Manifest | None) -> None:
        retries = component("retries")
        lost = change(kept, component("store"))
        app = workload()
        versions = {lost.ref: "a/2"}
        wanted = only([unchanged(retries), lost], app, COLD, applied=True, versions=versions)
        patched = msgspec.structs.replace(app, restart_digest=wanted.digest)
        gone = unchanged(kept) if kept else lost
        former = {lost.ref: (component("store"),)}
        found = only([unchanged(retries), gone], patched, COLD, former=former, applied=True, versions=versions)
        assert found.action is Action.AWAIT
        again = {lost.ref: "a/4"}
        found = only([unchanged(retries), gone], patched, COLD, former=former, applied=True, versions=again)
        assert found.action is Action.RESTART, "lost once more"

    def test_the_digest_does_not_depend_on_the_pods(self) -> None:
        tracing = change(resource("Configuration", "tracing"), None)
        app = workload(configuration="new")
        rolling = workload(configuration="new", pods=(*app.pods, pod(app.ref, "old", configuration="tracing")))
        first, second = only([STORE, tracing], rolling, COLD), only([STORE, tracing], app, sidecars={})
        assert first.digest == second.digest
        assert len(first.expected) == len(second.expected) + 1

    def test_the_digest_tells_nothing_of_the_content(self) -> None:
        other = change(component("store", "newer"), STORE.old)
        assert only([STORE], workload(), COLD).digest == only([other], workload(), COLD).digest

    @pytest.mark.parametrize("policy", [ApplyPolicy(), REPORT])
    def test_what_narrowed_scopes_take_away_is_expected_to_be_absent(self, policy: ApplyPolicy) -> None:
        """Also when the cluster shows the new scopes only, because the agent was killed after the write."""
        narrow = unchanged(component("store", scopes=["other"]))
        former = {narrow.ref: (component("store", scopes=["another"]), component("store", scopes=["orders"]))}
        found = only([narrow], workload(), COLD, policy, former=former, applied=True)
        assert [(each.new, each.old) for each in found.expected] == [(None, former[narrow.ref][1])]
        assert found.action is (Action.RESTART if policy is not REPORT else Action.RELOAD)


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (None, [], True),
        ([], None, False),
        ([], ["a"], False),
        (["a"], ["a"], False),
        (["a", "b"], ["a"], False),
        (["a"], ["a", "b"], True),
        (["a"], [], True),
        ([], [], False),
    ],
)
def test_a_removal_or_narrower_scopes_take_a_resource_away(
    new: list[str] | None, old: list[str] | None, expected: bool
) -> None:
    after, before = (None if each is None else component("store", scopes=each) for each in (new, old))
    assert is_unloaded(change(after, before)) is expected


class TestMissingSidecar:
    app = workload(pods=(pod(workload().ref, sidecar=None),))

    def test_a_pod_without_its_sidecar_is_restarted_to_get_one(self) -> None:
        found = only([unchanged(component("store"))], self.app, sidecars={})
        assert found.action is Action.RESTART
        assert "has no sidecar" in next(iter(found.obstacles.values()))

    def test_it_is_left_to_the_watchdog_of_dapr(self) -> None:
        found = only([STORE], self.app, sidecars={}, control_plane=dapr(watch_interval="2m"))
        assert found.action is Action.WATCHDOG
        assert found.reason == ("its pods without a sidecar are left to Dapr's watchdog, which replaces them every 2m")

    def test_a_watchdog_of_another_namespace_does_not_replace_it(self) -> None:
        elsewhere = dapr(watch_interval="2m", watch_namespace="other")
        assert only([STORE], self.app, sidecars={}, control_plane=elsewhere).action is Action.RESTART

    def test_a_workload_that_would_load_nothing_of_the_delivery_is_kept(self) -> None:
        elsewhere = change(component("store", scopes=["other"]), None)
        assert only([elsewhere], self.app, sidecars={}).action is Action.KEEP

    def test_a_replacement_without_a_sidecar_is_not_evicted_again(self) -> None:
        bare = workload(kind="ReplicaSet", update=Update.NONE, desired=1)
        old, new = (pod(bare.ref, name, created=at, sidecar=None) for name, at in (("old", NOW), ("new", LATER)))
        both = only([STORE], msgspec.structs.replace(bare, pods=(old, new)), written=NOW, applied=True)
        assert (both.action, both.pods) == (Action.EVICT, (old.uid,))
        last = only([STORE], msgspec.structs.replace(bare, pods=(new,)), written=NOW, applied=True)
        assert last.action is Action.RESTART_NEEDED
        assert "injector" in last.reason


class TestRestartNeeded:
    @pytest.mark.parametrize("update", [Update.ON_DELETE, Update.RECREATE])
    def test_its_owner_may_allow_a_restart_that_is_not_gradual(self, update: Update) -> None:
        assert only([STORE], workload(update=update, allowed=True), COLD).action is Action.RESTART
        assert only([STORE], workload(update=update, allowed=True, paused=True), COLD).action is Action.RESTART_NEEDED

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"opted_out": True}, "opted out"),
            ({"paused": True}, "resume"),
            ({"enabled": False}, "would remove it"),
            ({"update": Update.ON_DELETE}, "OnDelete"),
            ({"update": Update.RECREATE}, "Recreate"),
            ({"update": Update.PARTITIONED, "allowed": True}, "partition"),
            ({"kind": "Job", "api_version": "batch/v1", "update": Update.NONE}, "a Job cannot change"),
            ({"kind": "Pod", "api_version": "v1", "update": Update.NONE}, "no controller"),
            (
                {"kind": "Rollout", "api_version": "argoproj.io/v1alpha1", "update": Update.NONE},
                "a Rollout (argoproj.io/",
            ),
            ({"kind": "ReplicaSet", "api_version": "x.io/v1", "update": Update.NONE}, "a ReplicaSet (x.io/v1)"),
            ({"kind": "ReplicaSet", "update": Update.NONE}, "its owner is not known"),
        ],
    )
    def test_a_workload_that_the_agent_must_not_restart(self, fields: Manifest, reason: str) -> None:
        made = planned([STORE], observed(workload(**fields), known=COLD))
        assert made.workloads[0].action is Action.RESTART_NEEDED
        assert made.workloads[0].reason.startswith("restart needed: ")
        assert reason in made.workloads[0].reason
        assert set(made.workloads[0].obstacles) == {STORE.ref}
        assert made.waves == ()

    def test_a_cron_job_loads_the_change_at_its_next_run(self) -> None:
        fields: Manifest = {"kind": "CronJob", "api_version": "batch/v1", "update": Update.NEXT_RUN}
        assert only([STORE], workload(**fields), COLD).action is Action.NEXT_RUN
        assert only([STORE], workload(pods=(), **fields)).action is Action.NEXT_RUN
        assert only([STORE], workload(**fields)).action is Action.RELOAD

    def test_a_bare_replica_set_is_restarted_by_eviction(self) -> None:
        bare = workload(kind="ReplicaSet", update=Update.NONE, desired=1)
        found = only([STORE], bare, COLD)
        assert (found.action, found.pods) == (Action.EVICT, (bare.pods[0].uid,))

    def test_a_pod_that_an_eviction_for_this_content_created_is_not_evicted_again(self) -> None:
        bare = workload(kind="ReplicaSet", update=Update.NONE, desired=2)
        digest = only([STORE], bare, COLD).digest
        carrying = pod(bare.ref, "carrying", restart_digest=digest)
        again = msgspec.structs.replace(bare, restart_digest=digest, pods=(carrying,))
        assert only([STORE], again, COLD, applied=True).action is Action.AWAIT
        half = msgspec.structs.replace(again, pods=(*bare.pods, carrying))
        found = only([STORE], half, COLD, applied=True)
        assert (found.action, found.pods) == (Action.EVICT, (bare.pods[0].uid,))


class TestImage:
    @pytest.mark.parametrize(
        ("injected", "requested", "change"),
        [
            ("daprd:2", "", "daprd changes from daprd:1 to daprd:2"),
            ("daprd:1", "", ""),
            ("", "", ""),
            ("mirror.example.com:5000/dapr/daprd:1", "", ""),
            ("daprd:1", "team/daprd:2", "daprd changes from daprd:1 to team/daprd:2"),
            ("daprd:2", "daprd:1", ""),
            ("example.com:5000/daprd", "", "daprd changes from daprd:1 to example.com:5000/daprd"),
        ],
    )
    def test_a_restart_that_changes_the_version_of_daprd_says_so(
        self, injected: str, requested: str, change: str
    ) -> None:
        app = workload(sidecar_image=requested)
        found = only([STORE], app, COLD, control_plane=dapr(sidecar_image=injected))
        assert found.image_change == change
        assert found.text == (f"{found.reason}; {change}" if change else found.reason)

    def test_pods_with_different_sidecars_are_named(self) -> None:
        app = workload()
        pods = (*app.pods, pod(app.ref, "other", sidecar=Container("daprd:2", id="c1")))
        assert "daprd:1, daprd:2" in only([STORE], workload(pods=pods), COLD).image_change


class TestRolling:
    def test_workloads_are_restarted_one_after_another(self) -> None:
        made = planned([STORE], observed(workload("b"), workload("a"), known=COLD), ROLLING)
        assert [[ref.name for ref in wave] for wave in made.waves] == [["a"], ["b"]]

    def test_an_unfinished_restart_comes_first(self) -> None:
        apps = [workload("a"), workload("b")]
        before = planned([STORE], observed(*apps, known=COLD), ROLLING)
        apps[1] = msgspec.structs.replace(apps[1], restart_digest=before.workloads[1].digest)
        made = planned([STORE], observed(*apps, known=COLD, applied=True), ROLLING)
        assert [[ref.name for ref in wave] for wave in made.waves] == [["b"], ["a"]]

    def test_policy_report_does_not_prevent_it(self) -> None:
        policy = ApplyPolicy(strategy=Strategy.ROLLING, unproven=Unproven.REPORT)
        assert only([STORE], workload(), COLD, policy).action is Action.RESTART

    @pytest.mark.parametrize("changed", [STORE, RETRIES])
    def test_it_is_rejected_where_sidecars_take_the_change_at_once(self, changed: Expected) -> None:
        made = plan(Changes([changed]), observed(workload("a"), workload("b")), ROLLING)
        assert isinstance(made, Rejection)
        reason = made.reasons[changed.ref]
        assert "default/Deployment/a (a-0), default/Deployment/b (b-0)" in reason
        assert "use strategy reload" in reason

    def test_a_sidecar_that_could_not_be_probed_counts_as_one_that_does(self) -> None:
        assert isinstance(plan(Changes([STORE]), observed(workload(), sidecars={}), ROLLING), Rejection)

    def test_a_kind_that_is_loaded_only_at_startup_can_be_rolled_with_hot_reload(self) -> None:
        hot = SidecarFacts("1.16.0", HOT)
        assert isinstance(plan(Changes([RETRIES]), observed(workload(), known=hot), ROLLING), Plan)
        assert isinstance(plan(Changes([STORE]), observed(workload(), known=hot), ROLLING), Rejection)

    def test_a_long_list_is_cut(self) -> None:
        app = workload()
        pods = tuple(pod(app.ref, f"p{number}") for number in range(5))
        made = plan(Changes([STORE]), observed(workload(pods=pods)), ROLLING)
        assert isinstance(made, Rejection)
        assert "(p0, p1, p2 and 2 more)" in made.reasons[STORE.ref]

    def test_nothing_is_rejected_once_the_change_is_written(self) -> None:
        assert isinstance(plan(Changes([STORE]), observed(workload(), applied=True), ROLLING), Plan)


class TestWaves:
    def test_workloads_without_actors_restart_at_once(self) -> None:
        made = planned([STORE], observed(workload("a"), workload("b"), known=COLD))
        assert [len(wave) for wave in made.waves] == [2]

    def test_one_workload_with_actors_per_namespace_at_a_time(self) -> None:
        actors = SidecarFacts("1.16.0", hosts_actors=True)
        apps = [workload(name, namespace=namespace) for namespace in ("default", "other") for name in ("a", "b")]
        plain = workload("c")
        known = {**facts(apps, actors), **facts([plain], COLD)}
        elsewhere = change(component("store", "new", namespace="other"), None)
        made = planned([STORE, elsewhere], observed(*apps, plain, sidecars=known))
        assert [[str(ref) for ref in wave] for wave in made.waves] == [
            ["default/Deployment/a", "default/Deployment/c", "other/Deployment/a"],
            ["default/Deployment/b", "other/Deployment/b"],
        ]

    def test_a_workload_whose_sidecars_are_unknown_may_host_actors(self) -> None:
        made = planned([STORE], observed(workload("a"), workload("b"), sidecars={}))
        assert [len(wave) for wave in made.waves] == [1, 1]
        assert [each.hosts_actors for each in made.workloads] == [None, None]


class TestRestraint:
    HOLD = Hold(NOW + timedelta(hours=1), "inventory")
    CLOSED = (Window(f"{NOW + timedelta(hours=2):%H:%M}", 60),)

    def reasons(self, made: Plan, *, is_new: bool, scope: WindowScope = WindowScope.RESTARTS) -> list[str]:
        """Return the reasons why a plan waits outside of a window, under a hold, and without either."""
        given = Delivery("r1", 1, 1, 1, "sha256:1", (), (), ApplyPolicy(windows=scope))
        restrained = [
            msgspec.structs.replace(given, windows=self.CLOSED),
            msgspec.structs.replace(given, hold=self.HOLD),
            given,
        ]
        found = [restraint(made, each, NOW, is_new=is_new) for each in restrained]
        return [each.reason if each else "" for each in found]

    def test_new_content_waits_if_it_restarts_anything_and_under_a_hold(self) -> None:
        reloads, restarts = planned([STORE], observed(workload("a"))), planned([RETRIES], observed(workload("a")))
        assert (actions(reloads), actions(restarts)) == ({"a": Action.RELOAD}, {"a": Action.RESTART})
        assert self.reasons(reloads, is_new=True) == ["", HELD, ""]
        assert self.reasons(reloads, is_new=True, scope=WindowScope.ALL) == [WAITING_FOR_WINDOW, HELD, ""]
        assert self.reasons(restarts, is_new=True) == [WAITING_FOR_WINDOW, HELD, ""]

    def test_of_content_that_is_applied_only_restarts_wait(self) -> None:
        reloads, restarts = planned([STORE], observed(workload("a"))), planned([RETRIES], observed(workload("a")))
        assert self.reasons(reloads, is_new=False, scope=WindowScope.ALL) == ["", "", ""]
        assert self.reasons(restarts, is_new=False) == [WAITING_FOR_WINDOW, HELD, ""]


class TestAdopted:
    @pytest.mark.parametrize("policy", [ApplyPolicy(), REPORT, ROLLING], ids=["reload", "report", "rolling"])
    def test_what_was_adopted_as_it_is_restarts_nothing(self, policy: ApplyPolicy) -> None:
        same = unchanged(component("store"))
        assert only([same], workload(), policy=policy, adopted=frozenset({same.ref})).action is Action.KEEP
        assert only([same], workload()).action is Action.RESTART

    def test_a_change_beside_it_restarts_what_it_must(self) -> None:
        same = unchanged(component("other"))
        made = only([same, RETRIES], workload(), known=COLD, adopted=frozenset({same.ref}))
        assert made.action is Action.RESTART
