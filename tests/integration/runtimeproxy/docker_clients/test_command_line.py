"""The docker command line behaves through the proxy as it does with dockerd itself."""

import asyncio
import hashlib
import json
import os
import random
from asyncio.subprocess import Process
from pathlib import Path

from testbed.commands import WITHIN_S
from testbed.waiting import until
from tests.integration.runtimeproxy.docker_clients.bed import IDLE, DockerBed


async def test_run_returns_both_outputs_and_the_exit_code(bed: DockerBed) -> None:
    outcome = await bed.cli.outcome("run", "--rm", bed.image, "-c", "echo out; echo err >&2; exit 3")
    assert (outcome.code, outcome.out, outcome.err) == (3, "out\n", "err\n")
    assert (await bed.cli.outcome("run", "--rm", "--tty", bed.image, "-c", "echo out")).out == "out\r\n"
    # The standard input stays open: the command ends with its container.
    async with bed.cli.running("run", "--rm", "--interactive", bed.image, "-c", "read line; echo $line") as process:
        await _write(process, b"first\n")
        assert await _line(process) == b"first\n"
        async with asyncio.timeout(WITHIN_S):
            assert await process.wait() == 0


async def test_a_half_closed_input_reaches_run_and_exec_whole(bed: DockerBed) -> None:
    data = random.Random(21).randbytes(3 * 2**20 + 1)
    expected = f"{hashlib.sha256(data).hexdigest()}  -\nend"
    script = "sha256sum; echo end"
    assert await bed.cli("run", "--rm", "--interactive", bed.image, "-c", script, stdin=data) == expected
    container = await bed.run("--name=half-closed.1")
    assert await bed.cli("exec", "--interactive", container, "sh", "-c", script, stdin=data) == expected
    assert await bed.cli("exec", "-i", "half-closed.1", "cat", stdin=b"x" * 2**20) == "x" * 2**20
    assert (await bed.cli.outcome("exec", container, "sh", "-c", "exit 7")).code == 7


async def test_an_attached_terminal_is_a_conversation_and_may_be_detached(bed: DockerBed) -> None:
    created = await bed.cli(
        "create", "--interactive", "--name=talk", bed.image, "-c", "while read a; do echo $a.; done"
    )
    async with bed.cli.running("start", "--attach", "--interactive", "talk") as process:
        for number in range(20):
            await _write(process, b"%d\n" % number)
            assert await _line(process) == b"%d.\n" % number
        async with bed.cli.running("attach", "--no-stdin", "talk") as second:
            await until(lambda: _is_attached(process, second))
        process.kill()
        await process.wait()
    state = (await bed.engine("GET", f"/containers/{created}/json"))["State"]
    assert state["Running"] is False or state["ExitCode"] == 0


async def _is_attached(talking: Process, listening: Process) -> bool:
    """Send a line and return whether both attached clients received it; the second may not be attached yet."""
    await _write(talking, b"both\n")
    assert await _line(talking) == b"both.\n"
    assert listening.stdout is not None
    try:
        async with asyncio.timeout(0.5):
            return await listening.stdout.readline() == b"both.\n"
    except TimeoutError:
        return False


async def test_the_output_of_many_attached_containers_arrives_whole(bed: DockerBed) -> None:
    script = "i=0; while [ $i -lt $N ]; do echo line $i; echo error $i >&2; i=$((i+1)); done"
    lines = 4_000

    async def run(number: int) -> None:
        options = ("run", "--rm", f"--env=N={lines + number}")
        outcome = await bed.cli.outcome(*options, bed.image, "-c", script)
        assert outcome.code == 0
        assert outcome.lines == [f"line {each}" for each in range(lines + number)]
        assert outcome.err.splitlines() == [f"error {each}" for each in range(lines + number)]

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(run(number))


async def test_logs_are_followed_while_the_container_runs(bed: DockerBed) -> None:
    script = "echo one; while [ ! -e /tmp/go ]; do usleep 20000; done; echo two"
    container = await bed.run("--name=followed", script=script)
    async with bed.cli.running("logs", "--follow", container) as process:
        assert await _line(process) == b"one\n"
        await bed.cli.outcome("exec", "followed", "touch", "/tmp/go")  # it ends with the container, maybe at once
        assert await _line(process) == b"two\n"
        async with asyncio.timeout(WITHIN_S):
            assert await process.wait() == 0
    assert await bed.cli("logs", container) == "one\ntwo"


async def test_events_arrive_as_they_happen(bed: DockerBed) -> None:
    container = await bed.cli("create", "--name=observed", bed.image, "-c", IDLE)
    options = (f"--filter=container={container}", "--filter=type=container", "--format={{.Action}}")
    async with bed.cli.running("events", "--since=1", *options) as process:
        assert await _line(process) == b"create\n"
        for command, events in (
            (("rename", "observed", "seen"), [b"rename"]),
            (("start", "seen"), [b"start"]),
            (("pause", "seen"), [b"pause"]),
            (("unpause", "seen"), [b"unpause"]),
            (("kill", "seen"), [b"kill", b"die"]),
            (("rm", "seen"), [b"destroy"]),
        ):
            await bed.cli(*command)
            assert [(await _line(process)).strip() for _ in events] == events


async def test_files_are_copied_into_a_container_and_back(bed: DockerBed, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "large").write_bytes(random.Random(22).randbytes(5 * 2**20 + 3))
    (source / "below" / "script").write_text("#!/bin/sh\necho ran\n", encoding="utf-8")
    (source / "below" / "script").chmod(0o755)
    (source / "link").symlink_to("large")
    container = await bed.run("--name=copied")
    await bed.cli("cp", str(source), "copied:/tmp/there")
    assert await bed.cli("exec", container, "/tmp/there/below/script") == "ran"
    await bed.cli("cp", "copied:/tmp/there", str(tmp_path / "back"))
    assert (tmp_path / "back" / "large").read_bytes() == (source / "large").read_bytes()
    assert (tmp_path / "back" / "link").readlink() == Path("large")
    assert (tmp_path / "back" / "below" / "script").stat().st_mode & 0o111
    missing = await bed.cli.outcome("cp", "copied:/missing", str(tmp_path))
    assert missing.code == 1
    assert "No such container:path: copied:/missing" in missing.err


async def test_restart_policies_are_followed(bed: DockerBed) -> None:
    failing = await bed.run("--restart=on-failure:2", script="exit 5")

    async def has_given_up() -> bool:
        state = await bed.engine("GET", f"/containers/{failing}/json")
        return state["RestartCount"] == 2 and not state["State"]["Restarting"] and not state["State"]["Running"]

    await until(has_given_up)
    assert await bed.cli("wait", failing) == "5"
    always = await bed.run("--restart=always", script="echo started; exec sleep 100000")
    assert await bed.cli("inspect", "--format={{.HostConfig.RestartPolicy.Name}}", always) == "always"
    await bed.cli("restart", "--time=0", always)

    async def has_started_twice() -> bool:
        return (await bed.cli("logs", always)).split() == ["started"] * 2

    await until(has_started_twice)


async def test_a_containers_life_by_names_with_dashes_and_dots(bed: DockerBed) -> None:
    name = "my-app.v1_2-a"
    await bed.run(f"--name={name}", "--cpu-shares=512", "--memory=64m", "--env=A=1", "--env=B= x ", "--label=a.b/c=d")
    inspected = json.loads(await bed.cli("inspect", name))[0]
    assert sorted(inspected["Config"]["Env"]) == ["A=1", "B= x "]  # docker itself sends them in any order
    assert inspected["Config"]["Labels"] == {"a.b/c": "d"}
    assert bed.dockerd.setting(inspected["Id"], "cpu.shares") == "512"
    await bed.cli("update", "--cpu-shares=256", name)
    assert bed.dockerd.setting(inspected["Id"], "cpu.shares") == "256"
    assert bed.dockerd.setting(inspected["Id"], "memory.limit_in_bytes") == str(64 * 2**20)
    await bed.cli("update", "--memory=96m", "--memory-swap=-1", name)
    assert bed.dockerd.setting(inspected["Id"], "memory.limit_in_bytes") == str(96 * 2**20)
    assert bed.dockerd.setting(inspected["Id"], "cpu.shares") == "256"
    await bed.cli("rename", name, "renamed-app.v2")
    assert "sleep" in await bed.cli("top", "renamed-app.v2")
    async with bed.cli.running("wait", "renamed-app.v2") as waiting:
        await bed.cli("kill", "--signal=KILL", "renamed-app.v2")
        assert await _line(waiting) == b"137\n"
    await bed.cli("start", "renamed-app.v2")
    await bed.cli("stop", "--time=0", "renamed-app.v2")
    await bed.cli("rm", "renamed-app.v2")
    assert await bed.cli("ps", "--all", "--quiet") == ""


async def test_a_missing_container_is_reported_in_dockerds_words(bed: DockerBed) -> None:
    for command in (
        "stop",
        "start",
        "kill",
        "restart",
        "rm",
        "update --cpu-shares=2",
        "attach",
        "logs",
        "inspect",
        "pause",
    ):
        outcome = await bed.cli.outcome(*command.split(), "no-such.container")
        assert outcome.code == 1
        assert "No such " in outcome.err
        assert "no-such.container" in outcome.err


async def test_a_context_is_built_and_the_image_saved_and_loaded(bed: DockerBed, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f'FROM {bed.image}\nUSER 0\nCOPY data /data\nRUN sha256sum /data > /sum\nCMD ["-c", "cat /sum"]\n',
        encoding="utf-8",
    )
    data = random.Random(23).randbytes(4 * 2**20)
    (context / "data").write_bytes(data)
    built = await bed.cli("build", "--tag=local.test/built:1", str(context))
    assert "Successfully tagged local.test/built:1" in built
    assert await bed.cli("run", "--rm", "local.test/built:1") == f"{hashlib.sha256(data).hexdigest()}  /data"
    archive = tmp_path / "image.tar"
    await bed.cli("save", f"--output={archive}", "local.test/built:1")
    await bed.cli("rmi", "local.test/built:1")
    assert await bed.cli("load", f"--input={archive}") == "Loaded image: local.test/built:1"
    await bed.cli("rmi", "local.test/built:1")
    (context / "Dockerfile").write_text(f"FROM {bed.image}\nRUN exit 9\n", encoding="utf-8")
    failed = await bed.cli.outcome("build", str(context))
    assert failed.code == 9
    assert "returned a non-zero code: 9" in failed.err


async def test_buildkits_session_passes(bed: DockerBed, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY data /data\n", encoding="utf-8")
    (tmp_path / "data").write_bytes(os.urandom(2**20))
    async with bed.cli.running(
        "build", "--progress=plain", "--tag=local.test/kit:1", str(tmp_path), environment={"DOCKER_BUILDKIT": "1"}
    ) as process:
        async with asyncio.timeout(WITHIN_S):
            _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    await bed.cli("rmi", "local.test/kit:1")


async def _write(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)
    await process.stdin.drain()


async def _line(process: Process) -> bytes:
    assert process.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        return await process.stdout.readline()
