"""`make bench-reconciler` on real processes: programs with children, another controller, and our own reconciler."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from bench.reconciler import hub, rollouts
from bench.reconciler.hub import prepared_hub
from bench.reconciler.peer import Setup, peer
from bench.reconciler.processes import cpu_time, descendants, peak_memory, resident_mib
from bench.reconciler.rollouts import require_running, rest, roll_out
from bench.reconciler.watched import CHART, OBJECTS
from governor import yamltext
from governor.reconciler.charts.digests import digest_of
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Layer, Request
from governor.values.secret import Secret
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from testbed.waiting import until
from toolchain.errors import TestbedError

FAMILY = """
import subprocess, sys
code = "x = bytearray(60_000_000); sum(range(3_000_000)); print('done', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", "import sys; " + code], stdin=subprocess.PIPE)
sys.stdin.readline()
child.communicate()
print("reaped", flush=True)
sys.stdin.read()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plane(
    kubernetes_binaries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    async with ControlPlane(kubernetes_binaries, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane


def quiet(_: str) -> None:
    """Drop a progress message."""


@pytest.fixture
def renderer() -> Path:
    return provide(["renderer"])["renderer"]


@pytest.fixture
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "QUIET_S", 0.1)
    monkeypatch.setattr(rollouts, "QUIET_WITHIN_S", 0.0)
    monkeypatch.setattr(hub, "LATE_S", 0.1)


@pytest.fixture
async def template(renderer: Path, tmp_path: Path) -> Path:
    """A template that requests a release by writing its objects, as the chart has them."""
    values = Layer(Secret("{number: 1, revision: the-revision}"))
    async with RenderPool(str(renderer), size=1) as pool:
        rendered = await pool.render(Request(CHART, digest_of(CHART), "the-name", "the-namespace", (values,)))
    text = "\n---\n".join(yamltext.dump(each.object) for each in rendered.objects)
    file = tmp_path / "template.yaml"
    for name in ("namespace", "name", "revision"):
        text = text.replace(f"the-{name}", f"${name}")
    file.write_text(text, encoding="utf-8")
    return file


async def _is_reached(peak_mib: Callable[[], float], expected_mib: float) -> bool:
    return peak_mib() >= expected_mib


async def test_children_are_counted_while_they_live_and_after_their_end() -> None:
    pipe = asyncio.subprocess.PIPE
    family = await asyncio.create_subprocess_exec(sys.executable, "-c", FAMILY, stdin=pipe, stdout=pipe)
    assert family.stdin
    assert family.stdout
    roots = [family.pid]
    before = cpu_time(roots)
    async with peak_memory(roots) as peak_mib:
        await family.stdout.readuntil(b"done")
        living, together_mib = cpu_time(roots), resident_mib(roots)
        assert len(descendants(roots)) == 2
        await until(lambda: _is_reached(peak_mib, together_mib))
        family.stdin.write(b"\n")
        await family.stdout.readuntil(b"reaped")
        exited = cpu_time(roots)

    assert len(descendants(roots)) == 1
    assert exited.since(before).children_s > 0
    # Of exited children the kernel shows whole ticks of user and of system time.
    assert exited.children_s >= living.children_s - 2 / os.sysconf("SC_CLK_TCK")
    assert peak_mib() >= together_mib > resident_mib(roots) + 50
    family.stdin.close()
    await family.wait()


@pytest.mark.usefixtures("without_waiting")
async def test_another_controller_is_measured_by_the_objects_of_the_chart(plane: ControlPlane, template: Path) -> None:
    setup = Setup(plane.kubeconfig, (plane.api.pid,), template, namespace="peer")
    async with peer(setup) as subject:
        installed = await roll_out(subject, 3, "first", quiet)
        changed = await roll_out(subject, 3, "second", quiet)
        idle = await rest(subject, 0.1, quiet)
        assert subject.progress("first") == (0, f"0 objects have it, {3 * OBJECTS} exist")
        assert subject.progress("second")[0] == 3

    for measured in (installed, changed):
        assert measured.requests >= 0
        assert measured.cpu
        assert measured.cpu.own_s > 0
        assert measured.peak_mib
    assert not [each for each in idle.writes if "configmaps" in each]
    with pytest.raises(TestbedError, match=r"21 objects .* delete the releases of the last run first"):
        async with peer(setup):
            pass


@pytest.mark.usefixtures("without_waiting")
async def test_our_reconciler_is_measured_and_catches_up_after_a_kill(
    plane: ControlPlane, renderer: Path, tmp_path: Path
) -> None:
    async with prepared_hub(tmp_path, plane, renderer, 2) as subject:
        installed = await roll_out(subject, 2, "third", quiet)
        killed = subject.pids
        restarted = await subject.restart(2)

    assert installed.cpu
    assert installed.cpu.children_s > 0
    assert installed.requests >= 2 * OBJECTS
    assert subject.progress("third")[0] == 2
    assert restarted.cpu.own_s > 0
    assert restarted.lists["moduleinstances.runtime-governor.dev"] == 1
    assert not [each for each in restarted.writes if "roles" in each]
    with pytest.raises(TestbedError, match="the controller has exited"):
        require_running(killed)
