"""crictl works on real containerds through the runtime proxy as it does without it."""

import asyncio
import json
import re
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from testbed.cri.control import Json
from testbed.cri.crictl import Crictl
from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.pods import container, sandbox
from testbed.cri.runtime import CriRuntime
from testbed.cri.runtime_proxy import RuntimeProxy
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import RealBed
from tests.integration.runtimeproxy.calls import ALL
from toolchain.errors import TestbedError

PORT = 8080


class Bench:
    """A containerd, a proxy for it, crictl connected to the proxy, and a directory for pod files."""

    def __init__(self, runtime: CriRuntime, proxy: RuntimeProxy, directory: Path) -> None:
        self.runtime = runtime
        self.crictl = Crictl(proxy.socket)
        self._directory = directory

    def document(self, name: str, content: Json) -> str:
        """Write a file for crictl."""
        file = self._directory / f"{name}.json"
        file.write_text(json.dumps(content))
        return str(file)

    async def pod_with_server(self) -> tuple[str, str]:
        """Run a pod with crictl whose container prints a line and serves on a port."""
        config = sandbox("web", self.runtime.cgroup, log_directory=str(self._directory))
        config["linux"]["security_context"]["namespace_options"]["pid"] = 1  # crictl reads enumerations as numbers
        pod = self.document("pod", config)
        serve = f"echo started; exec nc -ll -p {PORT} -e echo answered"
        main = self.document("main", container("main", "sh", "-c", serve, log_path="main.log"))
        pod_id = (await self.crictl("runp", pod)).strip()
        container_id = (await self.crictl("create", pod_id, main, pod)).strip()
        await self.crictl("start", container_id)
        return pod_id, container_id


EVERY_MODE = pytest.mark.parametrize(
    ("recipe", "mode"), [("containerd", "relayed"), ("containerd-2", "relayed"), ("containerd-2", "copied")]
)


@pytest.fixture
async def bench(mode: str, real_bed: RealBed, start_hook_plugin: StartHookPlugin, tmp_path: Path) -> Bench:
    if mode == "relayed":
        (await start_hook_plugin()).register(real_bed.proxy.plugins, "p", ALL, failure_policy="Fail")
        await real_bed.proxy.wait_for_plugins(1)
    return Bench(real_bed.runtime, real_bed.proxy, tmp_path)


@EVERY_MODE
async def test_a_pod_is_run_inspected_updated_and_removed(bench: Bench) -> None:
    crictl = bench.crictl
    pod_id, container_id = await bench.pod_with_server()

    assert pod_id in await crictl("pods", "--no-trunc")
    assert container_id in await crictl("ps", "--no-trunc")
    assert json.loads(await crictl("inspectp", pod_id))["status"]["state"] == "SANDBOX_READY"
    assert json.loads(await crictl("inspect", container_id))["status"]["state"] == "CONTAINER_RUNNING"

    assert await crictl("exec", container_id, "echo", "executed") == "executed\n"
    assert (await crictl("exec", "--sync", container_id, "echo", "executed")).strip() == "executed"
    assert await _exchange(await crictl.start("exec", "--interactive", container_id, "cat"), b"to and fro") == (
        b"to and fro"
    )
    with pytest.raises(TestbedError, match="exited with 3"):
        await crictl("exec", "--sync", container_id, "sh", "-c", "exit 3")
    assert await until(lambda: crictl("logs", container_id)) == "started\n"
    assert await crictl.read_from_port(pod_id, PORT) == b"answered\n"

    assert container_id[:13] in await crictl("stats", "--all")
    await crictl("update", "--cpu-share=300", container_id)
    assert bench.runtime.setting(container_id, "cpu.shares") == "300"

    await crictl("stop", "--timeout=1", container_id)
    await crictl("rm", container_id)
    await crictl("stopp", pod_id)
    await crictl("rmp", pod_id)
    assert await crictl("pods", "--quiet") == ""
    assert await crictl("ps", "--all", "--quiet") == ""


@EVERY_MODE
async def test_images_are_listed_and_errors_of_the_runtime_arrive_unchanged(bench: Bench) -> None:
    crictl = bench.crictl

    assert "local.test/busybox" in await crictl("images")
    assert "runtimeReady" in await crictl("info") or "RuntimeReady" in await crictl("info")
    for arguments in (["pull", "127.0.0.1:1/no/image:1"], ["inspect", "unknown"], ["rmi", "unknown"], ["rm", "x"]):
        assert await _error_of(crictl, *arguments) == await _error_of(bench.runtime.crictl, *arguments)


async def _error_of(crictl: Crictl, *arguments: str) -> str:
    """Return the error of a command without its variable parts."""
    with pytest.raises(TestbedError) as failure:
        await crictl(*arguments)
    text = re.sub(r'time="[^"]*"|E[0-9]{4} [0-9:.]+ +[0-9]+', "", str(failure.value))
    return re.sub(r"127\.0\.0\.1:[0-9]+->", "", text)


async def _exchange(process: Process, words: bytes) -> bytes:
    async with asyncio.timeout(30):
        printed, _ = await process.communicate(words)
    return printed
