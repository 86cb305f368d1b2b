"""Plugins written with the kit, as processes behind a running proxy."""

import asyncio
import sys
from pathlib import Path

import pytest

from governor.sdk.hooks.template import create
from governor.sdk.hooks.testkit import replay
from testbed.cri.fixtures import MakeDirectory
from testbed.cri.peers import register
from testbed.pytest_plugin import StartServer
from testbed.server import Server, short_socket
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, create_container, last, run_pod
from toolchain import golang
from toolchain.repository import REPOSITORY
from toolchain.steps import Steps

RECORDING = """
import sys
from pathlib import Path
from plugin import Low
from governor.sdk.hooks.server import serve
socket, directory, record = sys.argv[1:]
serve(Low(), socket, register_as="low", directory=Path(directory), record=Path(record), failure_policy="Fail")
"""


class KitPlugin(Server):
    """A plugin that was created from the template."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__("kit-plugin", directory, [])
        self.socket = short_socket(directory / "kit-plugin.sock")
        self.directory.mkdir(parents=True)
        create("low", directory / "p")
        self._arguments = arguments

    def command(self) -> list[str]:
        """Return the command line."""
        return [sys.executable, self._arguments[0], str(self.socket), *self._arguments[1:]]

    async def is_ready(self) -> bool:
        """Return whether its socket exists."""
        return self.socket.exists()


async def shares(bed: Bed) -> str:
    """Return the shares of the last container as the runtime received them."""
    config = (await last(bed.runtime, "CreateContainer")).request["config"]
    return str(config["linux"]["resources"]["cpu_shares"])


async def test_a_plugin_from_the_template_observes_and_then_changes_containers(
    own_bed: Bed, start_server: StartServer, peer_directory: MakeDirectory
) -> None:
    directory = peer_directory()
    directory.mkdir()
    batch = {**POD, "labels": {"tier": "batch"}}
    observing = KitPlugin(directory / "o", str(directory / "o" / "p" / "plugin.py"), str(own_bed.proxy.plugins))
    await start_server(observing)
    await own_bed.proxy.wait_for_plugins(1)

    await create_container(own_bed, await run_pod(own_bed, **batch))

    assert (await last(own_bed.runtime, "CreateContainer")).request["config"]["linux"]["resources"][
        "cpu_shares"
    ] == "100"
    assert await own_bed.proxy.wait_for_lines("plugins observed a call")
    await observing.stop()

    recorded = directory / "recorded.jsonl"
    script = directory / "e" / "p" / "serve.py"
    enforcing = KitPlugin(directory / "e", str(script), str(own_bed.proxy.plugins), str(recorded))
    script.write_text(RECORDING)
    await start_server(enforcing)

    async def is_enforced() -> bool:
        await create_container(own_bed, await run_pod(own_bed, **batch))
        return await shares(own_bed) == "2"

    await until(is_enforced)
    sys.path.insert(0, str(script.parent))
    try:
        from plugin import Low  # type: ignore[import-not-found]

        assert replay(Low(), recorded)[-1].changes.resources.cpu_shares == 2  # type: ignore[union-attr]
    finally:
        sys.path.remove(str(script.parent))


@pytest.mark.soak
async def test_the_example_in_go_changes_containers(own_bed: Bed, peer_directory: MakeDirectory) -> None:
    """Its modules are downloaded, so it is no part of every run."""
    directory = peer_directory()
    built = directory / "built"
    built.mkdir(parents=True)
    source = REPOSITORY / "docs" / "how-to" / "examples" / "hook-plugin-go"
    golang.Build(source, ["."]).compile(built, Steps("hook-plugin-go", directory / "build.log"))
    (program,) = built.iterdir()
    socket = directory / "go.sock"
    process = await asyncio.create_subprocess_exec(program, str(socket))
    try:
        register(socket, own_bed.proxy.plugins, "go", ["PreCreateContainer"], failure_policy="Fail")
        await own_bed.proxy.wait_for_plugins(1)

        async def listens() -> bool:
            return socket.exists()

        await until(listens)
        await create_container(own_bed, await run_pod(own_bed, labels={"tier": "batch"}))
        assert await shares(own_bed) == "2"
    finally:
        process.kill()
        await process.wait()
