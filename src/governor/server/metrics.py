"""Metrics of the server. Labels never contain names chosen by users or runtimes, which bounds their number."""

from collections.abc import Callable
from typing import Final

from governor.process.telemetry.instruments import Counter, Gauge, Histogram, Registry

_CHANGE_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
AGES: Final = {"0s": 0, "1m": 60, "10m": 600, "1h": 3600, "1d": 86400}
"""Ages of pending deliveries, in seconds."""
_BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The server's metrics on the program's registry."""

    def __init__(self, registry: Registry) -> None:
        self.requests = Counter(
            "governor_server_requests_total", "Requests served.", ["method", "route", "status"], registry=registry
        )
        self.changes = Counter("governor_server_changes_total", "Changes by outcome.", ["outcome"], registry=registry)
        self.change_seconds = Histogram(
            "governor_server_change_seconds",
            "Time to decide and store a change, in seconds.",
            buckets=_CHANGE_S,
            registry=registry,
        )
        self.compilations = Counter(
            "governor_server_compilations_total", "Classes of runtimes compiled for changes.", registry=registry
        )
        self.deliveries = Counter("governor_server_deliveries_total", "Deliveries issued.", registry=registry)
        self.reports = Counter(
            "governor_server_reports_total",
            "Reports received, by whether they were stored.",
            ["kept"],
            registry=registry,
        )
        self.fanout_seconds = Histogram(
            "governor_server_fanout_seconds",
            "Time until the deliveries of a batch are encoded, signed and written, in seconds.",
            buckets=_CHANGE_S,
            registry=registry,
        )
        self.stalled = Counter(
            "governor_server_stalled_streams_total",
            "Streams aborted because the client stopped reading.",
            registry=registry,
        )
        self.commit_size = Histogram(
            "governor_server_commit_size", "Transactions per commit.", buckets=_BATCH, registry=registry
        )
        self.pending = Gauge(
            "governor_server_pending_deliveries",
            "Newest deliveries of runtimes that are not acknowledged, by the least age.",
            ["age"],
            registry=registry,
        )
        self.unissued = Gauge(
            "governor_server_unissued_deliveries", "Deliveries of accepted changes not issued yet.", registry=registry
        )
        self.rejected = Counter(
            "governor_server_limited_total", "Requests rejected by a limit.", ["limit"], registry=registry
        )
        self._watches = Gauge("governor_server_open_watches", "Open watches of runtimes.", registry=registry)

    def observe_watches(self, count: Callable[[], int]) -> None:
        """Call ``count`` for the number of open watches at each scrape."""
        self._watches.set_function(count)
