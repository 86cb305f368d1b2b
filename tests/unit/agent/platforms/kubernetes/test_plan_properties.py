"""Properties of plans over generated clusters, against an oracle that was written from the facts about Dapr alone."""

from collections.abc import Iterator
from random import Random

import msgspec
from hypothesis import event, given
from hypothesis import strategies as st

from governor.agent.platforms.kubernetes.plans.affected import Changes
from governor.agent.platforms.kubernetes.plans.hot_reload import SidecarFacts
from governor.agent.platforms.kubernetes.plans.plan import Action, Observed, Plan, Rejection, WorkloadPlan, plan
from governor.agent.platforms.kubernetes.workloads.workload import Container, Pod, Update, Workload
from governor.agent.verification.resources import loaded_digest
from governor.agent.verification.verdicts import Expected, Proof
from governor.domain.documents import ApplyPolicy, ResourceRef, Strategy, Unproven
from governor.domain.reports import Evidence, WorkloadRef
from tests.unit.agent.platforms.kubernetes import oracle
from tests.unit.agent.platforms.kubernetes.bed import NOW, Manifest, resource

NAMESPACES, APP_IDS, CONFIGURATIONS = ("n1", "n1", "n2"), ("a", "b"), ("conf", "", "other")
VERSIONS = ("1.12.0", "1.13.0", "1.14.4", "1.16.0", "1.17.1", "1.18.0", "1.18.2", "1.18.3", "1.18.3", "1.18.3")
TYPES = ("state.redis", "pubsub.redis", "bindings.kafka", "middleware.http.ratelimit")
STORE_TYPE = "secretstores.local.file"
OWNERS = (
    ("apps/v1", "Deployment", Update.ROLLING),
    ("apps/v1", "Deployment", Update.RECREATE),
    ("apps/v1", "StatefulSet", Update.ROLLING),
    ("apps/v1", "StatefulSet", Update.ON_DELETE),
    ("apps/v1", "StatefulSet", Update.PARTITIONED),
    ("apps/v1", "DaemonSet", Update.ROLLING),
    ("apps/v1", "ReplicaSet", Update.NONE),
    ("batch/v1", "CronJob", Update.NEXT_RUN),
    ("batch/v1", "Job", Update.NONE),
    ("v1", "Pod", Update.NONE),
    ("argoproj.io/v1alpha1", "Rollout", Update.NONE),
)
RESTARTS = {Action.RESTART, Action.EVICT}


class Cluster(msgspec.Struct, frozen=True):
    """A generated cluster and a delivery for it; every sidecar has proven what does not change for it."""

    changes: tuple[Expected, ...]
    workloads: tuple[Workload, ...]
    sidecars: dict[str, SidecarFacts]

    @property
    def observed(self) -> Observed:
        return Observed(self.workloads, self.sidecars, self._proofs())

    def _proofs(self) -> dict[str, dict[ResourceRef, Proof]]:
        evidence = Evidence("sidecar", NOW, "seen")
        kept = {
            each.ref: Proof(loaded_digest(each.new), evidence)
            for each in self.changes
            if each.new == each.old
            if each.new
        }
        return {pod.instance: kept for each in self.workloads for pod in each.pods if pod.instance}


def rarely(rng: Random) -> bool:
    return rng.random() < 0.1


def a_manifest(rng: Random, kind: str, namespace: str, name: str) -> Manifest:
    more: Manifest = {}
    spec: Manifest = {"value": rng.randrange(2)}
    if kind == "Component":
        marked = [{"name": "actorStateStore", "value": "true"}] if rng.random() < 0.5 else []
        spec |= {"type": STORE_TYPE if name == "r0" else rng.choice(TYPES), "metadata": marked}
        if rng.random() < 0.5:
            more["auth"] = {"secretStore": "r0"}
    if kind not in {"Configuration", "Secret"}:
        more["scopes"] = rng.choice([[], ["a"], ["b"], ["a", "b"], ["unknown"]])
    return resource(kind, name, spec, namespace, **more)


def an_expectation(rng: Random, number: int) -> Expected:
    kind = rng.choice([*["Component"] * 5, "Configuration", "Secret", *sorted(oracle.WITH_SCOPES)])
    namespace = rng.choice(NAMESPACES)
    name = "conf" if kind == "Configuration" else f"r{number}"
    old, new = (a_manifest(rng, kind, namespace, name) for _ in range(2))
    if kind == "Component":
        # A delivery does not turn a Component into one of another category under the same name.
        new["spec"]["type"] = old["spec"]["type"]
    versions = rng.choice([(new, old), (new, old), (new, None), (None, old), (old, old)])
    return Expected(ResourceRef(kind, namespace, name), *versions)


def a_pod(rng: Random, owner: WorkloadRef, app_id: str, configuration: str, number: int) -> Pod:
    sidecar = None if rarely(rng) else Container("daprd", id="c1", started=NOW)
    name = f"{owner.name}-{number}"
    return Pod(owner.namespace, name, name, NOW, app_id, owner, configuration=configuration, sidecar=sidecar)


def a_workload(rng: Random, number: int) -> Workload:
    api_version, kind, update = OWNERS[number % len(OWNERS)]
    ref = WorkloadRef(rng.choice(NAMESPACES), kind, f"w{number}")
    app_id, configuration = rng.choice(APP_IDS), rng.choice(CONFIGURATIONS)
    own = tuple(a_pod(rng, ref, app_id, configuration, each) for each in range(rng.choice([0, 1, 1, 2])))
    return Workload(
        ref,
        api_version,
        update,
        own,
        desired=len(own),
        paused=rarely(rng),
        opted_out=rarely(rng),
        app_id=app_id,
        configuration=configuration,
    )


def some_facts(rng: Random) -> SidecarFacts:
    features = frozenset({"HotReload"} if rng.random() < 0.7 else ())
    return SidecarFacts(rng.choice(VERSIONS), features, hosts_actors=rng.random() < 0.5)


def some_sidecars(rng: Random, workload: Workload) -> dict[str, SidecarFacts]:
    """Return the facts of a workload's sidecars: mostly of one version; now and then one does not respond."""
    common = some_facts(rng)
    known = {pod.uid: some_facts(rng) if rarely(rng) else common for pod in workload.pods if pod.sidecar}
    return {uid: one for uid, one in known.items() if not rarely(rng)}


def a_cluster(rng: Random) -> Cluster:
    """Return a cluster with workloads of each sort, and a delivery of a few resources; some without hot reload."""
    changes = {each.ref: each for each in (an_expectation(rng, number) for number in range(4))}
    workloads = tuple(a_workload(rng, number) for number in range(2 * len(OWNERS)))
    sidecars = {uid: one for each in workloads for uid, one in some_sidecars(rng, each).items()}
    if rng.random() < 0.4:
        uids = [pod.uid for each in workloads for pod in each.pods if pod.sidecar]
        sidecars = {uid: SidecarFacts("1.16.0", hosts_actors=rng.random() < 0.5) for uid in uids}
    return Cluster(tuple(changes.values()), workloads, sidecars)


clusters = st.randoms(use_true_random=True).map(a_cluster)
policies = st.builds(ApplyPolicy, unproven=st.sampled_from(Unproven))


def is_change(each: Expected) -> bool:
    return each.new != each.old


def seen(workload: Workload, each: Expected) -> Expected:
    """Return a resource as the workload's sidecars see it, by the oracle."""
    place = (workload.app_id, workload.ref.namespace, workload.configuration)
    new, old = (one if oracle.concerns(*place, [one]) else None for one in (each.new, each.old))
    return Expected(each.ref, new, old)


def changes_for(workload: Workload, cluster: Cluster) -> list[Expected]:
    """Return what changes for a workload, by the oracle."""
    return [found for each in cluster.changes if is_change(found := seen(workload, each))]


def misses_sidecar(workload: Workload, cluster: Cluster) -> bool:
    """Return whether a pod should have loaded something of the delivery and has no sidecar, by the oracle."""
    loaded = [each for each in cluster.changes if seen(workload, each) != Expected(each.ref, None, None)]
    return bool(loaded) and any(pod.sidecar is None for pod in workload.pods)


def parsed(version: str) -> oracle.Version:
    major, minor, patch = map(int, version.split("."))
    return major, minor, patch


def takes(pod: Pod, each: Expected, cluster: Cluster) -> str | None:
    """Return how a pod's sidecar takes a change, by the oracle; None if it is unknown."""
    known = cluster.sidecars.get(pod.uid)
    if known is None:
        return None
    hot_reload = "HotReload" in known.features
    versions = [one for one in (each.new, each.old) if one is not None]
    found = {oracle.takes(parsed(known.version), one, hot_reload=hot_reload) for one in versions}
    return oracle.START if oracle.START in found else found.pop()


def reads_from_changed_store(workload: Workload, cluster: Cluster) -> bool:
    changed = changes_for(workload, cluster)
    stores = [
        each.ref.name for each in changed if each.old and each.old["spec"].get("type", "").startswith("secretstores.")
    ]
    loaded = [found.new for each in cluster.changes if (found := seen(workload, each)).new]
    return any(oracle.names_store(each, store) for each in loaded if each for store in stores)


def running(workload: Workload) -> Iterator[Pod]:
    return (pod for pod in workload.pods if pod.sidecar)


def by_workload(cluster: Cluster, made: Plan) -> Iterator[tuple[Workload, WorkloadPlan]]:
    plans = {each.workload: each for each in made.workloads}
    assert plans.keys() == {each.ref for each in cluster.workloads}
    return ((each, plans[each.ref]) for each in cluster.workloads)


def planned(cluster: Cluster, policy: ApplyPolicy) -> Plan:
    made = plan(Changes(cluster.changes), cluster.observed, policy)
    assert isinstance(made, Plan)
    return made


@given(clusters, policies)
def test_exactly_the_workloads_that_load_a_change_are_affected_and_no_other_is_touched(
    cluster: Cluster, policy: ApplyPolicy
) -> None:
    for workload, found in by_workload(cluster, planned(cluster, policy)):
        changed = changes_for(workload, cluster)
        assert [each for each in found.expected if each.changed] == changed
        event(f"affected: {bool(changed)}")
        if not changed and not misses_sidecar(workload, cluster):
            assert found.action is Action.KEEP


@given(clusters, policies, st.booleans())
def test_only_workloads_that_may_be_restarted_are(cluster: Cluster, policy: ApplyPolicy, rolling: bool) -> None:
    strategy = Strategy.ROLLING if rolling else Strategy.RELOAD
    made = plan(Changes(cluster.changes), cluster.observed, msgspec.structs.replace(policy, strategy=strategy))
    if isinstance(made, Rejection):
        return
    for workload, found in by_workload(cluster, made):
        if found.action in RESTARTS:
            assert oracle.rolls(workload.api_version, workload.ref.kind, workload.update.value)
            assert not workload.opted_out
            assert not workload.paused
        event(f"action: {found.action}")


@given(clusters)
def test_a_workload_reloads_only_what_all_of_its_sidecars_load_while_they_run(cluster: Cluster) -> None:
    for workload, found in by_workload(cluster, planned(cluster, ApplyPolicy())):
        changed = changes_for(workload, cluster)
        uptakes = {takes(pod, each, cluster) for pod in running(workload) for each in changed}
        if found.action is Action.RELOAD:
            assert not found.obstacles
            assert uptakes == {oracle.LIVE}
            assert not misses_sidecar(workload, cluster)
            assert not reads_from_changed_store(workload, cluster)
        if uptakes - {oracle.LIVE} or (uptakes and reads_from_changed_store(workload, cluster)):
            assert found.action in RESTARTS | {Action.RESTART_NEEDED, Action.NEXT_RUN}


@given(clusters)
def test_rolling_is_rejected_exactly_where_a_sidecar_would_take_the_change_at_once(cluster: Cluster) -> None:
    at_once: dict[ResourceRef, set[WorkloadRef]] = {}
    for workload in cluster.workloads:
        for each in changes_for(workload, cluster):
            if any(takes(pod, each, cluster) != oracle.START for pod in running(workload)):
                at_once.setdefault(each.ref, set()).add(workload.ref)
    made = plan(Changes(cluster.changes), cluster.observed, ApplyPolicy(strategy=Strategy.ROLLING))
    event(f"rejected: {isinstance(made, Rejection)}")
    reasons = made.reasons if isinstance(made, Rejection) else {}
    assert reasons.keys() == at_once.keys()
    for ref, text in reasons.items():
        named = {each.ref for each in cluster.workloads if f"{each.ref} (" in text}
        assert named <= at_once[ref]
        assert len(named) == min(len(at_once[ref]), 10)


@given(clusters, st.booleans())
def test_each_restart_is_in_one_wave_and_actors_of_a_namespace_are_not_together(
    cluster: Cluster, rolling: bool
) -> None:
    strategy = Strategy.ROLLING if rolling else Strategy.RELOAD
    made = plan(Changes(cluster.changes), cluster.observed, ApplyPolicy(strategy=strategy))
    if isinstance(made, Rejection):
        return
    restarted = [ref for wave in made.waves for ref in wave]
    assert sorted(restarted) == sorted(each.workload for each in made.workloads if each.action in RESTARTS)
    actors = {each.workload for each in made.workloads if each.may_host_actors}
    for wave in made.waves:
        namespaces = [ref.namespace for ref in wave if ref in actors]
        assert len(namespaces) == len(set(namespaces))
        assert not rolling or len(wave) == 1


@given(clusters, st.randoms(use_true_random=True))
def test_no_workload_is_restarted_twice_for_the_same_write(cluster: Cluster, rng: Random) -> None:
    first = {each.workload: each.digest for each in planned(cluster, ApplyPolicy()).workloads}
    patched = tuple(msgspec.structs.replace(each, restart_digest=first[each.ref]) for each in cluster.workloads)
    # What the sidecars report may change meanwhile.
    sidecars = {uid: one for each in patched for uid, one in some_sidecars(rng, each).items()}
    made = plan(Changes(cluster.changes), Observed(patched, sidecars, applied=True), ApplyPolicy())
    assert isinstance(made, Plan)
    assert Action.RESTART not in {each.action for each in made.workloads}
