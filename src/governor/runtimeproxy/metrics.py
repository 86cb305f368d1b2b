"""Metrics of the runtime proxy."""

from collections.abc import Callable, Iterable
from typing import Protocol

from governor.process.telemetry.instruments import (
    Counter,
    CounterChild,
    Gauge,
    Histogram,
    HistogramChild,
    Registry,
)
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.held_budget import HeldBudget
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.ops.tap import Tap
from governor.runtimeproxy.plugins.client import Plugins
from governor.runtimeproxy.store.cache import RecordCache
from governor.runtimeproxy.upstream import Upstreams
from governor.wire.hooks.points import Hook


class HookMetrics:
    """Metrics of held calls and plugin calls. Instruments are looked up once: that takes longer than counting."""

    def __init__(self, registry: Registry) -> None:
        prefix = "governor_proxy"
        self.calls = Counter(
            f"{prefix}_held_calls_total",
            "Held calls, by outcome.",
            ["call", "outcome"],
            registry=registry,
        )
        self.plugin_calls = Counter(
            f"{prefix}_plugin_calls_total",
            "Calls to plugins, by result.",
            ["plugin", "hook", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            f"{prefix}_plugin_seconds",
            "Duration of plugin calls in seconds.",
            ["plugin"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 10.0),
            registry=registry,
        )
        self.changes = Counter(
            f"{prefix}_changed_fields_total", "Request fields changed by plugins.", ["plugin"], registry=registry
        )
        self.observed = Counter(
            f"{prefix}_observed_fields_total",
            "Request fields that plugins in mode observe would have changed.",
            ["plugin"],
            registry=registry,
        )
        self.conflicts = Counter(
            f"{prefix}_conflicts_total", "Fields that two plugins set to different values.", registry=registry
        )
        self.missed = Counter(
            f"{prefix}_missed_notifications_total",
            "Notifications after a call that a plugin has not received, or may not have received.",
            ["plugin", "hook"],
            registry=registry,
        )
        self.late = Counter(
            f"{prefix}_late_notifications_total",
            "Notifications after a call that were delivered when the plugin could be reached again.",
            ["plugin", "hook"],
            registry=registry,
        )
        self._of_plugin: dict[tuple[str, Hook, str], tuple[CounterChild, HistogramChild]] = {}
        self._of_call: dict[tuple[str, str], CounterChild] = {}

    def count_plugin_call(self, name: str, hook: Hook, result: str, seconds: float) -> None:
        """Count a call of a plugin."""
        found = self._of_plugin.get((name, hook, result))
        if found is None:
            found = self.plugin_calls.labels(name, str(hook), result), self.seconds.labels(name)
            self._of_plugin[name, hook, result] = found
        calls, duration = found
        calls.inc()
        duration.observe(seconds)

    def count_missed(self, plugin: str, hook: Hook) -> None:
        """Count a notification that a plugin will never receive, or may not have received."""
        self.missed.labels(plugin, str(hook)).inc()

    def count_late(self, plugin: str, hook: Hook) -> None:
        """Count a notification that was delivered late."""
        self.late.labels(plugin, str(hook)).inc()

    def count_call(self, call: str, outcome: str) -> None:
        """Count a held call."""
        found = self._of_call.get((call, outcome))
        if found is None:
            found = self._of_call[call, outcome] = self.calls.labels(call, outcome)
        found.inc()


class Observed(Protocol):
    """The server of kubelet's socket, as far as it is measured."""

    budget: HeldBudget

    def count(self, *, copied: bool) -> int:
        """Return how many open connections are copied, or relayed."""

    def held_bytes(self) -> int:
        """Return the size of all held messages."""

    def streams(self) -> int:
        """Return the number of calls in progress."""


def observe(
    registry: Registry, server: Observed, records: RecordCache, plugins: Plugins, upstreams: Upstreams, tap: Tap
) -> None:
    """Register gauges that read the state of the components on each scrape."""
    connections = Gauge("governor_proxy_connections", "Open client connections.", ["mode"], registry=registry)
    connections.labels("copied").set_function(lambda: server.count(copied=True))
    connections.labels("relayed").set_function(lambda: server.count(copied=False))
    streams = Gauge("governor_proxy_streams", "Calls in progress.", registry=registry)
    streams.set_function(server.streams)
    held = Gauge("governor_proxy_held_bytes", "Bytes of held messages.", registry=registry)
    held.set_function(server.held_bytes)
    waiting = Gauge("governor_proxy_waiting_requests", "Requests that wait to be held.", registry=registry)
    waiting.set_function(lambda: server.budget.waiting)
    recorded = Gauge("governor_proxy_records", "Recorded sandboxes and containers.", ["kind"], registry=registry)
    recorded.labels("sandbox").set_function(lambda: records.sandbox_count)
    recorded.labels("container").set_function(lambda: records.container_count)
    registered = Gauge("governor_proxy_plugins", "Registered plugins.", registry=registry)
    registered.set_function(lambda: len(plugins.registrations.by_file))
    errors = Gauge("governor_proxy_plugin_file_errors", "Errors in plugin files.", registry=registry)
    errors.set_function(lambda: sum(each.is_error for each in plugins.registrations.problems))
    up = Gauge(
        "governor_proxy_runtime_up", "Whether the last connection attempt to the runtime succeeded.", registry=registry
    )
    up.set_function(lambda: not upstreams.unreachable(Peer.RUNTIME))
    taps = Gauge("governor_proxy_taps", "Open taps.", registry=registry)
    taps.set_function(lambda: tap.readers)


def observe_policies(registry: Registry, count: Callable[[], int], errors: Callable[[], int]) -> None:
    """Register the gauges of policies."""
    in_force = Gauge("governor_proxy_policies", "Policies in force.", registry=registry)
    in_force.set_function(count)
    invalid = Gauge("governor_proxy_policy_file_errors", "Errors in policy files.", registry=registry)
    invalid.set_function(errors)


def observe_windows(registry: Registry, flow_controls: Callable[[Peer], Iterable[FlowControl]]) -> None:
    """Register flow-control gauges; with no call in progress they return to their initial values."""
    labels = ["peer", "direction"]
    windows = Gauge(
        "governor_proxy_window_bytes",
        "Flow-control windows of relayed connections, in bytes.",
        labels,
        registry=registry,
    )
    unread = Gauge("governor_proxy_unread_bytes", "Bytes received and not yet forwarded.", ["peer"], registry=registry)

    def total(peer: Peer, of: Callable[[FlowControl], int]) -> Callable[[], int]:
        return lambda: sum(of(each) for each in flow_controls(peer))

    for peer in Peer:
        name = peer.name.lower()
        windows.labels(name, "send").set_function(total(peer, lambda each: each.send_window))
        windows.labels(name, "receive").set_function(total(peer, lambda each: each.receivable))
        unread.labels(name).set_function(total(peer, lambda each: each.unread_bytes))
