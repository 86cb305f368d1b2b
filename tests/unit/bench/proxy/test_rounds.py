"""How `make bench-proxy` orders its turns, which proxies it takes, and what it reads of processes."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from bench.proxy.acts import Act, Repeat, Times
from bench.proxy.processes import Memory, cpu_s
from bench.proxy.rounds import take
from bench.proxy.routes import Route, peer
from testbed.cri.client import CriClient

ROUTES = {name: Route(name, Path(f"/{name}")) for name in ("direct", "ours", "other")}


async def turns_of(rounds: int, seed: int) -> list[tuple[str, str]]:
    """What was done on which route; the callers are only names here."""
    done: list[tuple[str, str]] = []

    def act(title: str) -> Act:
        @asynccontextmanager
        async def ready(client: CriClient) -> AsyncIterator[Repeat]:
            async def repeat(count: int, at_once: int) -> Times:
                done.append((title, str(client)))
                return Times(1.0, 2.0)

            yield repeat

        return Act(title, ready, 1, 1)

    clients = {route: cast("CriClient", name) for name, route in ROUTES.items()}
    samples = await take(rounds, [act("a"), act("b")], clients, random.Random(seed), lambda _: None)
    assert {len(each) for routes in samples.values() for each in routes.values()} == {rounds}
    return done[::2]  # the first of two is the warm-up


async def test_the_routes_of_an_act_follow_each_other_within_every_round() -> None:
    done = await turns_of(4, seed=1)
    blocks = [done[start : start + 3] for start in range(0, len(done), 3)]

    assert all({route for _, route in block} == ROUTES.keys() for block in blocks)
    assert all(len({act for act, _ in block}) == 1 for block in blocks)


async def test_the_seed_decides_the_order() -> None:
    assert await turns_of(4, seed=1) == await turns_of(4, seed=1)
    assert await turns_of(4, seed=1) != await turns_of(4, seed=2)


@pytest.mark.parametrize(
    ("text", "name", "runtime"),
    [
        ("koord=/k.sock,12", "koord", "fake"),
        ("koord+python=/k.sock,12", "koord+python", "fake"),
        ("koord+go@containerd=/k.sock,12", "koord+go", "containerd"),
    ],
)
def test_another_proxy_is_told_by_name_socket_and_process(text: str, name: str, runtime: str) -> None:
    route = peer(text)

    assert (route.name, route.runtime, route.socket, route.pid) == (name, runtime, Path("/k.sock"), 12)


@pytest.mark.parametrize("text", ["", "koord", "koord=/k.sock", "koord=k.sock,1", "ours=/k.sock,1", "k+x=/k.sock,1"])
def test_anything_else_is_no_proxy(text: str) -> None:
    with pytest.raises(ValueError, match="is no NAME"):
        peer(text)


def test_the_time_and_memory_of_a_process_are_known_by_its_id() -> None:
    begun = cpu_s(os.getpid())
    while cpu_s(os.getpid()) == begun:
        pass
    memory = Memory.of(os.getpid())

    assert 0 < memory.resident_mib <= memory.peak_mib
