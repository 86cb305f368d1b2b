"""A reconciler that is killed in the middle of its work, and started again."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import Object
from governor.reconciler.render.request import Renderer
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import config_map
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.kill_bed import KillBed, hooked, writes
from tests.contract.reconciler.steps.bed import listed

SEED = 17
MODULES, VERSIONS = ("orders", "payments", "stock"), ("1.0.0", "2.0.0")
REMOVALS = 0.3
"""Share of removals among what users do with installed modules."""
FIRST = [config_map(name, version="1") for name in "abcd"]
SECOND = [config_map(name, version="2") for name in "bcde"]


@pytest.fixture
async def bed(
    control_plane: ControlPlane,
    client: Client,
    transport: Transport,
    namespace: str,
    tmp_path: Path,
    renderer: Renderer,
    faults: FaultyApi,
) -> AsyncIterator[KillBed]:
    bed = KillBed(control_plane, client, transport, namespace, tmp_path, renderer, faults)
    await bed.prepare()
    async with bed.program:
        yield bed


def data_of(objects: list[Object]) -> dict[str, dict[str, str]]:
    return {each["metadata"]["name"]: each["data"] for each in objects}


async def test_a_module_survives_kills_at_every_stage_of_its_life(bed: KillBed) -> None:
    rng = random.Random(SEED)
    objects, inventory = f"/{bed.space}/configmaps/[a-z]", "/configmaps/module-orders"
    await bed.add("orders", values=listed(*FIRST))
    bed.kill_before(writes("PATCH", objects))
    await bed.install("orders", "orders")
    await bed.died()
    assert (await bed.owned(), await bed.records()) == ({}, {"module-orders"}), "the claim is stored"

    bed.kill_before(writes("PATCH", objects), after=rng.randrange(1, len(FIRST)))
    await bed.restart()
    await bed.died()
    await bed.restart()
    await bed.becomes("orders", "Ready")
    assert await bed.owned() == data_of(FIRST)

    hook = hooked(config_map("hook", version="2"), "pre-upgrade")
    await bed.add("orders", "2.0.0", values=listed(hook, *SECOND))
    bed.kill_before(writes("PATCH", f"/{bed.space}/configmaps/hook"))
    await bed.install("orders", "orders", "2.0.0")
    await bed.died()
    found = await bed.get("ModuleInstance", "orders.local")
    assert [each["state"] for each in found["status"]["hooks"]] == ["Started"], "the hook is recorded"
    assert await bed.owned() == data_of(FIRST)

    bed.kill_before(writes("PUT", inventory), after=1)
    await bed.restart()
    await bed.died()
    assert await bed.owned() == data_of([hook, *SECOND]), "everything is applied, which no inventory says"
    await bed.restart()
    found = await bed.becomes("orders", "Ready", version="2.0.0")
    assert await bed.owned() == data_of([hook, *SECOND])
    assert [each["version"] for each in found["status"]["history"]] == ["1.0.0"]
    assert await bed.records() == {"module-orders", "module-orders.hooks"}
    assert list(await bed.instances()) == ["orders.local"]

    bed.kill_before(writes("PATCH", "/moduleinstances/orders.local"))
    await bed.delete("Installation", "orders")
    await bed.died()
    assert (await bed.owned(), await bed.records()) == ({}, set()), "only the finalizer is left"
    await bed.restart()
    await bed.gone("ModuleInstance", "orders.local")
    await bed.check_foreign()


class Users:
    """Users who install, change and remove modules at random, and what they want to have in the end."""

    def __init__(self, bed: KillBed, rng: random.Random) -> None:
        self._bed = bed
        self._rng = rng
        self._wanted: dict[str, tuple[str, list[Object]]] = {}

    async def prepare(self) -> None:
        """Create two versions of each module."""
        for name, version in itertools.product(MODULES, VERSIONS):
            await self._bed.add(name, version)

    async def act(self) -> None:
        """Install, change or remove one module."""
        name = self._rng.choice(MODULES)
        if name in self._wanted and self._rng.random() < REMOVALS:
            del self._wanted[name]
            await self._bed.delete("Installation", name)
            return
        version, number = self._rng.choice(VERSIONS), str(self._rng.randrange(1000))
        kept = self._rng.sample("abcdef", 4)
        hook = hooked(config_map(f"{name}-hook", n=number), "pre-install", "post-upgrade", "post-rollback")
        objects = [hook, *(config_map(f"{name}-{each}", n=number) for each in kept)]
        self._wanted[name] = (version, objects)
        await self._bed.install(name, name, version, values=listed(*objects), allowDowngrade=True)

    async def check(self) -> None:
        """Wait until the wanted modules are ready and the others gone, and compare what there is."""
        for name in MODULES:
            if name in self._wanted:
                version, objects = self._wanted[name]
                await self._bed.becomes(name, "Ready", version=version, values=listed(*objects))
            else:
                await self._bed.gone("ModuleInstance", f"{name}.local")
        assert await self._bed.owned() == data_of([each for _, objects in self._wanted.values() for each in objects])
        named = {f"module-{name}{suffix}" for name in self._wanted for suffix in ("", ".hooks")}
        assert await self._bed.records() == named
        await self._bed.check_foreign()


@pytest.mark.soak
async def test_a_hundred_kills_at_random_requests_leave_what_is_desired(bed: KillBed) -> None:
    rng = random.Random(SEED)
    users = Users(bed, rng)
    await users.prepare()
    for number in range(100):
        bed.kill_before(lambda request: "/leases/" not in request.path, after=rng.randrange(60))
        death = asyncio.create_task(bed.died())
        while not death.done():
            await users.act()
            await asyncio.wait({death}, timeout=rng.random())
        await death
        await bed.restart()
        if number % 10 == 9:
            await users.check()
