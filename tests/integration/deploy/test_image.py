"""The assembled image runs in real containers, unprivileged and with a read-only root file system."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from demo.programs import answers
from governor import __version__
from testbed import images
from testbed.cri.containers import PrivateContainerd, volume
from testbed.linux.cgroups import HIERARCHIES
from testbed.server import free_ports
from testbed.waiting import until
from toolchain.errors import TestbedError
from toolchain.helm import HELM
from toolchain.oci import NONROOT, Archive

pytestmark = pytest.mark.asyncio(loop_scope="module")
PYTHON = "/opt/venv/bin/python3"
GOVERNOR = "/opt/venv/bin/governor"
IMPORT_EVERYTHING = """
import importlib, json, pathlib, pkgutil, sysconfig
import governor
site, library = pathlib.Path(governor.__file__).parents[1], pathlib.Path(sysconfig.get_path("stdlib"))
modules = [module.name for module in pkgutil.walk_packages(governor.__path__, "governor.")]
product = [
    name
    for name in modules
    if not name.endswith("migrations.env")  # only alembic can import it
    and not name.startswith("governor.sdk")  # for authors of plugins, with the extra `hooks`
]
files = [file.relative_to(site) for file in site.rglob("*.so")]
extensions = [".".join((*file.parts[:-1], file.name.partition(".")[0])) for file in files]
standard = [file.name.partition(".")[0] for file in library.glob("lib-dynload/*.so")]
failures = {}
for name in (*product, *extensions, *standard):
    try:
        importlib.import_module(name)
    except Exception as error:
        failures[name] = repr(error)
print(json.dumps([len(product), len(extensions), len(standard), failures]))
"""
RENDER_A_CHART = """
import asyncio, json, pathlib
import governor
from governor.reconciler.render.installed import installed_renderer
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Layer, Request
from governor.values.secret import Secret

async def main():
    chart = pathlib.Path(governor.__file__).parent / "charts" / "governor-reconciler"
    values = Layer(Secret("image: {repository: example.com/governor}"))
    async with installed_renderer() as renderer:
        rendered = await renderer.render(Request(chart, "sha256:0", "one", "apps", (values,)))
    kinds = sorted({each.object["kind"] for each in rendered.objects})
    print(json.dumps([isinstance(renderer, RenderPool), kinds]))

asyncio.run(main())
"""
RESTRICTIONS = """
import json, os, pwd, socket, ssl, sys
import governor.cli.main as program
from governor.domain.windows import is_time_zone
try:
    open("/opt/venv/written", "w")
except OSError as error:
    refused = error.strerror
print(json.dumps({
    "user": [os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name],
    "writing": refused,
    "authorities": ssl.create_default_context().cert_store_stats()["x509_ca"],
    "bytecode": os.path.exists(program.__cached__),
    "compiled as": program.main.__code__.co_filename == program.__file__,
    "localhost": socket.gethostbyname("localhost"),
    "directory": os.getcwd(),
    "time zones": [is_time_zone("Europe/Berlin"), is_time_zone("Mars/Olympus")],
}))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def containers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PrivateContainerd]:
    async with PrivateContainerd(tmp_path_factory.mktemp("containerd")) as containerd:
        yield containerd


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def governor(containers: PrivateContainerd, archive: Archive) -> str:
    return await containers.import_image(archive)


async def test_the_image_has_the_name_of_its_version(containers: PrivateContainerd, governor: str) -> None:
    assert governor == f"local.test/governor:{__version__}"
    assert governor in await containers.ctr("images", "ls", "--quiet")


async def test_the_governor_and_helm_run(containers: PrivateContainerd, governor: str) -> None:
    assert await containers.run(governor, GOVERNOR, "--version") == f"governor, version {__version__}\n"
    assert f'Version:"v{HELM.version.partition(".post")[0]}"' in await containers.run(governor, "helm", "version")


async def test_the_reconciler_renders_charts_with_the_linked_renderer(
    containers: PrivateContainerd, governor: str
) -> None:
    is_linked, kinds = json.loads(await containers.run(governor, PYTHON, "-c", RENDER_A_CHART))

    assert is_linked
    assert {"ClusterRole", "Deployment", "ServiceAccount"} <= set(kinds)


async def test_without_arguments_the_governor_shows_its_commands(containers: PrivateContainerd, governor: str) -> None:
    with pytest.raises(TestbedError, match=r"Run the server\.(.|\n)*Run the agent"):
        await containers.run(governor)


async def test_everything_in_the_image_finds_its_libraries(containers: PrivateContainerd, governor: str) -> None:
    product, extensions, standard, failures = json.loads(
        await containers.run(governor, PYTHON, "-c", IMPORT_EVERYTHING)
    )

    assert failures == {}
    assert product > 50
    assert extensions > 15
    assert standard > 20


async def test_the_process_is_unprivileged_and_has_what_it_needs(containers: PrivateContainerd, governor: str) -> None:
    restrictions = json.loads(await containers.run(governor, PYTHON, "-c", RESTRICTIONS))

    assert restrictions.pop("authorities") > 100
    assert restrictions == {
        "user": [NONROOT, NONROOT, "nonroot"],
        "writing": "Read-only file system",
        "bytecode": True,
        "compiled as": True,
        "localhost": "127.0.0.1",
        "directory": "/var/lib/governor",
        "time zones": [True, False],
    }


async def test_the_server_keeps_its_data_in_the_mounted_volume(
    containers: PrivateContainerd, governor: str, tmp_path: Path
) -> None:
    mounts = {volume(tmp_path / "data"): "/var/lib/governor"}
    tokens = []
    for _ in range(2):
        api, health = free_ports(2)
        command = (GOVERNOR, "server", f"--listen=127.0.0.1:{api}", f"--health-listen=127.0.0.1:{health}")
        async with containers.running(governor, *command, mounts=mounts) as container:

            async def is_ready(url: str = f"http://127.0.0.1:{health}/readyz") -> bool:
                return await answers(url)

            await until(is_ready)
            token = (tmp_path / "data" / "governor-data" / "admin.token").read_text().strip()
            url = f"http://127.0.0.1:{api}/api/v1alpha1/tokens"
            headers = {"Authorization": f"Bearer {token}"}
            async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
                assert answer.status == 200
        assert container.returncode == 0, "asked to end, it must end by itself"
        tokens.append(token)

    assert tokens[0] == tokens[1]


async def test_a_program_with_shared_libraries_is_rejected() -> None:
    with pytest.raises(TestbedError, match="CGO_ENABLED=0"):
        images.static("local.test/nsenter:1", Path("/usr/bin/nsenter"))


async def test_a_containerd_removes_what_a_killed_test_left_and_leaves_nothing_when_killed(tmp_path: Path) -> None:
    user = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    hierarchy = HIERARCHIES / "pids" if (HIERARCHIES / "pids").exists() else HIERARCHIES
    abandoned = hierarchy / f"governor-containers-{user.pid}-0"
    used = hierarchy / f"governor-containers-{os.getpid()}-0"
    (abandoned / "one").mkdir(parents=True)
    used.mkdir()
    await user.communicate(b"")  # from now on other tests may remove it too
    containerd = PrivateContainerd(tmp_path / "containerd")
    try:
        async with containerd:
            assert not abandoned.exists()
            assert used.exists()
            pause = await containerd.import_image(images.pause())
            await containerd.ctr("run", "--detach", f"--cgroup=/{containerd.cgroup}/one", pause, "one")
            assert containerd.cgroups()
            assert processes_of(containerd)
            await containerd.kill()
    finally:
        used.rmdir()

    assert containerd.cgroups() == []
    assert processes_of(containerd) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def processes_of(containerd: PrivateContainerd) -> list[str]:
    """Return the running processes that name its directory or are in one of its cgroups."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes()
        except OSError:
            continue
        if str(containerd.directory).encode() in words or containerd.cgroup.encode() in words:
            found.append(words.decode(errors="replace"))
    return found
