"""Composition of the runtime proxy: the only module that imports all of its parts."""

import gc
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import governor
from governor.errors import GovernorError
from governor.process import supervise
from governor.process.child.exec import command_from
from governor.process.clock import SystemClock
from governor.process.supervise import Component, Lifecycle
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import LoopLag, program_registry
from governor.runtimeproxy.endpoint import Endpoint, claim
from governor.runtimeproxy.front import Front, Parts
from governor.runtimeproxy.handover import Gate, Predecessor, Successor
from governor.runtimeproxy.hooks.dispatch import Dispatcher
from governor.runtimeproxy.hooks.handlers import Handlers
from governor.runtimeproxy.hooks.rounds import HookContext, HookSettings
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.inheritance import Inheritance
from governor.runtimeproxy.metrics import HookMetrics, observe, observe_policies
from governor.runtimeproxy.ops.control_server import MODE, ControlServer
from governor.runtimeproxy.ops.explain import Explainer
from governor.runtimeproxy.ops.tap import Tap
from governor.runtimeproxy.ops.watchdog import ServiceManager, Watchdog
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.plugins.messages import state_request
from governor.runtimeproxy.plugins.registration import SUFFIX
from governor.runtimeproxy.plugins.registry import Problem, reload
from governor.runtimeproxy.plugins.resync import Resync
from governor.runtimeproxy.serving import DRAIN_S
from governor.runtimeproxy.settings import Settings
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.upstream import Upstreams
from governor.runtimeproxy.watched_directory import POLICY_SUFFIXES, Contents, WatchedDirectory

if TYPE_CHECKING:
    from governor.runtimeproxy.policies.source import PolicySource

_GRACE_S: Final = DRAIN_S + 5.0
_TRIM_ABOVE_BYTES: Final = 8 * 1024 * 1024

_log = logging.get_logger(__name__)


def main(settings: Settings) -> int:
    """Run the proxy until it ends and return the exit code."""
    logging.configure("runtime-proxy", level=settings.log_level)
    start = Start(command_from(os.environ), Inheritance.from_environment(os.environ))
    endpoint = claim(Path(settings.listen_path), start.inheritance)
    try:
        return supervise.main(lambda: run(settings, endpoint, start))
    finally:
        endpoint.remove()


class Start(msgspec.Struct, frozen=True):
    """How this process was started: the command, and what it inherits."""

    command: list[str]
    inheritance: Inheritance


async def run(settings: Settings, endpoint: Endpoint, start: Start) -> int:
    """Create the components and run them until a signal arrives."""
    lifecycle = Lifecycle()
    front = _front(settings)
    registry = program_registry("runtime-proxy", governor.__version__)
    core = _Core(settings, endpoint, front, registry)
    predecessor = Predecessor(start.inheritance.channel)
    try:
        # Before the first call is accepted, so that none bypasses a registered plugin.
        await core.plugin_directory.poll()
        await core.policy_directory.poll()
        components = _components(core, start, predecessor, lifecycle)
        await predecessor.wait_until_it_pauses()
        _exclude_from_collections()
        return await supervise.run_program(components, grace_s=_GRACE_S, lifecycle=lifecycle)
    finally:
        core.serving.audit.flush()
        core.plugins.close()
        front.runtime.close()


def _front(settings: Settings) -> Front:
    # Only one of them is loaded.
    if settings.is_docker:
        from governor.runtimeproxy.docker.front import docker_front  # noqa: PLC0415

        return docker_front(settings.runtime_path)
    from governor.runtimeproxy.cri.front import cri_front  # noqa: PLC0415

    return cri_front(settings.runtime_path)


def _exclude_from_collections() -> None:
    """Exclude what was loaded so far, which is never freed, from garbage collections."""
    gc.collect()
    gc.freeze()


class _Core:
    """The components that serve kubelet, connected to each other."""

    def __init__(self, settings: Settings, endpoint: Endpoint, front: Front, registry: Registry) -> None:
        clock, handlers = SystemClock(), Handlers()
        self.settings, self.endpoint, self.registry = settings, endpoint, registry
        metrics = HookMetrics(registry)
        self.plugins = plugins = Plugins(clock, settings.plugin_timeout, handlers, metrics)
        self._handlers, self._policies = handlers, _LazyPolicies(handlers)
        self.front, runtime = front, front.runtime
        self.records = RecordCache(runtime, clock)
        self.upstreams = Upstreams(_paths(settings), clock)
        history = History(lambda: {each.pod.identity.uid for each in self.records.sandboxes()})
        self.tap, hook_settings = Tap(), _hook_settings(settings)
        thread = ThreadPoolExecutor(1, "large-messages")
        context = HookContext(front.codec, handlers, self.records, hook_settings, metrics, thread)
        dispatcher = Dispatcher(context, self.records, history, runtime.stop_container)
        parts = Parts(endpoint, self.upstreams, handlers, dispatcher, metrics, self.tap, self.records, registry, thread)
        self.serving = front.serve(parts)
        self.server = self.serving.server
        self.explainer = Explainer(self.records, runtime, handlers, self._problems, hook_settings, history)
        self.resync = Resync(lambda: [*plugins.clients], self._state, clock)
        self.plugin_directory = WatchedDirectory(settings.hook_server_dir, (SUFFIX,), self._read_plugins, clock)
        self.policy_directory = WatchedDirectory(settings.policy_dir, POLICY_SUFFIXES, self._policies.replace, clock)
        observe(registry, self.server, self.records, plugins, self.upstreams, self.tap)
        observe_policies(registry, lambda: self._policies.count, lambda: len(self._policies.problems))
        handlers.changed, self.tap.changed = self._handlers_changed, self._tap_changed
        self.server.budget.emptied = partial(_trim, thread)
        self.upstreams.recovered = self.records.mark_stale

    def _read_plugins(self, contents: Contents) -> None:
        self.plugins.replace(reload(self.plugins.registrations, contents))

    def _handlers_changed(self) -> None:
        self.records.set_needed(needed=bool(self._handlers.all))
        self.records.remember_environment(remembers=self.plugins.registrations.remember_environment)
        self.server.hooks_changed()

    def _state(self) -> bytes:
        return state_request(self.records.sandboxes(), self.records.containers_of)

    def _problems(self) -> list[str]:
        return [str(each) for each in (*self.plugins.registrations.problems, *self._policies.problems)]

    def _tap_changed(self) -> int:
        self.serving.tap_changed()
        return self.server.hooks_changed()


class _LazyPolicies:
    """The policies, whose engine is loaded with the first file of a policy: most proxies have none."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._source: PolicySource | None = None

    @property
    def count(self) -> int:
        """Return the number of policies in force."""
        return len(self._source.policies.all) if self._source else 0

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problems in the current files."""
        return self._source.policies.problems if self._source else ()

    def replace(self, contents: Contents) -> None:
        """Use the present content of the files."""
        if self._source is None:
            from governor.runtimeproxy.policies.source import PolicySource  # noqa: PLC0415 - loads the YAML parser

            self._source = PolicySource(self._handlers)
        self._source.replace(contents)


def _trim(thread: ThreadPoolExecutor, peak_bytes: int) -> None:
    """Give the memory of large requests back, in the thread that processes them."""
    if peak_bytes > _TRIM_ABOVE_BYTES:
        # Imported here, since most proxies never hold a large request.
        from governor.process.memory import trim  # noqa: PLC0415

        thread.submit(trim)


def _components(core: _Core, start: Start, predecessor: Predecessor, lifecycle: Lifecycle) -> list[Component]:
    clock, manager = SystemClock(), ServiceManager(os.environ)
    health_listener = start.inheritance.at_address(core.settings.health_listen)
    control = _control(core, start)
    endpoints = [core.endpoint] if control is None else [core.endpoint, control.endpoint]
    watchdog = Watchdog(
        manager,
        lambda: core.front.probe(core.endpoint),
        clock,
        lambda: _take_over(predecessor, start.inheritance, endpoints),
    )
    health = HealthServer(health_listener, _checks(core, watchdog, lifecycle), core.registry)
    if unused := start.inheritance.close_rest():
        _log.warning("inherited sockets that no setting names are closed", sockets=unused)
    servers: list[Gate] = [health] if control is None else [health, control]
    successor = Successor(start.command, [health_listener], endpoints, core.server, servers, manager)
    if control is not None:
        control.upgrade = successor.upgrade
    return [
        Component("health", health.run),
        Component("loop-lag", LoopLag(core.registry, clock).run),
        *([] if control is None else [Component("control", control.run)]),
        Component("successor", successor.run),
        Component("upstreams", core.upstreams.run),
        Component("store", core.records.run),
        Component("plugins", core.plugin_directory.run),
        Component("resync", core.resync.run),
        Component("policies", core.policy_directory.run),
        Component("server", core.server.run),
        Component("watchdog", watchdog.run),
    ]


async def _take_over(predecessor: Predecessor, inheritance: Inheritance, endpoints: Sequence[Endpoint]) -> None:
    await predecessor.take_over(governor.__version__)
    for each in endpoints:
        if inheritance.owns(each.path):
            each.own()


def _checks(core: _Core, watchdog: Watchdog, lifecycle: Lifecycle) -> Checks:
    checks = Checks()
    checks.alive("socket", lambda: core.endpoint.unreachable() or watchdog.failing())
    checks.ready("lifecycle", lifecycle.not_ready)
    for peer in _paths(core.settings):
        checks.ready(peer.name.lower(), lambda peer=peer: core.upstreams.unreachable(peer))  # type: ignore[misc]
    return checks


def _control(core: _Core, start: Start) -> ControlServer | None:
    """Return the control server; without its socket the proxy still serves kubelet."""
    try:
        endpoint = claim(Path(core.settings.control_path), start.inheritance, MODE)
    except GovernorError as error:
        _log.warning("explain, tap and upgrade are unavailable", error=error.message)
        return None
    return ControlServer(endpoint, core.explainer, core.tap)


def _paths(settings: Settings) -> dict[Peer, str]:
    paths = {Peer.RUNTIME: settings.runtime_path}
    if settings.image_path:
        paths[Peer.IMAGES] = settings.image_path
    return paths


def _hook_settings(settings: Settings) -> HookSettings:
    return HookSettings(
        settings.plugin_timeout,
        settings.conflicts,
        settings.runtime_hook_server_key,
        settings.runtime_hook_server_val,
    )
