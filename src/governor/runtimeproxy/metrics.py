"""What the runtime proxy counts."""

from collections.abc import Callable

from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry
from governor.runtimeproxy.http2.flow_control import FlowControl
from governor.runtimeproxy.http2.streams import Peer
from governor.runtimeproxy.ops.tap import Tap
from governor.runtimeproxy.plugins.plugin import Plugins
from governor.runtimeproxy.splice import Splice
from governor.runtimeproxy.store.store import Store
from governor.runtimeproxy.upstream import Upstreams


class HookMetrics:
    """Counted where plugins are asked."""

    def __init__(self, registry: Registry) -> None:
        prefix = "governor_proxy"
        self.calls = Counter(
            f"{prefix}_held_calls_total",
            "Calls that were held, by what became of them.",
            ["call", "outcome"],
            registry=registry,
        )
        self.asked = Counter(
            f"{prefix}_plugin_calls_total",
            "Plugins asked or told, by result.",
            ["plugin", "hook", "result"],
            registry=registry,
        )
        self.seconds = Histogram(
            f"{prefix}_plugin_seconds",
            "How long plugins took.",
            ["plugin"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 10.0),
            registry=registry,
        )
        self.changes = Counter(
            f"{prefix}_changed_fields_total", "Fields of requests that plugins changed.", ["plugin"], registry=registry
        )
        self.conflicts = Counter(
            f"{prefix}_conflicts_total", "Fields that two plugins set differently.", registry=registry
        )


def observe(registry: Registry, splice: Splice, store: Store, plugins: Plugins, upstreams: Upstreams, tap: Tap) -> None:
    """Show the state of the parts, read when somebody asks."""
    connections = Gauge("governor_proxy_connections", "Open connections of clients.", ["mode"], registry=registry)
    connections.labels("copied").set_function(lambda: splice.count(copied=True))
    connections.labels("relayed").set_function(lambda: splice.count(copied=False))
    streams = Gauge("governor_proxy_streams", "Calls that are under way.", registry=registry)
    streams.set_function(splice.streams)
    _observe_windows(registry, splice)
    held = Gauge("governor_proxy_held_bytes", "Bytes of messages that wait for plugins.", registry=registry)
    held.set_function(splice.held_bytes)
    records = Gauge("governor_proxy_records", "Sandboxes and containers that are known.", ["kind"], registry=registry)
    records.labels("sandbox").set_function(lambda: store.sandboxes)
    records.labels("container").set_function(lambda: store.containers)
    registered = Gauge("governor_proxy_plugins", "Plugins in force.", registry=registry)
    registered.set_function(lambda: len(plugins.registrations.by_file))
    wrong = Gauge("governor_proxy_plugin_file_errors", "What is wrong in plugins' files.", registry=registry)
    wrong.set_function(lambda: sum(each.is_error for each in plugins.registrations.problems))
    up = Gauge("governor_proxy_runtime_up", "Whether the runtime could be reached last.", registry=registry)
    up.set_function(lambda: not upstreams.unreachable(Peer.RUNTIME))
    taps = Gauge("governor_proxy_taps", "Readers of the live view of calls.", registry=registry)
    taps.set_function(lambda: tap.readers)


def _observe_windows(registry: Registry, splice: Splice) -> None:
    """The accounts of flow control: when no call is under way they are what they were at the start."""
    labels = ["peer", "direction"]
    windows = Gauge("governor_proxy_window_bytes", "Windows of relayed connections.", labels, registry=registry)
    unread = Gauge("governor_proxy_unread_bytes", "Bytes that were not passed on yet.", ["peer"], registry=registry)

    def total(peer: Peer, of: Callable[[FlowControl], int]) -> Callable[[], int]:
        return lambda: sum(of(each) for each in splice.flow_controls(peer))

    for peer in Peer:
        name = peer.name.lower()
        windows.labels(name, "send").set_function(total(peer, lambda each: each.send_window))
        windows.labels(name, "receive").set_function(total(peer, lambda each: each.receivable))
        unread.labels(name).set_function(total(peer, lambda each: each.unread_bytes))
