"""The order of measurements in `make bench-proxy`, its command line, and the figures of processes."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from bench.proxy.operations import Latency, Operation, Repeat
from bench.proxy.processes import Memory, cpu_s
from bench.proxy.rounds import run_rounds
from bench.proxy.routes import Route, parse_peer
from testbed.cri.client import CriClient

ROUTES = {name: Route(name, Path(f"/{name}")) for name in ("direct", "ours", "other")}


async def measurements(rounds: int, seed: int) -> list[tuple[str, str]]:
    """Return operation and route of each measurement; clients are only names here."""
    done: list[tuple[str, str]] = []

    def operation(title: str) -> Operation[CriClient]:
        @asynccontextmanager
        async def ready(client: CriClient) -> AsyncIterator[Repeat]:
            async def repeat(count: int, at_once: int) -> Latency:
                done.append((title, str(client)))
                return Latency(1.0, 2.0)

            yield repeat

        return Operation(title, ready, 1, 1)

    clients = {route: cast("CriClient", name) for name, route in ROUTES.items()}
    samples = await run_rounds(rounds, [operation("a"), operation("b")], clients, random.Random(seed), lambda _: None)
    assert {len(each) for routes in samples.values() for each in routes.values()} == {rounds}
    return done[::2]  # the first of two is the warm-up


async def test_the_routes_of_an_operation_follow_each_other_within_every_round() -> None:
    done = await measurements(4, seed=1)
    blocks = [done[start : start + 3] for start in range(0, len(done), 3)]

    assert all({route for _, route in block} == ROUTES.keys() for block in blocks)
    assert all(len({operation for operation, _ in block}) == 1 for block in blocks)


async def test_the_seed_decides_the_order() -> None:
    assert await measurements(4, seed=1) == await measurements(4, seed=1)
    assert await measurements(4, seed=1) != await measurements(4, seed=2)


@pytest.mark.parametrize(
    ("text", "name", "runtime"),
    [
        ("koord=/k.sock,12", "koord", "fake"),
        ("koord+python=/k.sock,12", "koord+python", "fake"),
        ("koord+go@containerd=/k.sock,12", "koord+go", "containerd"),
    ],
)
def test_another_proxy_is_given_by_name_socket_and_pid(text: str, name: str, runtime: str) -> None:
    route = parse_peer(text)

    assert (route.name, route.runtime, route.socket, route.pid) == (name, runtime, Path("/k.sock"), 12)


@pytest.mark.parametrize("text", ["", "koord", "koord=/k.sock", "koord=k.sock,1", "ours=/k.sock,1", "k+x=/k.sock,1"])
def test_a_malformed_proxy_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form NAME"):
        parse_peer(text)


def test_cpu_time_and_memory_of_a_process_are_read_by_pid() -> None:
    begun = cpu_s(os.getpid())
    while cpu_s(os.getpid()) == begun:
        pass
    memory = Memory.of(os.getpid())

    assert 0 < memory.resident_mib <= memory.peak_mib
