"""A reconciler that is killed in the middle of its work, and started again."""

import asyncio
import itertools
import random

import pytest

from governor.kube.lease import LEASES
from governor.kube.objects import Object
from governor.reconciler.main import NAME
from tests.contract.kube.applyset.bed import config_map
from tests.contract.reconciler.kill_bed import KillBed, hooked, writes
from tests.contract.reconciler.steps.bed import create_workers, has_workers, listed

SEED = 17
MODULES, VERSIONS = ("orders", "payments", "stock"), ("1.0.0", "2.0.0")
REMOVALS = 0.3
"""Share of removals among what users do with installed modules."""
FIRST = [config_map(name, version="1") for name in "abcd"]
SECOND = [config_map(name, version="2") for name in "bcde"]


@pytest.fixture
def bed(kill_bed: KillBed) -> KillBed:
    return kill_bed


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


@pytest.mark.soak
async def test_a_leader_that_is_paused_while_applying_writes_nothing_when_it_is_resumed(bed: KillBed) -> None:
    """Its Lease expires meanwhile, and another replica completes the change and a later one."""
    await bed.add("orders")
    await bed.install("orders", "orders", values=listed(config_map("a", n="1")))
    await bed.becomes("orders", "Ready")
    bed.pause_before(writes("PATCH", f"/{bed.space}/configmaps/a"))
    values = listed(config_map("a", n="2"))
    await bed.install("orders", "orders", values=values)
    await bed.paused()
    async with bed.reconciling():
        await bed.becomes("orders", "Ready", values=values)
        values = listed(config_map("a", n="3"))
        await bed.install("orders", "orders", values=values)
        await bed.becomes("orders", "Ready", values=values)
        requests = await bed.resume()
        assert [each for each in requests if each.method != "GET" and "/leases" not in each.path] == []
        assert await bed.owned() == {"a": {"n": "3"}}


async def test_a_chart_that_cannot_be_stored_is_the_operators_until_there_is_space(bed: KillBed) -> None:
    chart = bed.write_chart("big", a="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    (chart / "big").write_text("0123456789abcdef" * 327_680)
    bed.limit_files(1 << 20)
    await bed.add("big", chart=chart)
    await bed.install("big", "big")
    found = await bed.becomes("big", "ChartNotStored")
    assert (found["status"]["state"], found["status"]["actor"]) == ("Error", "operator")
    assert "free space, or set chart-cache" in found["status"]["message"]
    await bed.add("small", values=listed(config_map("b")))
    await bed.deploy("small")
    bed.limit_files(None)
    await bed.becomes("big", "Ready")


async def test_a_worker_that_is_killed_while_applying_is_replaced_and_then_stopped(bed: KillBed) -> None:
    await bed.program.kill()
    bed.program.settings["ROLE"] = "work"
    await create_workers(bed)
    await bed.add("orders", values=listed(*FIRST))
    async with bed.reconciling(role="watch", worker_idle=0.3):
        bed.kill_before(writes("PATCH", f"/{bed.space}/configmaps/[a-z]"), after=2)
        await bed.install("orders", "orders")
        await has_workers(bed, 1)
        await bed.program.start()
        await bed.died()
        await has_workers(bed, 1)
        await bed.client.delete(LEASES, f"{NAME}-worker", bed.namespace)  # it would last for 15 s
        await bed.program.start()
        await bed.becomes("orders", "Ready")
        await has_workers(bed, 0)
    assert await bed.owned() == data_of(FIRST)
    await bed.check_foreign()
