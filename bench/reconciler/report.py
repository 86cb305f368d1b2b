"""The table of the reconciler's benchmark: our figures beside those of another controller and the aims."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from bench.reconciler.hub import Restart
from bench.reconciler.rollouts import Idle, Rollout
from bench.reconciler.watched import OBJECTS

PUBLISHED: Final = 1000
"""Number of modules that the aims and the recorded figures are for."""
RECORDED: Final = "Flux's helm-controller"
ROLLOUT_AIMS_S: Final = {"linked": 60.0, "helm": 90.0}
"""Seconds for an install and for a change, by renderer."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured of one controller."""

    modules: int
    install: Rollout
    change: Rollout
    idle: Idle
    restart: Restart | None = None
    """None for a controller that the benchmark cannot restart."""
    watching: Idle | None = None
    """The watching process alone, with workers at zero; None for a controller that has none."""


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    title: str
    value: Callable[[Figures], float | None]
    digits: int = 0
    recorded: float | None = None
    """What Flux's helm-controller with default flags, four releases at once, took on a machine of this size."""
    aim: float | None = None
    """The largest value that meets the aim."""

    def shown(self, value: float | None) -> str:
        """Return the text of a cell."""
        return "" if value is None else f"{value:,.{self.digits}f}"

    def verdict(self, value: float | None) -> str:
        """Return the aim and whether it is met; values are compared as they are shown."""
        if self.aim is None or value is None:
            return ""
        return f"{self.aim:g}: {'met' if round(value, self.digits) <= self.aim else 'missed'}"


def rows(renderer: str) -> Sequence[Row]:
    """Return all lines; the aims depend on the renderer."""
    aim_s = ROLLOUT_AIMS_S[renderer]
    return (
        *_rollout_rows("install", "install all", lambda each: each.install, (279.0, 269.0, 225.0), aim_s),
        *_rollout_rows("change", "change one value in all", lambda each: each.change, (446.0, 518.0, 267.0), aim_s),
        Row("idle: % of a core", lambda each: each.idle.cpu_percent, 2, 0.2, 0.2),
        Row("idle: MiB", lambda each: each.idle.resident_mib, 0, 167.0, 120.0),
        Row("idle: writes", lambda each: sum(each.idle.writes.values()), aim=0.0),
        Row("idle: CPU s of renderers", lambda each: each.idle.cpu.children_s if each.idle.cpu else None, 2, aim=0.0),
        Row("workers at zero: % of a core", _watching(lambda each: each.cpu_percent), 2, aim=0.2),
        Row("workers at zero: MiB", _watching(lambda each: each.resident_mib), 0, aim=120.0),
        Row("workers at zero: writes", _watching(lambda each: sum(each.writes.values())), aim=0.0),
        Row("restart: s until caught up", _restarted(lambda each: each.seconds), 1, aim=5.0),
        Row("restart: CPU s", _restarted(lambda each: each.cpu.total_s), 1),
        Row("restart: CPU s of renderers", _restarted(lambda each: each.cpu.children_s), 2, aim=0.0),
        Row("restart: writes", _restarted(lambda each: sum(each.writes.values())), aim=0.0),
        Row("restart: list requests", _restarted(lambda each: sum(each.lists.values()))),
        Row("restart: list requests per resource, most", _restarted(lambda each: max(each.lists.values(), default=0))),
    )


def _rollout_rows(
    name: str, act: str, of: Callable[[Figures], Rollout], recorded: tuple[float, float, float], aim_s: float
) -> Iterator[Row]:
    """Yield the lines of an install or a change; recorded are seconds, CPU seconds and MiB."""
    seconds, cpu_s, mib = recorded

    def cpu(pick: Callable[[Rollout], float | None]) -> Callable[[Figures], float | None]:
        return lambda each: pick(of(each))

    yield Row(f"s to {act}", lambda each: of(each).seconds, 1, seconds, aim_s)
    yield Row(f"{name}: CPU s", cpu(lambda each: each.cpu.total_s if each.cpu else None), 1, cpu_s)
    yield Row(f"{name}: CPU s of renderers", cpu(lambda each: each.cpu.children_s if each.cpu else None), 1)
    yield Row(f"{name}: CPU s of API server and etcd", lambda each: of(each).server_cpu_s, 1)
    yield Row(f"{name}: MiB at most", lambda each: of(each).peak_mib, 0, mib, mib)
    yield Row(f"{name}: requests per module", lambda each: of(each).requests / each.modules, 1)


def _watching(pick: Callable[[Idle], float | None]) -> Callable[[Figures], float | None]:
    return lambda each: pick(each.watching) if each.watching else None


def _restarted(pick: Callable[[Restart], float]) -> Callable[[Figures], float | None]:
    return lambda each: pick(each.restart) if each.restart else None


def table(ours: Figures, peer: Figures | None, renderer: str) -> Iterator[str]:
    """Yield the table; recorded figures and aims appear only for as many modules as they are for."""
    has_aims = ours.modules == PUBLISHED
    titles = ["governor", *(["peer"] if peer else []), *([RECORDED, "aim"] if has_aims else [])]
    yield f"| {ours.modules:,} modules of {OBJECTS} objects | {' | '.join(titles)} |"
    yield f"|---|{'---|' * len(titles)}"
    for row in rows(renderer):
        value = row.value(ours)
        cells = [row.shown(value), *([row.shown(row.value(peer))] if peer else [])]
        cells += [row.shown(row.recorded), row.verdict(value)] if has_aims else []
        yield f"| {row.title} | {' | '.join(cells)} |"


def details(ours: Figures) -> Iterator[str]:
    """Yield what was written and listed, by resource, where nothing or little is expected."""
    yield f"Written in {ours.idle.seconds:.0f} s without a change: {_counts(ours.idle.writes)}."
    if ours.restart:
        yield f"Written after the restart: {_counts(ours.restart.writes)}."
        yield f"Listed after the restart: {_counts(ours.restart.lists)}."


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{count:,} {resource}" for resource, count in ordered) or "nothing"
