"""Turns samples into tables: medians, and the comparison with client-go and with the other Python libraries."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from bench.kube.tasks import CLIENT_GO, LIBRARIES, OURS, PROTOBUF, PYTHON_PEERS, Usage

Samples: TypeAlias = Mapping[str, Mapping[str, Sequence[Usage]]]
"""By task, then by library: one per round."""


class Row(msgspec.Struct, frozen=True):
    """Definition of one table row: a figure of one task."""

    title: str
    task: str
    figure: Callable[[Usage], float]
    more_is_better: bool = False
    limit: float | None = None
    """Upper limit for ours, in addition to being the best."""
    is_headline: bool = False
    """Whether it is in the short table and in the chart."""


def _per_second(usage: Usage) -> float:
    return usage.count / usage.seconds


def _cpu_us(usage: Usage) -> float:
    return usage.cpu_seconds / usage.count * 1e6


def _server_cpu_us(usage: Usage) -> float:
    return usage.server_cpu_seconds / usage.count * 1e6


def _resident_kib(usage: Usage) -> float:
    return usage.resident_bytes / usage.count / 1024


def _trimmed_kib(usage: Usage) -> float:
    return usage.trimmed_bytes / usage.count / 1024


HELD: Final = Row("KiB per Deployment held", "cache", _resident_kib, limit=4.0, is_headline=True)
LIVE: Final = Row("CPU µs per watch event, live", "watch", _cpu_us, is_headline=True)
APPLY: Final = Row("CPU µs per apply, 16 at once", "apply-16", _cpu_us, is_headline=True)
GET: Final = Row("CPU µs per get, 16 at once", "get-16", _cpu_us)
ROWS: Final = (
    HELD,
    Row("KiB per idle cluster client", "connect", _resident_kib, limit=25.0, is_headline=True),
    Row("the same without what the allocator keeps", "connect", _trimmed_kib),
    LIVE,
    Row("CPU µs per watch event, replayed", "replay", _cpu_us),
    Row("watch events/s, replayed", "replay", _per_second, more_is_better=True, is_headline=True),
    APPLY,
    Row("applies/s, 16 at once", "apply-16", _per_second, more_is_better=True, is_headline=True),
    Row("applies/s, one at a time", "apply", _per_second, more_is_better=True),
    GET,
    Row("gets/s, 16 at once", "get-16", _per_second, more_is_better=True, is_headline=True),
    Row("gets/s, one at a time", "get", _per_second, more_is_better=True),
)
REQUESTS: Final = {
    "apply-16": "apply, 16 at once",
    "apply": "apply, one at a time",
    "get-16": "get, 16 at once",
    "get": "get, one at a time",
}
TUNED: Final = (
    (HELD, "client-go stripped", "typed informer, a transform removes managedFields"),
    (HELD, "client-go projected", "dynamic informer, a transform keeps the fields that ours keeps"),
    (HELD, "client-go struct", "typed informer, a transform into a hand-written struct of these fields"),
    (LIVE, PROTOBUF, "typed, protobuf instead of JSON"),
    (APPLY, PROTOBUF, "typed, protobuf instead of JSON"),
    (GET, PROTOBUF, "typed, protobuf instead of JSON"),
)
"""client-go changed by hand from how it works by default: a figure, the library's name in the samples, the change."""


class Advantage(msgspec.Struct, frozen=True):
    """Per round: how many times better ours is than the best of some others. Libraries of a round share its noise."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> str:
        """Whether ours is better; undecided if the rounds disagree."""
        if min(self.rounds) < 1 < max(self.rounds):
            return "undecided"
        return "met" if self.median >= 1 else "missed"

    def __str__(self) -> str:
        """Return the median and the range, with the verdict unless ours is better."""
        text = f"{self.median:.2f} ({min(self.rounds):.2f} to {max(self.rounds):.2f})"
        return text if self.verdict == "met" else f"{text}, {self.verdict}"


def figures(row: Row, samples: Samples, library: str) -> list[float]:
    """Return a library's figure in each round."""
    return [row.figure(usage) for usage in samples[row.task][library]]


def median(row: Row, samples: Samples, library: str) -> float:
    """Return the median of a library's rounds."""
    return statistics.median(figures(row, samples, library))


def advantage(row: Row, samples: Samples, others: Sequence[str]) -> Advantage:
    """Compare ours with the best of the others, round by round."""
    rounds = zip(*(figures(row, samples, each) for each in (OURS, *others)), strict=True)
    return Advantage(tuple(_times_better(row, ours, others) for ours, *others in rounds))


def _times_better(row: Row, ours: float, others: Sequence[float]) -> float:
    return ours / max(others) if row.more_is_better else min(others) / ours


def headlines(samples: Samples) -> Iterator[str]:
    """Yield the short Markdown table."""
    return _table([row for row in ROWS if row.is_headline], samples)


def details(samples: Samples) -> Iterator[str]:
    """Yield the Markdown table of all figures, and what the idle clients did not close."""
    yield from _table(ROWS, samples)
    sockets = ", ".join(f"{each} {max(usage.open_sockets for usage in samples['connect'][each])}" for each in LIBRARIES)
    yield ""
    yield f"Connections that the idle clients had not closed: {sockets}."


def _table(rows: Sequence[Row], samples: Samples) -> Iterator[str]:
    yield f"| | {' | '.join(LIBRARIES)} | times better than client-go | than the Python libraries |"
    yield f"|---|{'---|' * (len(LIBRARIES) + 2)}"
    for row in rows:
        ours, *others = (_format(median(row, samples, library)) for library in LIBRARIES)
        compared = [str(advantage(row, samples, peers)) for peers in (CLIENT_GO, PYTHON_PEERS)]
        yield f"| {' | '.join([row.title, ours + _limit(row, samples), *others, *compared])} |"


def _limit(row: Row, samples: Samples) -> str:
    if row.limit is None:
        return ""
    is_kept = median(row, samples, OURS) <= row.limit
    return f" (limit {row.limit:g}{'' if is_kept else ', missed'})"


def shares(samples: Samples) -> Iterator[str]:
    """Yield the Markdown table of where the CPU time of a request is spent: in the client, and in the servers."""
    yield f"| CPU µs: client + servers | {' | '.join(LIBRARIES)} |"
    yield f"|---|{'---|' * len(LIBRARIES)}"
    for task, title in REQUESTS.items():
        client, servers = Row(title, task, _cpu_us), Row(title, task, _server_cpu_us)
        pairs = [(median(client, samples, each), median(servers, samples, each)) for each in LIBRARIES]
        yield f"| {' | '.join([title, *(f'{_format(own)} + {_format(other)}' for own, other in pairs)])} |"


def tuned(samples: Samples) -> Iterator[str]:
    """Yield the Markdown table of client-go changed by hand."""
    yield "| | client-go is changed: | client-go | governor | times better |"
    yield "|---|---|---|---|---|"
    for row, library, change in TUNED:
        theirs, ours = (_format(median(row, samples, each)) for each in (library, OURS))
        yield f"| {row.title} | {change} | {theirs} | {ours} | {advantage(row, samples, [library])} |"


def _format(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"
