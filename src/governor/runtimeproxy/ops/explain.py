"""Why a pod is as it is: what the runtime was told of it, which plugins are asked about it, and what they did."""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.calls import CALLS_OF_HOOKS
from governor.runtimeproxy.hooks.dispatch import Rules
from governor.runtimeproxy.hooks.resources import FIELDS, HUGEPAGES, UNIFIED, Resources
from governor.runtimeproxy.ops.control import (
    ContainerExplanation,
    HookExplanation,
    PluginTurn,
    PodExplanation,
    PodList,
    PodSummary,
    SandboxExplanation,
)
from governor.runtimeproxy.plugins.plugin import Plugins
from governor.runtimeproxy.plugins.registration import Registration
from governor.runtimeproxy.plugins.registry import skips
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.store.records import Container, Sandbox
from governor.runtimeproxy.store.runtime import Runtime
from governor.runtimeproxy.store.store import Store
from governor.values.selectors import Expression
from governor.wire.hooks.points import Hook

T = TypeVar("T")

Records: TypeAlias = list[tuple[Sandbox, list[Container]]]


class Explainer:
    """Tells what is known. While there are no plugins nothing is remembered, and the runtime is asked on the spot."""

    def __init__(self, store: Store, runtime: Runtime, plugins: Plugins, rules: Rules, history: History) -> None:
        self._store = store
        self._runtime = runtime
        self._plugins = plugins
        self._rules = rules
        self._history = history

    @property
    def _kept(self) -> bool:
        return bool(self._plugins.registrations.by_file)

    async def pods(self) -> PodList:
        """All pods: those that run, and those of which only a history is left."""
        found: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
        for namespace, name, uid, sandbox_id in [*await self._identities(), *self._remembered()]:
            uids, sandboxes = found.setdefault((namespace, name), (set(), set()))
            uids.update({uid} - {""})
            sandboxes.update({sandbox_id} - {""})
        pods = (
            PodSummary(namespace, name, tuple(sorted(uids)), tuple(sorted(sandboxes)))
            for (namespace, name), (uids, sandboxes) in sorted(found.items())
        )
        return PodList(self._kept, tuple(pods))

    async def _identities(self) -> list[tuple[str, str, str, str]]:
        if self._kept:
            known = [(each.pod.pod_meta, each.id) for each in self._store.pods()]
            return [(meta.namespace, meta.name, meta.uid, sandbox_id) for meta, sandbox_id in known]
        listed = [(each.metadata, each.id) for each in await _told(self._runtime.sandboxes())]
        return [(meta.namespace, meta.name, meta.uid, sandbox_id) for meta, sandbox_id in listed]

    def _remembered(self) -> list[tuple[str, str, str, str]]:
        return [(each.namespace, each.name, each.uid, "") for each in self._history]

    async def pod(self, namespace: str, name: str) -> PodExplanation:
        """One pod; NOT_FOUND if nobody knows it."""
        trails, records, unasked = self._history.of(namespace, name), self._from_store(namespace, name), ""
        if not records:
            # What was made behind our back a moment ago only the runtime knows.
            try:
                records = await _told(self._from_runtime(namespace, name))
            except GovernorError as error:
                if not trails:
                    raise
                unasked = error.message
        if not (records or trails):
            message = f"neither the runtime proxy nor the runtime knows a pod {namespace}/{name}"
            raise GovernorError(Kind.NOT_FOUND, "unknown-pod", message)
        registrations = self._plugins.registrations
        newest = max((sandbox for sandbox, _ in records), key=lambda each: each.pod.pod_meta.attempt, default=None)
        labels = dict(newest.pod.labels) if newest is not None else {}
        annotations = dict(newest.pod.annotations) if newest is not None else {}
        return PodExplanation(
            namespace=namespace,
            name=name,
            kept=self._kept,
            unasked=unasked,
            sandboxes=tuple(_sandbox(sandbox, containers) for sandbox, containers in records),
            skipped=self._skipped(labels, annotations),
            labels_that_matter=_labels_that_matter(registrations.by_file.values(), self._rules.skip_key),
            hooks=tuple(self._hook(hook, labels, annotations) for hook in Hook) if newest is not None else (),
            trails=trails,
            problems=tuple(map(str, registrations.problems)),
        )

    def _from_store(self, namespace: str, name: str) -> Records:
        metas = ((each, each.pod.pod_meta) for each in self._store.pods())
        found = [each for each, meta in metas if (meta.namespace, meta.name) == (namespace, name)]
        return [(each, self._store.containers_of(each.id)) for each in found]

    async def _from_runtime(self, namespace: str, name: str) -> Records:
        metas = [(each.id, each.metadata) for each in await self._runtime.sandboxes()]
        ids = [each for each, meta in metas if (meta.namespace, meta.name) == (namespace, name)]
        listed = await self._runtime.containers() if ids else []
        records: Records = []
        for each in ids:
            sandbox = await _unless_gone(self._runtime.sandbox(each))
            if sandbox is None:
                continue
            own = [container for container in listed if container.pod_sandbox_id == each]
            found = [await _unless_gone(self._runtime.container(container, sandbox)) for container in own]
            records.append((sandbox, [container for container in found if container is not None]))
        return records

    def _skipped(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
        key, value = self._rules.skip_key, self._rules.skip_value
        if not skips(key, value, labels, annotations):
            return ""
        return f"the pod has the {'label' if labels.get(key) == value else 'annotation'} {key}={value}"

    def _hook(self, hook: Hook, labels: Mapping[str, str], annotations: Mapping[str, str]) -> HookExplanation:
        registrations, skipped = self._plugins.registrations, self._skipped(labels, annotations)
        asked = () if skipped else registrations.asked(hook, labels)
        others = [each for each in registrations.by_file.values() if each not in asked]
        turns = [
            *(self._turn(each, hook, self._plugins.left_alone(each), asked=True) for each in asked),
            *(self._turn(each, hook, why_not(each, hook, labels) or skipped, asked=False) for each in others),
        ]
        return HookExplanation(str(hook), CALLS_OF_HOOKS[hook], tuple(turns))

    def _turn(self, registration: Registration, hook: Hook, why: str, *, asked: bool) -> PluginTurn:
        return PluginTurn(
            plugin=registration.name,
            asked=asked,
            why=why,
            order=registration.order,
            timeout_s=registration.timeout_s or self._rules.plugin_timeout_s,
            policy=str(registration.policies.get(hook, "")),
        )


async def _told(asked: Awaitable[T]) -> T:
    """What the runtime tells; if it does not, whatever the reason, that is UNAVAILABLE for who asks the proxy."""
    try:
        return await asked
    except GovernorError as error:
        raise GovernorError(Kind.UNAVAILABLE, "runtime", f"the runtime could not be asked: {error.message}") from error


async def _unless_gone(asked: Awaitable[T]) -> T | None:
    """What the runtime tells of something that it has listed a moment ago, or nothing if it has gone meanwhile."""
    try:
        return await asked
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return None


def why_not(registration: Registration, hook: Hook, labels: Mapping[str, str]) -> str:
    """Why a plugin is not asked by a hook about a pod with these labels; nothing if it is."""
    if hook not in registration.policies:
        return "the hook is not in its runtime-hooks"
    wrong = [*_wrong_labels(registration, labels), *_wrong_expressions(registration, labels)]
    return f"its selector does not match: {'; '.join(wrong)}" if wrong else ""


def _wrong_labels(registration: Registration, labels: Mapping[str, str]) -> Iterator[str]:
    for key, value in registration.match_labels.items():
        if labels.get(key) != value:
            yield f"label {key} must be {value!r} and {_is(labels, key)}"


def _wrong_expressions(registration: Registration, labels: Mapping[str, str]) -> Iterator[str]:
    for each in registration.match_expressions:
        if not each.matches(labels):
            yield f"label {each.key} must be {wanted(each)} and {_is(labels, each.key)}"


def wanted(expression: Expression) -> str:
    """What an expression wants of its label."""
    values = f" ({', '.join(expression.values)})" if expression.values else ""
    return f"{expression.operator}{values}"


def _is(labels: Mapping[str, str], key: str) -> str:
    return f"is {labels[key]!r}" if key in labels else "is not there"


def _labels_that_matter(registrations: Iterable[Registration], skip_key: str) -> tuple[str, ...]:
    """Those on which it depends who is asked."""
    selected = {
        key for each in registrations for key in (*each.match_labels, *(own.key for own in each.match_expressions))
    }
    return tuple(sorted({skip_key, *selected} - {""}))


def _sandbox(sandbox: Sandbox, containers: Iterable[Container]) -> SandboxExplanation:
    pod = sandbox.pod
    return SandboxExplanation(
        id=sandbox.id,
        uid=pod.pod_meta.uid,
        attempt=pod.pod_meta.attempt,
        runtime_handler=pod.runtime_handler,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
        cgroup_parent=pod.cgroup_parent,
        resources=_resources(pod.resources),
        overhead=_resources(pod.overhead),
        containers=tuple(map(_container, containers)),
    )


def _container(container: Container) -> ContainerExplanation:
    told = container.container
    return ContainerExplanation(
        id=container.id,
        name=told.container_meta.name,
        attempt=told.container_meta.attempt,
        annotations=dict(told.container_annotations),
        resources=_resources(told.container_resources),
        environment=tuple(sorted(told.container_envs)),
    )


def _resources(resources: Resources) -> dict[str, Any]:
    """What is specified."""
    values = {name: getattr(resources, name) for name in FIELDS if getattr(resources, name)}
    if HUGEPAGES in values:
        values[HUGEPAGES] = {each.page_size: each.limit for each in resources.hugepage_limits}
    if UNIFIED in values:
        values[UNIFIED] = dict(resources.unified)
    return values
