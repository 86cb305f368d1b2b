"""Composition of the runtime proxy: the only module that imports all of its parts."""

import os
from logging import getLogger
from pathlib import Path
from typing import Final

import governor
from governor.errors import GovernorError
from governor.process import supervise
from governor.process.address import listen
from governor.process.clock import SystemClock
from governor.process.supervise import Component, Lifecycle
from governor.process.telemetry import logging
from governor.process.telemetry.health import Checks, HealthServer
from governor.process.telemetry.metrics import LoopLag, program_registry
from governor.runtimeproxy.endpoint import Endpoint, claim
from governor.runtimeproxy.hooks.connections import PluginHooks
from governor.runtimeproxy.hooks.dispatch import Dispatcher, HookSettings
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.metrics import HookMetrics, observe
from governor.runtimeproxy.ops.control_server import MODE, ControlServer
from governor.runtimeproxy.ops.explain import Explainer
from governor.runtimeproxy.ops.tap import Tap
from governor.runtimeproxy.ops.watchdog import ServiceManager, Watchdog, probe
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.plugins.directory import HookDirectory
from governor.runtimeproxy.settings import Settings
from governor.runtimeproxy.splice import DRAIN_S, Splice
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.store.history import History
from governor.runtimeproxy.store.runtime import Runtime
from governor.runtimeproxy.upstream import Upstreams

_GRACE_S: Final = DRAIN_S + 5.0

_log = logging.get_logger(__name__)


def main(settings: Settings) -> int:
    """Run the proxy until it ends and return the exit code."""
    logging.configure("runtime-proxy", level=settings.log_level)
    # Its debug log contains every header field, including secrets.
    getLogger("hpack").setLevel("WARNING")
    endpoint = claim(Path(settings.listen_path))
    try:
        return supervise.main(lambda: run(settings, endpoint))
    finally:
        endpoint.remove()


async def run(settings: Settings, endpoint: Endpoint) -> int:
    """Create the components and run them until a signal arrives."""
    lifecycle = Lifecycle()
    plugins, runtime = Plugins(SystemClock(), settings.plugin_timeout), Runtime(settings.runtime_path)
    try:
        components = await _components(settings, endpoint, plugins, runtime, lifecycle)
        return await supervise.run_program(components, grace_s=_GRACE_S, lifecycle=lifecycle)
    finally:
        plugins.close()
        runtime.close()


async def _components(
    settings: Settings, endpoint: Endpoint, plugins: Plugins, runtime: Runtime, lifecycle: Lifecycle
) -> list[Component]:
    clock = SystemClock()
    registry = program_registry("runtime-proxy", governor.__version__)
    records, metrics = RecordCache(runtime, clock), HookMetrics(registry)
    upstreams = Upstreams(_paths(settings), clock)
    history = History(lambda: {each.pod.pod_meta.uid for each in records.sandboxes()})
    tap, hook_settings = Tap(), _hook_settings(settings)
    dispatcher = Dispatcher(plugins, records, hook_settings, metrics, history, runtime.stop_container)
    hooks = PluginHooks(plugins, dispatcher, metrics, tap, records)
    splice = Splice(endpoint, upstreams, hooks)
    observe(registry, splice, records, plugins, upstreams, tap)

    def plugins_changed() -> None:
        records.set_needed(needed=hooks.has_plugins)
        splice.hooks_changed()

    def tap_changed() -> int:
        hooks.tap_changed()
        return splice.hooks_changed()

    plugins.changed, tap.changed, upstreams.recovered = plugins_changed, tap_changed, records.mark_stale
    directory = HookDirectory(settings.hook_server_dir, plugins, clock)
    # Before the first call is accepted, so that none bypasses a registered plugin.
    await directory.poll()
    checks = Checks()
    watchdog = Watchdog(ServiceManager(os.environ), lambda: probe(endpoint), clock)
    checks.alive("socket", lambda: endpoint.unreachable() or watchdog.failing())
    checks.ready("lifecycle", lifecycle.not_ready)
    for peer in _paths(settings):
        checks.ready(peer.name.lower(), lambda peer=peer: upstreams.unreachable(peer))  # type: ignore[misc]
    health = HealthServer(listen(settings.health_listen), checks, registry)
    return [
        Component("health", health.run),
        Component("loop-lag", LoopLag(registry, clock).run),
        *_control(settings, Explainer(records, runtime, plugins, hook_settings, history), tap),
        Component("upstreams", upstreams.run),
        Component("store", records.run),
        Component("plugins", directory.run),
        Component("splice", splice.run),
        Component("watchdog", watchdog.run),
    ]


def _control(settings: Settings, explainer: Explainer, tap: Tap) -> list[Component]:
    """Return the control server; without its socket the proxy still serves kubelet."""
    try:
        endpoint = claim(Path(settings.control_path), MODE)
    except GovernorError as error:
        _log.warning("explain and tap are unavailable", error=error.message)
        return []
    return [Component("control", ControlServer(endpoint, explainer, tap).run)]


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
