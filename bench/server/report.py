"""The table of the server's benchmark, with the aims for ten thousand agents."""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

import msgspec

from bench.percentiles import p99
from bench.server.rounds import Big, Connected, Polling, Shared

PUBLISHED: Final = 10_000
"""Number of agents that the aims are for."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured with one number of agents. Lists have one entry per round."""

    agents: int
    connected: Connected
    shared: tuple[Shared, ...]
    acknowledged: tuple[Shared, ...]
    followed: tuple[Shared, ...]
    polling: tuple[Polling, ...]
    one: tuple[float, ...]
    history: tuple[float, float]
    lists: dict[str, float]
    reconnected: float
    reconnected_cpu: float
    distinct: Shared
    big: Big | None = None
    tls: bool = False


class Row(msgspec.Struct, frozen=True):
    """One line of the table; ``aim`` is the largest value that meets it, ``tls_aim`` another one with TLS."""

    title: str
    value: Callable[[Figures], float | None]
    digits: int = 0
    aim: float | None = None
    tls_aim: float | None = None

    def shown(self, figures: Figures) -> str:
        """Return the text of a cell."""
        value = self.value(figures)
        return "" if value is None else f"{value:,.{self.digits}f}"

    def verdict(self, figures: Figures) -> str:
        """Return the aim and whether it is met; values are compared as they are shown."""
        value = self.value(figures)
        aim = self.tls_aim if figures.tls and self.tls_aim is not None else self.aim
        if aim is None or value is None:
            return ""
        return f"{aim:g}: {'met' if round(value, self.digits) <= aim else 'missed'}"


def _middle(
    rounds: Callable[[Figures], tuple[Shared, ...]], pick: Callable[[Shared], float | None]
) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        found = [each for each in map(pick, rounds(figures)) if each is not None]
        return median(found) if found else None

    return value


def _polled(pick: Callable[[Polling], float]) -> Callable[[Figures], float | None]:
    return lambda each: median(map(pick, each.polling)) if each.polling else None


def _big(pick: Callable[[Big], float]) -> Callable[[Figures], float | None]:
    return lambda each: pick(each.big) if each.big else None


def _listed(title: str) -> Callable[[Figures], float | None]:
    return lambda each: each.lists[title] * 1000 if title in each.lists else None


def _shared(each: Figures) -> tuple[Shared, ...]:
    return each.shared


def _acknowledged(each: Figures) -> tuple[Shared, ...]:
    return each.acknowledged


def _followed(each: Figures) -> tuple[Shared, ...]:
    return each.followed


ROWS: Final = (
    Row("KiB of memory per agent above idle", lambda each: each.connected.kib_per_agent, 1, 30, 60),
    Row("s until all are connected", lambda each: each.connected.seconds, 1),
    Row("% of a core, watches only", lambda each: each.connected.idle_cpu_percent, 1, 5),
    Row("% of a core, with a check of each agent every 30 s", lambda each: each.connected.beating_cpu_percent, 1, 5),
    Row("shared change: ms until answered", _middle(_shared, lambda each: each.answered * 1000), 0, 300),
    Row("shared change: s until received, p50", _middle(_shared, lambda each: each.received.p50), 2, 0.8),
    Row("shared change: s until received, p99", _middle(_shared, lambda each: each.received.p99), 2, 2),
    Row("shared change: s until received, last", _middle(_shared, lambda each: each.received.last), 2),
    Row("shared change: CPU s", _middle(_shared, lambda each: each.cpu), 2),
    Row("all acknowledged: s", _middle(_acknowledged, lambda each: each.acknowledged), 1),
    Row("all acknowledged: CPU s", _middle(_acknowledged, lambda each: each.cpu), 1),
    Row("all acknowledged, followed: s", _middle(_followed, lambda each: each.acknowledged), 1, 10),
    Row("all acknowledged, followed: CPU s", _middle(_followed, lambda each: each.cpu), 1),
    Row(
        "all acknowledged, followed: ms of a read, p99",
        _middle(_followed, lambda each: None if each.read_p99 is None else each.read_p99 * 1000),
        0,
        100,
    ),
    Row("one runtime: ms until received, p50", lambda each: median(each.one) * 1000, 1, 20),
    Row("one runtime: ms until received, p99", lambda each: p99(each.one) * 1000, 1),
    Row("one runtime: CPU ms per change, changes 1 to 100", lambda each: each.history[0] * 1000, 1),
    Row("one runtime: CPU ms per change, changes 901 to 1,000", lambda each: each.history[1] * 1000, 1),
    Row("all bundles distinct: s until answered", lambda each: each.distinct.answered, 2),
    Row("all bundles distinct: s until received, p99", lambda each: each.distinct.received.p99, 2, 15),
    Row("all bundles distinct: CPU s", lambda each: each.distinct.cpu, 1),
    Row("a profile for each runtime: s until answered", _big(lambda each: each.answered), 1),
    Row("a profile for each runtime: s until received, last", _big(lambda each: each.received.last), 1),
    Row("a profile for each runtime: s until another change was answered, most", _big(lambda each: each.other), 2),
    Row("reconnect after kill -9: s", lambda each: each.reconnected, 1, 30),
    Row("reconnect after kill -9: CPU s", lambda each: each.reconnected_cpu, 1),
    *(Row(f"{title}: ms", _listed(title)) for title in ("list", "list by name", "list by label", "list by state")),
    Row("polling: s until received, p50", _polled(lambda each: each.received.p50), 2),
    Row("polling: s until received, p99", _polled(lambda each: each.received.p99), 2),
    Row("polling: % of a core", _polled(lambda each: each.cpu_percent), 1),
)


def table(measured: Sequence[Figures]) -> Iterator[str]:
    """Yield the table, one column for each number of agents; aims appear only if the last one is what they are for."""
    has_aims = measured[-1].agents == PUBLISHED
    yield f"| agents | {' | '.join(f'{each.agents:,}' for each in measured)} |{' aim |' if has_aims else ''}"
    yield f"|---|{'---|' * len(measured)}{'---|' if has_aims else ''}"
    for row in ROWS:
        aim = f" {row.verdict(measured[-1])} |" if has_aims else ""
        yield f"| {row.title} | {' | '.join(map(row.shown, measured))} |{aim}"
