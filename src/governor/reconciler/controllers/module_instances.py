"""Works on each ModuleInstance: runs its steps, and turns their result into status, Event and requeue."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from governor.domain.conditions import Actor
from governor.errors import GovernorError, Kind
from governor.kube.applyset import Repair
from governor.kube.controller import Context, Controller, EventType, NamespacedName
from governor.kube.controller.finalizer import FINALIZED
from governor.kube.controller.views import readable
from governor.kube.objects import ObjectRef
from governor.kube.reflector import Entry, Store
from governor.process.clock import Clock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Done, Failed, Outcome, Requeue, Stalled, Waiting
from governor.process.telemetry.logging import correlation_id
from governor.reconciler.controllers.demand import ModuleObservation, WorkerScaler
from governor.reconciler.controllers.module_mapping import (
    is_changed,
    is_state_changed,
    neighbours,
    of_module,
    on_cluster,
    reading_config_map,
    reading_secret,
)
from governor.reconciler.controllers.notifications import Wakeups, itself
from governor.reconciler.controllers.retries import BLOCKERS, paced, seen_in
from governor.reconciler.controllers.watched import (
    NOT_OURS,
    SETTINGS,
    ConfigMapSource,
    SecretSource,
    run_annotations,
    secret_version,
    stamped,
)
from governor.reconciler.core_kinds import CONFIG_MAPS, SECRETS
from governor.reconciler.kinds.cluster import CLUSTER, Cluster
from governor.reconciler.kinds.definition import GROUP
from governor.reconciler.kinds.failure import ESCALATED
from governor.reconciler.kinds.module import MODULE, Module, module_object_name
from governor.reconciler.kinds.module_instance import (
    FINALIZER,
    MODULE_INSTANCE,
    ModuleInstance,
    ModuleInstanceStatus,
    Rollback,
    instance_name,
)
from governor.reconciler.notifications.delivery import Deliveries
from governor.reconciler.notifications.notification import notification_id
from governor.reconciler.render.masking import sensitive_texts, without_texts
from governor.reconciler.resolution.catalogue import INSTANCE_INDEXES
from governor.reconciler.states.escalation import escalated_status, escalation_event, next_failure, policy_of
from governor.reconciler.states.instance_state import (
    deleting_status,
    instance_status,
    processing_status,
    rolled_back_status,
)
from governor.reconciler.states.rollback import (
    active_rollback,
    effective,
    rollback_by_policy,
    rolled_back,
    with_known_good,
)
from governor.reconciler.steps.adoption import check_adoption, find_former_owner
from governor.reconciler.steps.apply import apply, begin, check_deviation, prepare
from governor.reconciler.steps.comparison import check_claim, check_given_up, compare
from governor.reconciler.steps.dependencies import check_dependencies
from governor.reconciler.steps.health import check_health
from governor.reconciler.steps.hooks import run_after, run_before, write_record
from governor.reconciler.steps.inputs import check_connection, check_hold, check_module, check_version, read_values
from governor.reconciler.steps.protection import protect
from governor.reconciler.steps.removal import remove
from governor.reconciler.steps.rendering import leave_definitions, render
from governor.reconciler.steps.step import (
    CLUSTER_PAUSED,
    RECHECK_S,
    Halt,
    Halted,
    Paused,
    Retry,
    Step,
    Target,
    Tools,
    Unreachable,
    Work,
    run,
)
from governor.reconciler.target_watches import TargetWatches
from governor.values.printing import listed
from governor.values.secret import Secret

NAME: Final = "module-instances"
WORKERS: Final = 8
BACKOFF: Final = Backoff(initial_s=1.0, max_s=300.0)
UNREACHABLE_RECHECK_S: Final = 60.0
STEPS: Final[Sequence[Step]] = (
    check_hold,
    check_module,
    check_connection,
    check_version,
    read_values,
    compare,
    check_given_up,
    check_claim,
    check_dependencies,
    find_former_owner,
    render,
    leave_definitions,
    check_adoption,
    begin,
    write_record,
    prepare,
    run_before,
    apply,
    protect,
    run_after,
    check_deviation,
    check_health,
)


class ModuleWork:
    """Runs the steps for ModuleInstances; remembers only how often drift was repaired."""

    def __init__(self, tools: Tools, targets: TargetWatches, clock: Clock, deliveries: Deliveries) -> None:
        self._tools = tools
        self._targets = targets
        self._clock = clock
        self._deliveries = deliveries
        self.key = Secret("")
        """Key of digests of values; set before the first run."""
        self._repairs: dict[ObjectRef, tuple[Repair, ...]] = {}

    async def reconcile(self, context: Context[ModuleInstance]) -> Outcome:
        """Bring a module to its desired state, as far as possible without waiting."""
        rollback, work = active_rollback(context.object), self.work_of(context)
        instance = work.instance
        result = await run(STEPS, work, "NotApplied")
        self._remember(context.key, result)
        result = without_secrets(result)
        if isinstance(result, Unreachable):
            return Waiting("the cluster does not answer", UNREACHABLE_RECHECK_S)
        status = concluded(context.object, instance_status(instance.status, result), result, rollback)
        return await self._conclude(context, work, result, status)

    def work_of(self, context: Context[ModuleInstance]) -> Work:
        """Return a run for a ModuleInstance: for its spec, or for what it is rolled back to."""
        rollback = active_rollback(context.object)
        instance = effective(context.object, rollback)
        return self._work(context, instance, related(context, instance), is_rollback=rollback is not None)

    async def finalize(self, context: Context[ModuleInstance | None]) -> Outcome:
        """Remove a module from its cluster."""
        instance = context.object
        self._repairs.pop(context.key, None)
        if instance is None:
            return Done()
        work = self._work(context, instance, on_same_cluster(context, instance))
        result = await remove(work)
        if isinstance(result, Paused):
            result = Halted(CLUSTER_PAUSED)
        if isinstance(result, Halted):
            return await self._conclude(context, work, result, deleting_status(_own(instance, result), result.problem))
        return outcome_of(result)

    async def _conclude(
        self, context: Context[Any], work: Work, result: Work | Halted | Paused, status: ModuleInstanceStatus
    ) -> Outcome:
        """Escalate what fails for too long, write the status, and return when to run again."""
        now, before = self._clock.now(), work.instance.status
        policy = policy_of(readable(work.cluster))
        seen = seen_in(work, result, self._deliveries.received(notification_id(before.failure)), now)
        failure = before.failure if isinstance(result, Paused) else next_failure(before.failure, seen, policy, now)
        status = escalated_status(status, failure, policy)
        begun = None if work.is_rollback else rollback_by_policy(work.instance, status)
        status = msgspec.structs.replace(status, rollback=begun) if begun else status
        await _report(context, work.instance, stamped(before, status, work.instance.metadata.generation, now))
        _report_left(context, result)
        if (known := notification_id(before.failure)) != notification_id(failure):
            self._deliveries.forget(known)
        if work.target is not None:
            kinds = BLOCKERS.get(failure.type, ()) if failure else ()
            module, is_due = work.instance.spec.module, isinstance(result, Halted) and result.retry is Retry.BACKOFF
            work.target.watch.blockers.expect(module, kinds)
            work.target.watch.expect_retry(module, is_due=is_due)
        return Requeue(0.0) if begun else paced(outcome_of(result), seen, failure, policy, now)

    def _work(
        self,
        context: Context[Any],
        instance: ModuleInstance,
        others: Mapping[str, Entry[ModuleInstance]],
        *,
        is_rollback: bool = False,
    ) -> Work:
        spec, namespace = instance.spec, context.key.namespace
        cluster = context.store(Cluster).get(ObjectRef(GROUP, CLUSTER.kind, namespace, spec.cluster))
        name = module_object_name(spec.module, spec.version)

        async def save(status: ModuleInstanceStatus) -> None:
            await context.write_status(msgspec.structs.replace(processing_status(status), run=correlation_id()))

        return Work(
            instance=instance,
            cluster=cluster,
            module=context.store(Module).get(ObjectRef(GROUP, MODULE.kind, namespace, name)),
            tools=self._tools,
            key=self.key,
            save=save,
            target=self._target(context, cluster),
            others=others,
            is_rollback=is_rollback,
            kubeconfigs=_kubeconfigs(context.store(Cluster)) if spec.values_from else {},
            repairs=self._repairs.get(context.key, ()),
            status=instance.status,
        )

    def _target(self, context: Context[Any], cluster: Entry[Cluster] | None) -> Target | None:
        if not isinstance(cluster, Cluster):
            return None
        secret = cluster.spec.access.kubeconfig_secret
        version = secret_version(context, secret.name) if secret else ""
        return self._targets.target(cluster, version, NamespacedName(context.key.namespace, context.key.name))

    def _remember(self, key: ObjectRef, result: Work | Halt) -> None:
        work = result.work if isinstance(result, Halted) else result
        if isinstance(work, Work):
            self._repairs.pop(key, None)
            if work.repairs:
                self._repairs[key] = work.repairs


def module_instances_controller(
    work: ModuleWork, targets: TargetWatches, wakeups: Wakeups
) -> Controller[ModuleInstance]:
    """Return the controller."""
    controller = Controller(
        NAME,
        MODULE_INSTANCE.resource,
        ModuleInstance,
        work.reconcile,
        settings=SETTINGS,
        finalize=work.finalize,
        finalizer=FINALIZER,
        indexes=INSTANCE_INDEXES,
        workers=WORKERS,
        backoff=BACKOFF,
        group_of=lambda key: key.name.partition(".")[2],  # fair among clusters
    )
    controller.follows(wakeups.run)
    return _watching(controller, targets).watches(
        MODULE_INSTANCE.resource,
        ModuleInstance,
        neighbours,
        predicate=is_state_changed,
        indexes=INSTANCE_INDEXES,
    )


def module_observation_controller(
    observation: ModuleObservation, targets: TargetWatches, scaler: WorkerScaler
) -> Controller[ModuleInstance]:
    """Return the controller of a process that only watches: it writes nothing but the number of workers."""
    controller = Controller(
        "module-observation",
        MODULE_INSTANCE.resource,
        ModuleInstance,
        observation.reconcile,
        settings=SETTINGS,
        finalize=observation.finalize,
        indexes=INSTANCE_INDEXES,
        workers=WORKERS,
        backoff=BACKOFF,
    )
    controller.follows(scaler.run)
    return _watching(controller, targets).watches(
        MODULE_INSTANCE.resource, ModuleInstance, itself, indexes=INSTANCE_INDEXES
    )


def _watching(controller: Controller[ModuleInstance], targets: TargetWatches) -> Controller[ModuleInstance]:
    """Return the controller with everything that a module is made of watched."""
    controller.follows(targets.run)
    controller.watches(CLUSTER.resource, Cluster, on_cluster, predicate=is_changed)
    controller.watches(MODULE.resource, Module, of_module)
    controller.watches(SECRETS, SecretSource, reading_secret)
    return controller.watches(CONFIG_MAPS, ConfigMapSource, reading_config_map, labels=NOT_OURS)


def concluded(
    instance: ModuleInstance, status: ModuleInstanceStatus, result: Work | Halt, rollback: Rollback | None
) -> ModuleInstanceStatus:
    """Return the status with what a rollback means for it, and with what is known to be good."""
    if isinstance(result, Work) and rollback:
        status = rolled_back_status(status, rolled_back(instance, rollback))
    elif isinstance(result, Work):
        status = with_known_good(status, instance.spec, instance.metadata.generation)
    return msgspec.structs.replace(status, rollback=rollback)


def outcome_of(result: Work | Halt) -> Outcome:
    """Return when a ModuleInstance is reconciled again."""
    match result:
        case Halted(problem=problem, retry=Retry.BACKOFF):
            return Failed(GovernorError(Kind.PRECONDITION, problem.reason, problem.message))
        case Halted(problem=problem, retry=Retry.RECHECK):
            return Waiting(problem.message, RECHECK_S)
        case Halted(problem=problem):
            return Stalled(problem.message)
        case Unreachable():
            return Waiting("the cluster does not answer", UNREACHABLE_RECHECK_S)
        case Work() | Paused():
            return Done()


def without_secrets(result: Work | Halt) -> Work | Halt:
    """Return the result without values from Secrets: API servers quote values that they refuse."""
    if not isinstance(result, Halted) or result.work is None:
        return result
    message = without_texts(result.problem.message, sensitive_texts(result.work.layers))
    return msgspec.structs.replace(result, problem=msgspec.structs.replace(result.problem, message=message))


def related(context: Context[Any], instance: ModuleInstance) -> dict[str, Entry[ModuleInstance]]:
    """Return the ModuleInstances that this one depends on."""
    store, namespace = context.store(ModuleInstance), context.key.namespace
    names = {each: instance_name(each, instance.spec.cluster) for each in instance.spec.depends_on}
    found = {each: store.get(ObjectRef(GROUP, MODULE_INSTANCE.kind, namespace, name)) for each, name in names.items()}
    return {each: entry for each, entry in found.items() if entry is not None}


def on_same_cluster(context: Context[Any], instance: ModuleInstance) -> dict[str, Entry[ModuleInstance]]:
    """Return the other ModuleInstances on the cluster, by module."""
    found = context.store(ModuleInstance).find("cluster", instance.spec.cluster)
    others = (each for each in found if each.metadata.name != instance.metadata.name)
    return {each.metadata.name.partition(".")[0]: each for each in others}


def _kubeconfigs(clusters: Store[Cluster]) -> dict[str, str]:
    views = filter(None, map(readable, clusters.values()))
    found = ((each.spec.access.kubeconfig_secret, each.metadata.name) for each in views)
    return {secret.name: cluster for secret, cluster in found if secret is not None}


def _own(instance: ModuleInstance, result: Halted) -> ModuleInstanceStatus:
    """Return the status that this controller writes; a condition of the finalizer is not its own."""
    status = result.work.status if result.work else instance.status
    own = tuple(each for each in status.conditions if each.type != FINALIZED)
    return msgspec.structs.replace(status, conditions=own)


def _report_left(context: Context[Any], result: Work | Halted | Paused) -> None:
    """Announce the definitions that stay as they are; the same announcement is not repeated."""
    work = result.work if isinstance(result, Halted) else result
    if isinstance(work, Work) and (left := work.left_definitions):
        named = listed(map(str, left))
        message = f"{named}: exists already and does not belong to the module; it stays as it is and is not upgraded"
        context.event("DefinitionsLeft", message, EventType.NORMAL, run_annotations(correlation_id()))


async def _report(context: Context[Any], instance: ModuleInstance, status: ModuleInstanceStatus) -> None:
    before = instance.status
    if not await context.write_status(status):
        return
    annotations = run_annotations(status.run)
    if (status.state, status.reason) != (before.state, before.reason):
        event_type = EventType.WARNING if status.actor is not Actor.NOBODY else EventType.NORMAL
        context.event(status.reason, status.message, event_type, annotations)
    if event := escalation_event(before.failure, status.failure):
        message = f"the {status.actor} must act: {status.message}" if event is ESCALATED else status.message
        context.event(event, message, EventType.WARNING if event is ESCALATED else EventType.NORMAL, annotations)
    if status.adopted is not None and status.adopted != before.adopted:
        message = f"taken over from {status.adopted.source}: {status.adopted.next_step}"
        context.event("Adopted", message, EventType.NORMAL, annotations)
