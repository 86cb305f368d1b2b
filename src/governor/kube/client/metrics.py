"""How the requests to clusters are counted, under the names that dashboards for Kubernetes clients know.

No label says which cluster: there may be ten thousand.
"""

from typing import Final

from governor.process.telemetry.instruments import Counter, CounterChild, Histogram, HistogramChild, Registry

NO_ANSWER: Final = "<error>"
_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class RestMetrics:
    """The counters of one program's cluster clients."""

    def __init__(self, registry: Registry) -> None:
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to API servers, by the code of the answer and by method.",
            ["code", "method"],
            registry=registry,
        )
        self._duration = Histogram(
            "rest_client_request_duration_seconds",
            "How long an API server took to answer; of a watch, to begin.",
            ["verb"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        # Finding a labelled counter takes longer than counting.
        self._counters: dict[tuple[int, str], tuple[CounterChild, HistogramChild]] = {}

    def record(self, method: str, status: int, took_s: float) -> None:
        """Count one attempt; status 0 means that there was no answer."""
        counters = self._counters.get((status, method))
        if counters is None:
            code = str(status) if status else NO_ANSWER
            counters = (self._requests.labels(code, method), self._duration.labels(method))
            self._counters[status, method] = counters
        counters[0].inc()
        counters[1].observe(took_s)
