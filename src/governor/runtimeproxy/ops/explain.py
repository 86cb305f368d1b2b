"""``explain``, the proxy's side: a pod as the runtime received it, its plugins, and their changes."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.runtimeproxy.hooks.calls import CALL_OF_HOOK
from governor.runtimeproxy.hooks.handlers import Handler, Handlers
from governor.runtimeproxy.hooks.questions import Question
from governor.runtimeproxy.hooks.rounds import HookSettings, skips
from governor.runtimeproxy.ops.control import (
    ContainerExplanation,
    HookExplanation,
    PluginEntry,
    PodExplanation,
    PodList,
    PodSummary,
    SandboxExplanation,
)
from governor.runtimeproxy.store.cache import RecordCache, Runtime
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.store.records import ContainerRecord, Sandbox
from governor.wire.hooks.points import Hook
from governor.wire.hooks.workload import Container, Pod, Resources

T = TypeVar("T")

SandboxRecords: TypeAlias = list[tuple[Sandbox, list[ContainerRecord]]]


class Explainer:
    """Explains pods from records or, while there are no plugins and so no records, from the runtime."""

    def __init__(
        self,
        records: RecordCache,
        runtime: Runtime,
        handlers: Handlers,
        problems: Callable[[], Iterable[str]],
        settings: HookSettings,
        history: History,
    ) -> None:
        self._records = records
        self._runtime = runtime
        self._handlers = handlers
        self._problems = problems
        self._settings = settings
        self._history = history

    @property
    def _kept(self) -> bool:
        return bool(self._handlers.all)

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
        newest = max((sandbox for sandbox, _ in records), key=lambda each: each.pod.identity.attempt, default=None)
        pod = newest.pod if newest is not None else Pod()
        return PodExplanation(
            namespace=namespace,
            name=name,
            kept=self._kept,
            unasked=unasked,
            sandboxes=tuple(_sandbox(sandbox, containers) for sandbox, containers in records),
            skipped=self._skipped(pod.labels, pod.annotations),
            labels_that_matter=self._selector_keys(),
            hooks=tuple(self._hook(hook, pod) for hook in Hook) if newest is not None else (),
            trails=trails,
            problems=tuple(self._problems()),
        )

    def _selector_keys(self) -> tuple[str, ...]:
        """Return the label keys that decide which plugins are called."""
        keys = {key for each in self._handlers.all for key in each.settings.label_keys}
        return tuple(sorted({self._settings.skip_key, *keys} - {""}))

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
        if not skips(self._settings, labels, annotations):
            return ""
        return f"the pod has the {'label' if labels.get(key) == value else 'annotation'} {key}={value}"

    def _hook(self, hook: Hook, pod: Pod) -> HookExplanation:
        question = Question(pod) if hook.is_of_pod else Question(pod, Container())
        skipped, entries = self._skipped(pod.labels, pod.annotations), []
        for each in self._handlers.all:
            why = why_not_called(each, hook, question) or skipped
            entries.append(self._entry(each, hook, why or each.unavailable(), called=not why))
        return HookExplanation(str(hook), CALL_OF_HOOK[hook], tuple(sorted(entries, key=lambda each: not each.asked)))

    def _entry(self, handler: Handler, hook: Hook, why: str, *, called: bool) -> PluginEntry:
        settings = handler.settings
        return PluginEntry(
            plugin=settings.name,
            asked=called,
            why=why,
            order=settings.order,
            timeout_s=settings.timeout_s or self._settings.plugin_timeout_s,
            policy=str(settings.policies.get(hook, "")),
            mode=str(settings.mode),
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


def why_not_called(handler: Handler, hook: Hook, question: Question) -> str:
    """Return why a plugin is not called at a hook about a pod or its containers, or ``""``."""
    if hook not in handler.settings.policies:
        return "the hook is not in its runtime-hooks"
    wrong = handler.mismatch(question)
    return f"its selector does not match: {wrong}" if wrong else ""


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
