"""``explain``, the proxy's side: a pod as the runtime received it, its plugins, and their changes."""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.calls import CALL_OF_HOOK
from governor.runtimeproxy.hooks.rounds import HookSettings
from governor.runtimeproxy.ops.control import (
    ContainerExplanation,
    HookExplanation,
    PluginEntry,
    PodExplanation,
    PodList,
    PodSummary,
    SandboxExplanation,
)
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.plugins.registration import Registration
from governor.runtimeproxy.plugins.registry import skips
from governor.runtimeproxy.store.cache import RecordCache, Runtime
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.store.records import ContainerRecord, Sandbox
from governor.runtimeproxy.workload import Resources
from governor.values.selectors import Expression
from governor.wire.hooks.points import Hook

T = TypeVar("T")

SandboxRecords: TypeAlias = list[tuple[Sandbox, list[ContainerRecord]]]


class Explainer:
    """Explains pods from records or, while there are no plugins and so no records, from the runtime."""

    def __init__(
        self, records: RecordCache, runtime: Runtime, plugins: Plugins, settings: HookSettings, history: History
    ) -> None:
        self._records = records
        self._runtime = runtime
        self._plugins = plugins
        self._settings = settings
        self._history = history

    @property
    def _kept(self) -> bool:
        return bool(self._plugins.registrations.by_file)

    async def pods(self) -> PodList:
        """Return all pods: those with sandboxes, and those of which only a history is left."""
        found: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
        for namespace, name, uid, sandbox_id in [*await self._identities(), *self._in_history()]:
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
            known = [(each.pod.identity, each.id) for each in self._records.sandboxes()]
        else:
            known = [(each.identity, each.id) for each in await _query(self._runtime.sandboxes())]
        return [(identity.namespace, identity.name, identity.uid, sandbox_id) for identity, sandbox_id in known]

    def _in_history(self) -> list[tuple[str, str, str, str]]:
        return [(each.namespace, each.name, each.uid, "") for each in self._history]

    async def pod(self, namespace: str, name: str) -> PodExplanation:
        """Return one pod; raise NOT_FOUND if it is unknown."""
        trails, records, unasked = self._history.of(namespace, name), self._from_records(namespace, name), ""
        if not records:
            # The sandbox may have been created since the last resync, not through the proxy.
            try:
                records = await _query(self._from_runtime(namespace, name))
            except GovernorError as error:
                if not trails:
                    raise
                unasked = error.message
        if not (records or trails):
            message = f"pod {namespace}/{name} is unknown to the runtime proxy and to the runtime"
            raise GovernorError(Kind.NOT_FOUND, "unknown-pod", message)
        registrations = self._plugins.registrations
        newest = max((sandbox for sandbox, _ in records), key=lambda each: each.pod.identity.attempt, default=None)
        labels = dict(newest.pod.labels) if newest is not None else {}
        annotations = dict(newest.pod.annotations) if newest is not None else {}
        return PodExplanation(
            namespace=namespace,
            name=name,
            kept=self._kept,
            unasked=unasked,
            sandboxes=tuple(_sandbox(sandbox, containers) for sandbox, containers in records),
            skipped=self._skipped(labels, annotations),
            labels_that_matter=_selector_keys(registrations.by_file.values(), self._settings.skip_key),
            hooks=tuple(self._hook(hook, labels, annotations) for hook in Hook) if newest is not None else (),
            trails=trails,
            problems=tuple(map(str, registrations.problems)),
        )

    def _from_records(self, namespace: str, name: str) -> SandboxRecords:
        known = ((each, each.pod.identity) for each in self._records.sandboxes())
        found = [each for each, identity in known if (identity.namespace, identity.name) == (namespace, name)]
        return [(each, self._records.containers_of(each.id)) for each in found]

    async def _from_runtime(self, namespace: str, name: str) -> SandboxRecords:
        known = [(each.id, each.identity) for each in await self._runtime.sandboxes()]
        ids = [each for each, identity in known if (identity.namespace, identity.name) == (namespace, name)]
        listed = await self._runtime.containers() if ids else []
        records: SandboxRecords = []
        for each in ids:
            sandbox = await _unless_gone(self._runtime.sandbox(each))
            if sandbox is None:
                continue
            own = [container for container in listed if container.sandbox_id == each]
            found = [await _unless_gone(self._runtime.container(container, sandbox)) for container in own]
            records.append((sandbox, [container for container in found if container is not None]))
        return records

    def _skipped(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
        key, value = self._settings.skip_key, self._settings.skip_value
        if not skips(key, value, labels, annotations):
            return ""
        return f"the pod has the {'label' if labels.get(key) == value else 'annotation'} {key}={value}"

    def _hook(self, hook: Hook, labels: Mapping[str, str], annotations: Mapping[str, str]) -> HookExplanation:
        registrations, skipped = self._plugins.registrations, self._skipped(labels, annotations)
        called = () if skipped else registrations.selecting(hook, labels)
        others = [each for each in registrations.by_file.values() if each not in called]
        entries = [
            *(self._entry(each, hook, self._plugins.circuit_open(each), called=True) for each in called),
            *(self._entry(each, hook, why_not_called(each, hook, labels) or skipped, called=False) for each in others),
        ]
        return HookExplanation(str(hook), CALL_OF_HOOK[hook], tuple(entries))

    def _entry(self, registration: Registration, hook: Hook, why: str, *, called: bool) -> PluginEntry:
        return PluginEntry(
            plugin=registration.name,
            asked=called,
            why=why,
            order=registration.order,
            timeout_s=registration.timeout_s or self._settings.plugin_timeout_s,
            policy=str(registration.policies.get(hook, "")),
        )


async def _query(query: Awaitable[T]) -> T:
    """Await a query of the runtime; raise UNAVAILABLE for any error of it."""
    try:
        return await query
    except GovernorError as error:
        raise GovernorError(
            Kind.UNAVAILABLE, "runtime", f"the runtime could not be queried: {error.message}"
        ) from error


async def _unless_gone(query: Awaitable[T]) -> T | None:
    """Await a query for a listed sandbox or container; return None if it has been removed since."""
    try:
        return await query
    except GovernorError as error:
        if error.kind is not Kind.NOT_FOUND:
            raise
        return None


def why_not_called(registration: Registration, hook: Hook, labels: Mapping[str, str]) -> str:
    """Return why a plugin is not called at a hook for a pod with these labels, or ``""``."""
    if hook not in registration.policies:
        return "the hook is not in its runtime-hooks"
    mismatches = [*_label_mismatches(registration, labels), *_expression_mismatches(registration, labels)]
    return f"its selector does not match: {'; '.join(mismatches)}" if mismatches else ""


def _label_mismatches(registration: Registration, labels: Mapping[str, str]) -> Iterator[str]:
    for key, value in registration.match_labels.items():
        if labels.get(key) != value:
            yield f"label {key} must be {value!r} but {_actual(labels, key)}"


def _expression_mismatches(registration: Registration, labels: Mapping[str, str]) -> Iterator[str]:
    for each in registration.match_expressions:
        if not each.matches(labels):
            yield f"label {each.key} must be {requirement(each)} but {_actual(labels, each.key)}"


def requirement(expression: Expression) -> str:
    """Return an expression's operator and values as text."""
    values = f" ({', '.join(expression.values)})" if expression.values else ""
    return f"{expression.operator}{values}"


def _actual(labels: Mapping[str, str], key: str) -> str:
    return f"is {labels[key]!r}" if key in labels else "is not set"


def _selector_keys(registrations: Iterable[Registration], skip_key: str) -> tuple[str, ...]:
    """Return the label keys that decide which plugins are called."""
    keys = {key for each in registrations for key in (*each.match_labels, *(own.key for own in each.match_expressions))}
    return tuple(sorted({skip_key, *keys} - {""}))


def _sandbox(sandbox: Sandbox, containers: Iterable[ContainerRecord]) -> SandboxExplanation:
    pod = sandbox.pod
    return SandboxExplanation(
        id=sandbox.id,
        uid=pod.identity.uid,
        attempt=pod.identity.attempt,
        runtime_handler=pod.runtime_handler,
        labels=dict(pod.labels),
        annotations=dict(pod.annotations),
        cgroup_parent=pod.cgroup_parent,
        resources=_resources(pod.resources),
        overhead=_resources(pod.overhead),
        containers=tuple(map(_container, containers)),
    )


def _container(record: ContainerRecord) -> ContainerExplanation:
    container = record.container
    return ContainerExplanation(
        id=record.id,
        name=container.name,
        attempt=container.attempt,
        annotations=dict(container.annotations),
        resources=_resources(container.resources),
        environment=tuple(record.variable_names),
    )


def _resources(resources: Resources | None) -> dict[str, Any]:
    """Return the resources that are specified."""
    values = {} if resources is None else msgspec.structs.asdict(resources)
    return {name: value for name, value in values.items() if value}
