"""Measure the server with thousands of agents, print a table in Markdown and draw the chart of the documentation.

make bench-server N=10000        (or: python -m bench.server --agents 500 --rounds 1)

Ten thousand agents are measured after a thousand and three thousand, to show how the figures grow, unless --no-growth
is given; --tls measures only them, with TLS. Polling is measured only with the most agents.

A client process holds one watch per agent with minimal protocol code; the server is a process of its own. Times begin
when a change is requested. In each round the agents first watch and then poll every ten seconds, as in the proof of
concept, on the same server.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.machine import load, machine
from bench.server import rounds
from bench.server.chart import chart
from bench.server.report import PUBLISHED, Figures, table
from bench.server.subject import profile, subject
from bench.server.swarm import swarm
from toolchain.repository import REPOSITORY

CHART: Final = REPOSITORY / "docs" / "benchmarks-server.svg"
GROWTH: Final = (1_000, 3_000)


async def measure(directory: Path, options: argparse.Namespace) -> Figures:
    """Measure one server."""
    async with subject(directory, options.agents, tls=options.tls) as server, swarm(server.setup) as agents:
        log(f"{options.agents:,} runtimes are enrolled")
        await server.apply(profile("shared", {}, "first"))
        connected = await rounds.connect(server, agents, options.idle, options.heartbeat)
        log(f"connected: {connected}")
        shared, acknowledged, followed, polled = [], [], [], []
        for number in range(options.rounds):
            await rounds.settle(server)
            shared.append(await rounds.share(server, agents, f"a{number}"))
            log(f"shared: {shared[-1]}")
            acknowledged.append(await rounds.share(server, agents, f"b{number}", acknowledge=True))
            log(f"acknowledged: {acknowledged[-1]}")
            followed.append(await rounds.share(server, agents, f"c{number}", acknowledge=True, follow=True))
            log(f"followed: {followed[-1]}")
            if options.polling:
                await agents.do("leave")
                polled.append(await rounds.poll(server, agents, f"d{number}", options.idle))
                log(f"polling: {polled[-1]}")
                await agents.do("watch")
        await rounds.settle(server)
        one = await rounds.one_of_all(server, agents, options.changes)
        log(f"one of all: {sorted(one)[len(one) // 2] * 1000:.1f} ms")
        history = await rounds.history(server, options.history)
        log(f"history: {history}")
        lists = await rounds.lists(server)
        log(f"lists: {lists}")
        reconnected = await rounds.reconnect(server, agents)
        log(f"reconnected: {reconnected}")
        distinct = await rounds.distinct(server, agents, "e")
        log(f"distinct: {distinct}")
        big = await rounds.big(server, agents, "f") if options.big else None
        log(f"big: {big}")
        return Figures(
            options.agents,
            connected,
            tuple(shared),
            tuple(acknowledged),
            tuple(followed),
            tuple(polled),
            tuple(one),
            history,
            lists,
            *reconnected,
            distinct,
            big,
            options.tls,
        )


def log(text: str) -> None:
    """Write a progress message to standard error."""
    print(text, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--changes", type=int, default=20, help="changes of one runtime")
    parser.add_argument("--history", type=int, default=1000, help="further changes of one runtime")
    parser.add_argument("--idle", type=float, default=15.0, help="seconds of each measurement without a change")
    parser.add_argument("--heartbeat", type=float, default=30.0, help="seconds between two checks of an agent")
    parser.add_argument("--tls", action="store_true", help="measure with TLS")
    parser.add_argument("--polling", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--growth", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--big", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def measure_all(options: argparse.Namespace) -> list[Figures]:
    """Measure one number of agents after the other, the largest one last."""
    is_published = options.agents == PUBLISHED and options.growth and not options.tls
    sizes = [*(GROWTH if is_published else ()), options.agents]
    measured = []
    for size in sizes:
        log(f"measuring {size:,} agents")
        polling = options.polling and size == options.agents
        chosen = argparse.Namespace(**{**vars(options), "agents": size, "polling": polling})
        with tempfile.TemporaryDirectory(prefix="governor-bench-") as temporary:
            measured.append(asyncio.run(measure(Path(temporary), chosen)))
    return measured


def main() -> int:
    """Measure and print; return the exit status."""
    options = parse()
    where, began_s = machine(), time.monotonic()
    print(where, flush=True)
    measured = measure_all(options)
    print("", *table(measured), sep="\n")
    print(f"\nTook {time.monotonic() - began_s:.0f} s, load {load():.1f} at the end.")
    if len(measured) > 1:
        CHART.write_text(chart(measured, f"make bench-server. {where}"), encoding="utf-8")
        log(f"the chart is in {CHART}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
