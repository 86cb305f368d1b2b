"""Many clients at once, and bodies that are larger than what the proxy may hold."""

import asyncio
import hashlib
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from testbed.commands import WITHIN_S
from testbed.waiting import until
from tests.integration.runtimeproxy.docker_clients.bed import IDLE, DockerBed, ProxiedBed
from tests.integration.runtimeproxy.docker_clients.conftest import StartProxiedBed
from tests.integration.runtimeproxy.docker_clients.raw import raw_connection, request

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
MIB: Final = 2**20
AT_ONCE: Final = 50
READERS: Final = 10
GROWTH_MIB: Final = 6
"""How much a proxy may grow by bytes that it only forwards."""


async def test_a_context_of_100_mib_is_built_in_little_memory(bed: DockerBed, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {bed.image}\nCOPY . /context\n", encoding="utf-8")
    data = random.Random(24).randbytes(50 * MIB)
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(data)
    before = _peak_mib(bed)
    await bed.cli("build", "--tag=local.test/large:1", str(tmp_path))
    digest = hashlib.sha256(data).hexdigest()
    summed = await bed.cli("run", "--rm", "local.test/large:1", "-c", "sha256sum /context/one /context/two")
    assert summed == f"{digest}  /context/one\n{digest}  /context/two"
    archive = tmp_path / "saved.tar"
    await bed.cli("save", f"--output={archive}", "local.test/large:1")
    assert archive.stat().st_size > 100 * MIB
    await bed.cli("rmi", "local.test/large:1")
    await bed.cli("load", f"--input={archive}")
    await bed.cli("rmi", "local.test/large:1")
    assert _peak_mib(bed) - before < GROWTH_MIB


def _peak_mib(bed: DockerBed) -> float:
    """Return the largest resident memory so far of a bed's proxy, if it has one."""
    if not isinstance(bed, ProxiedBed):
        return 0.0
    status = Path(f"/proc/{bed.proxy.pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def test_readers_that_stop_reading_cost_little_memory(proxied: ProxiedBed) -> None:
    script = f"head -c 20000000 /dev/zero | tr '\\0' a | fold -w 1000; {IDLE}"
    container = await proxied.run(script=script)
    before = _peak_mib(proxied)

    async def is_written() -> bool:
        return len(await proxied.dockerd.cli("logs", container)) >= 20_000_000

    await until(is_written)
    async with AsyncExitStack() as readers:
        for _ in range(READERS):
            connection = await readers.enter_async_context(raw_connection(proxied.socket))
            await connection.send(request(f"GET /v1.41/containers/{container}/logs?stdout=1&follow=1"))
            assert (await connection.head()).status == 200
        assert await proxied.cli("exec", container, "echo", "meanwhile") == "meanwhile"
        assert _peak_mib(proxied) - before < READERS


async def test_fifty_runs_and_fifty_execs_at_once(bed: DockerBed) -> None:
    container = await bed.run()
    opened = _descriptors(bed)
    data = random.Random(25).randbytes(300_000)
    digest = hashlib.sha256(data).hexdigest()

    async def run(number: int) -> None:
        words = ("run", "--rm", "--interactive", f"--name=run-{number}", bed.image, "-c")
        outcome = await bed.cli.outcome(*words, f"sha256sum; exit {number}", stdin=data)
        assert (outcome.code, outcome.out) == (number, f"{digest}  -\n")

    async def execute(number: int) -> None:
        words = ("exec", "--interactive", container, "sh", "-c", f"sha256sum; exit {number}")
        outcome = await bed.cli.outcome(*words, stdin=data)
        assert (outcome.code, outcome.out) == (number, f"{digest}  -\n")

    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(run(number))
            group.create_task(execute(number))

    async def are_closed() -> bool:
        return _descriptors(bed) <= opened

    await until(are_closed)


def _descriptors(bed: DockerBed) -> int:
    """Return how many files and sockets a bed's proxy has open, if it has one."""
    return len(list(Path(f"/proc/{bed.proxy.pid}/fd").iterdir())) if isinstance(bed, ProxiedBed) else 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_dockerd_is_restarted_again_and_again_under_load(start_proxied_bed: StartProxiedBed, seed: int) -> None:
    bed = await start_proxied_bed()
    rng = random.Random(seed)
    await bed.run("--name=kept", "--restart=always")
    done, changed = asyncio.Event(), asyncio.Event()
    succeeded = 0

    async def call() -> None:
        nonlocal succeeded
        while not done.is_set():
            outcome = await bed.cli.outcome(*rng.choice([("ps", "-q"), ("exec", "kept", "true"), ("logs", "kept")]))
            succeeded += outcome.code == 0
            changed.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(call())
        for _ in range(5):
            before = succeeded
            await (bed.dockerd.kill if rng.random() < 0.5 else bed.dockerd.terminate)()
            await bed.dockerd.start()
            async with asyncio.timeout(WITHIN_S):
                while succeeded <= before + 5:
                    await changed.wait()
                    changed.clear()
        done.set()
    assert await bed.cli("exec", "kept", "echo", "served") == "served"
    assert bed.proxy.logged().count("Traceback") == 0
