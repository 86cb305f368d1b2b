"""A real dockerd runs containers, survives restarts and leaves nothing behind."""

from pathlib import Path

from testbed.docker.dockerd import Dockerd
from testbed.docker.fixtures import StartDockerd


async def test_dockerd_restarts_and_leaves_nothing_behind(start_dockerd: StartDockerd) -> None:
    links = _network_devices()
    dockerd = await start_dockerd()
    created = await dockerd.cli(
        "run", "--detach", "--cpu-shares=512", dockerd.image, "-c", "trap exit TERM; sleep 1000 & wait"
    )
    assert dockerd.setting(created, "cpu.shares") == "512"
    assert await dockerd.cli("exec", created, "echo", "inside") == "inside"

    for end in (dockerd.kill, dockerd.terminate):
        await end()
        await dockerd.start()
        assert created in await dockerd.cli("ps", "--all", "--quiet", "--no-trunc")
        assert await dockerd.cli("start", created) == created
    assert dockerd.cgroups() != []

    await dockerd.stop()
    assert dockerd.cgroups() == []
    assert _network_devices() == links
    assert str(dockerd.directory) not in Path("/proc/self/mountinfo").read_text()
    assert _processes_of(dockerd) == []


def _network_devices() -> set[str]:
    return {device.name for device in Path("/sys/class/net").iterdir() if device.name.startswith("docker")}


def _processes_of(dockerd: Dockerd) -> list[bytes]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:  # the process has exited
            continue
        if f"{dockerd.directory}/".encode() in words:
            found.append(words)
    return found
