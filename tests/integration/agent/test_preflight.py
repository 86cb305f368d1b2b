"""Preflight with real servers: a change that fails in a throw-away sidecar reaches no application."""

import asyncio
import json
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from governor import yamltext
from governor.agent.platforms.local.files import resource_file
from governor.agent.platforms.local.sidecars import procfs
from governor.agent.platforms.local.sidecars.daprd import RESOURCES_FLAG
from governor.agent.settings import SidecarSettings
from governor.domain.documents import Preflight
from governor.domain.reports import Report, State, acknowledged, overall
from governor.process.child.child import same_process, start_time
from testbed.pytest_plugin import StartRedis, StartServer
from testbed.redis import Redis
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, resource_report, running_agent
from tests.integration.agent.test_rollback import end_window
from tests.integration.agent.test_server import AgentProgram, verified
from tests.integration.server.bed import profile, running, runtime

CLOSED = "127.0.0.1:1"
"""An address on which nothing listens."""
CANARY = "canary-8c2e51"


def store(redis: Redis, **more: str) -> dict[str, Any]:
    return component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password, **more)


def dead_store(name: str = "statestore") -> dict[str, Any]:
    """Return a store at a closed address; the default init timeout of 5 s is too short on a busy machine."""
    bad = component(name, "state.redis", redisHost=CLOSED)
    bad["spec"]["initTimeout"] = "50s"
    return bad


@pytest.fixture
def silent_host() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def hanging_store(host: str, name: str = "statestore", **more: str) -> dict[str, Any]:
    """Return a store whose initialisation takes longer than any test."""
    made = component(name, "state.redis", redisHost=host, readTimeout="300s", **more)
    made["spec"]["initTimeout"] = "300s"
    return made


def secret_reader(name: str, vault: str, **metadata: str) -> dict[str, Any]:
    """Return a store whose password is in a secret store."""
    made = component(name, "state.redis", **metadata)
    made["spec"]["metadata"].append({"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "redis"}})
    return {**made, "auth": {"secretStore": vault}}


def preflight_evidence(report: Report, name: str) -> str:
    """Return the preflight's evidence on a resource, or nothing."""
    evidence = resource_report(report, name).all_evidence
    return next((item.text for item in evidence if item.source.startswith("preflight app-preflight-")), "")


def leftover_files(directory: Path) -> list[str]:
    """Return the files of throw-away sidecars."""
    return [str(path) for path in (directory / "state" / "preflight").rglob("*")]


def throw_away_pids(directory: Path) -> list[int]:
    """Return the pids of running throw-away sidecars whose resources are written."""
    directories = {path.parent for path in (directory / "state" / "preflight").glob("*/resources/*")}
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for each in directories for pid in pids if procfs.has_flag(pid, each, RESOURCES_FLAG)]


async def throw_away_pid(directory: Path) -> int:
    async def pids() -> list[int]:
        return await asyncio.to_thread(throw_away_pids, directory)

    return (await until(pids))[0]


@asynccontextmanager
async def preflight_agent(directory: Path, program: Path) -> AsyncIterator[AgentBed]:
    async with running_agent(directory, program) as bed:
        bed.preflight = Preflight.SIDECAR
        yield bed


@asynccontextmanager
async def probing(bed: AgentBed, path: str) -> AsyncIterator[list[int]]:
    """Send requests to the sidecar continuously, as its application does; yield the status codes."""
    answers: list[int] = []

    async def probe() -> None:
        while True:
            try:
                answers.append((await bed.get(path))[0])
            except OSError:
                answers.append(0)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(probe())
    try:
        yield answers
    finally:
        task.cancel()
        await asyncio.wait({task})


async def several(answers: list[int]) -> bool:
    return len(answers) > 50


def recording_daprd(directory: Path, program: Path, before: str = "") -> tuple[Path, Path]:
    """Return a daprd that records how each throw-away sidecar is started, and the directory of the records.

    What it loads is recorded once its Configuration has arrived through the pipe.
    """
    records = directory / "records"
    records.mkdir()
    script = directory / "recording-daprd"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-preflight-*)\n'
        f"record={shlex.quote(str(records))}/$$\n"
        'for word in "$@"; do case "$word" in --resources-path=*) directory=$(dirname "${word#*=}");; esac; done\n'
        'echo "$NAMESPACE" > "$record.namespace"\n'
        'printf "%s\\n" "$@" > "$record.argv"\n'
        'cat "$directory"/config.yaml > "$record.config"\n'
        'find "$directory" -printf "%m %P\\n" | sort > "$record.files"\n'
        f"{before}\n"
        'for word in "$@"; do shift\n'
        'case "$word" in --config=*) word="--config=$record.config";; esac; set -- "$@" "$word"; done\n'
        ";; esac\n"
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    script.chmod(0o700)
    return script, records


def recorded(records: Path, what: str) -> list[str]:
    """Return one record of the only throw-away sidecar."""
    (file,) = records.glob(f"*.{what}")
    return file.read_text().splitlines()


async def test_a_good_change_passes_preflight_and_is_verified(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(component("memory", "state.in-memory"))
        second = await bed.deliver(store(redis), component("memory", "state.in-memory"))

        assert acknowledged(first)
        assert acknowledged(second)
        assert "does not connect at init" in preflight_evidence(first, "memory")
        assert preflight_evidence(second, "statestore") == "initialised"
        sources = [item.source.split()[0] for item in resource_report(second, "statestore").all_evidence]
        assert sources == ["agent", "preflight", "file", "sidecar"]
        # An unchanged resource is not tried again.
        assert preflight_evidence(second, "memory") == ""
        assert leftover_files(tmp_path) == []


@pytest.mark.parametrize("version", ["daprd_binary", "daprd_1_16_binary"])
async def test_a_dead_host_is_rejected_without_a_failed_request(
    tmp_path: Path, request: pytest.FixtureRequest, start_redis: StartRedis, version: str
) -> None:
    redis = await start_redis()
    async with preflight_agent(tmp_path, request.getfixturevalue(version)) as bed:
        await bed.deliver(store(redis))
        process = bed.sidecar.process
        file = bed.resources / "component.statestore.yaml"
        before = (file.read_bytes(), file.stat().st_mtime_ns)

        async with probing(bed, "/v1.0/state/statestore/order") as answers:
            report = await bed.deliver(dead_store(), component("other", "state.in-memory"))
            await until(lambda: several(answers))

        assert overall(report) is State.FAILED
        assert resource_report(report, "statestore").state is State.FAILED
        assert "connection refused" in preflight_evidence(report, "statestore")
        assert resource_report(report, "other").state in (State.RECEIVED, State.PREFLIGHTED)
        assert len(answers) > 50
        assert set(answers) == {204}
        assert (bed.sidecar.process, bed.sidecar.starts) == (process, 1)
        assert (file.read_bytes(), file.stat().st_mtime_ns) == before
        assert [path.name for path in bed.resources.iterdir()] == [file.name]
        assert leftover_files(tmp_path) == []


UNLOADABLE = [
    (component("bad", "state.no-such-type"), "couldn't find state store state.no-such-type"),
    (
        resource("Resiliency", "bad", {"policies": {"timeouts": {"short": "soon"}}, "targets": {}}),
        "invalid duration",
    ),
    (resource("Configuration", "bad", {"tracing": "none"}), "error loading configuration"),
    (
        resource("MCPServer", "bad", {"endpoint": {"streamableHTTP": {"url": f"http://{CLOSED}"}}}),
        "failed to connect",
    ),
    (secret_reader("bad", "nowhere"), "references a secret store that isn't loaded: nowhere"),
]


async def test_a_resource_that_daprd_cannot_load_is_rejected_with_its_error(tmp_path: Path, daprd_binary: Path) -> None:
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("good", "state.in-memory"))

        for bad, error in UNLOADABLE:
            report = await bed.deliver(component("good", "state.in-memory"), bad)

            assert resource_report(report, "bad").state is State.FAILED
            assert error in preflight_evidence(report, "bad")
            assert bed.sidecar.starts == 1
            assert [path.name for path in bed.resources.iterdir()] == ["component.good.yaml"]
            assert leftover_files(tmp_path) == []


async def test_a_failing_component_with_ignore_errors_is_rejected_and_the_old_one_kept(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    bad = dead_store()
    bad["spec"]["ignoreErrors"] = True
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(redis))

        report = await bed.deliver(bad)

        assert "connection refused" in preflight_evidence(report, "statestore")
        assert (await bed.get("/v1.0/state/statestore/order"))[0] == 204


async def test_secret_stores_are_loaded_as_dependencies_and_readers_of_a_changed_one_are_tried(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"redis": redis.password}))
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"redis": "wrong"}))
    vault = component("vault", "secretstores.local.file", secretsFile=str(secrets))
    reader = secret_reader("statestore", "vault", redisHost=redis.address)
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(vault)
        added = await bed.deliver(vault, reader)
        changed = await bed.deliver(component("vault", "secretstores.local.file", secretsFile=str(wrong)), reader)

        assert acknowledged(added)
        assert preflight_evidence(added, "statestore") == "initialised"
        assert "WRONGPASS" in preflight_evidence(changed, "statestore")
        assert (await bed.get("/v1.0/state/statestore/order"))[0] == 204


async def test_a_secret_store_in_a_foreign_file_is_loaded_as_a_dependency(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"redis": redis.password}))
    vault = component("vault", "secretstores.local.file", secretsFile=str(secrets))
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        (bed.resources / "mine.yaml").write_bytes(resource_file(vault, "default").content)

        report = await bed.deliver(secret_reader("statestore", "vault", redisHost=redis.address))

        assert acknowledged(report)
        assert preflight_evidence(report, "statestore") == "initialised"


async def test_a_throw_away_sidecar_is_isolated_and_consumes_no_messages(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    await redis.execute("XADD", "orders", "*", "data", "{}")
    program, records = recording_daprd(tmp_path, daprd_binary)
    credentials = {"redisHost": redis.address, "redisPassword": redis.password}
    broker = component("broker", "pubsub.redis", consumerID="orders", **credentials)
    subscription = resource(
        "Subscription",
        "sub",
        {"pubsubname": "broker", "topic": "orders", "routes": {"default": "/"}},
        "dapr.io/v2alpha1",
    )
    tick = component("tick", "bindings.cron", schedule="@every 1s")
    async with preflight_agent(tmp_path, program) as bed:
        report = await bed.deliver(broker, subscription, tick, resource("Configuration", "calm", {}))

        assert preflight_evidence(report, "broker") == "initialised"
        assert preflight_evidence(report, "tick") == "not tried: an input binding would consume messages"
        assert preflight_evidence(report, "sub") == "not tried: a Subscription is checked only against its schema"
        assert recorded(records, "files") == [
            "600 config.yaml",
            "600 daprd.log",
            "600 resources/component.broker.yaml",
            "700 ",
            "700 resources",
        ]
        argv = recorded(records, "argv")
        assert not any(word.startswith(("--app-port", "--placement", "--scheduler")) for word in argv)
        assert recorded(records, "namespace") == ["default"]
        configuration: Any = yamltext.load("\n".join(recorded(records, "config")), "config")[0].value
        assert {"name": "HotReload", "enabled": False} in configuration["spec"]["features"]
        assert await redis.execute("XLEN", "orders") == 1
        assert "preflight" not in repr(await redis.execute("XINFO", "GROUPS", "orders"))


async def test_with_preflight_off_the_change_is_applied_directly_and_reported_so(
    tmp_path: Path, daprd_binary: Path
) -> None:
    program, records = recording_daprd(tmp_path, daprd_binary)
    async with running_agent(tmp_path, program) as bed:
        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert "applied without a preflight" in [item.text for item in resource_report(report, "one").all_evidence]
        assert list(records.iterdir()) == []


async def test_a_settled_delivery_is_repaired_without_a_preflight(tmp_path: Path, daprd_binary: Path) -> None:
    program, records = recording_daprd(tmp_path, daprd_binary)
    async with preflight_agent(tmp_path, program) as first:
        await first.deliver(component("one", "state.in-memory"))
        await end_window(first)
    (first.resources / "component.one.yaml").unlink()

    async with running_agent(tmp_path, program) as second:
        report = await second.final_report(1)

        assert acknowledged(report)
        assert (second.resources / "component.one.yaml").exists()
        assert len(recorded(records, "namespace")) == 1


async def test_one_throw_away_sidecar_serves_all_sidecars(tmp_path: Path, daprd_binary: Path) -> None:
    program, records = recording_daprd(tmp_path, daprd_binary)
    both = [SidecarSettings(app_id="one"), SidecarSettings(app_id="two")]
    async with running_agent(tmp_path, program, sidecars=both) as bed:
        bed.preflight = Preflight.SIDECAR
        mine = [component(f"for-{name}", "state.in-memory", scopes=[name]) for name in ("one", "two")]

        assert acknowledged(await bed.deliver(*mine))

        loaded = [line for line in recorded(records, "files") if "resources/" in line]
        assert loaded == ["600 resources/component.for-one.yaml", "600 resources/component.for-two.yaml"]


async def test_a_resource_outside_every_scope_is_not_tried(tmp_path: Path, daprd_binary: Path) -> None:
    program, records = recording_daprd(tmp_path, daprd_binary)
    async with preflight_agent(tmp_path, program) as bed:
        report = await bed.deliver(component("one", "state.no-such-type", scopes=["elsewhere"]))

        assert acknowledged(report)
        assert list(records.glob("*.files")) == []
        assert leftover_files(tmp_path) == []


async def test_a_configuration_larger_than_a_pipe_is_tried(tmp_path: Path, daprd_binary: Path) -> None:
    handlers = [{"name": f"handler-{number}", "type": "middleware.http.uppercase"} for number in range(2_000)]
    large = resource("Configuration", "large", {"httpPipeline": {"handlers": handlers}})
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(large)

        assert len(json.dumps(large)) > 65_536
        assert preflight_evidence(report, "large") == "loaded"
        assert acknowledged(report)
        assert leftover_files(tmp_path) == []


async def test_an_older_daprd_waits_for_its_configuration_too(tmp_path: Path, daprd_1_16_binary: Path) -> None:
    async with preflight_agent(tmp_path, daprd_1_16_binary) as bed:
        report = await bed.deliver(component("one", "state.in-memory"), resource("Configuration", "calm", {}))

        assert preflight_evidence(report, "one").startswith("initialised")
        assert preflight_evidence(report, "calm").startswith("loaded")
        assert leftover_files(tmp_path) == []


async def test_a_preflight_that_cannot_run_applies_nothing_and_is_retried(tmp_path: Path, daprd_binary: Path) -> None:
    broken = tmp_path / "broken"
    program, _records = recording_daprd(tmp_path, daprd_binary, f"[ -e {shlex.quote(str(broken))} ] && exit 3")
    async with preflight_agent(tmp_path, program) as bed:
        await bed.deliver(component("one", "state.in-memory"))
        broken.touch()

        report = await bed.deliver(component("one", "state.in-memory"), component("two", "state.in-memory"))

        assert (
            "the preflight could not run, so nothing was applied"
            in resource_report(report, "two").all_evidence[-1].text
        )
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]
        assert bed.sidecar.starts == 1
        broken.unlink()
        assert acknowledged(await bed.wait_for_report(acknowledged))
        assert leftover_files(tmp_path) == []


async def test_a_killed_throw_away_sidecar_is_not_a_verdict(tmp_path: Path, daprd_binary: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    program, records = recording_daprd(tmp_path, daprd_binary, f"rm {shlex.quote(str(once))} 2>&- && kill -9 $$")
    async with preflight_agent(tmp_path, program) as bed:
        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert len(list(records.glob("*.argv"))) == 2


async def test_preflight_evidence_stays_in_the_report_after_a_sidecar_restart(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(component("one", "state.in-memory"))
        assert bed.sidecar.process is not None
        os.kill(bed.sidecar.process.pid, signal.SIGKILL)

        second = await bed.wait_for_report(lambda report: acknowledged(report) and report.n > first.n)

        assert preflight_evidence(second, "one") == preflight_evidence(first, "one") != ""


async def test_a_newer_delivery_does_not_wait_for_the_preflight_of_an_older_one(
    tmp_path: Path, daprd_binary: Path, silent_host: str
) -> None:
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        await bed.inbox.accept(bed.sign([hanging_store(silent_host)]), bed.membership)
        pid = await throw_away_pid(tmp_path)
        started = start_time(pid)

        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert not same_process(pid, started)
        assert leftover_files(tmp_path) == []


async def test_an_agent_stopped_during_a_preflight_leaves_nothing_behind(
    tmp_path: Path, daprd_binary: Path, silent_host: str
) -> None:
    async with preflight_agent(tmp_path, daprd_binary) as bed:
        await bed.inbox.accept(bed.sign([hanging_store(silent_host)]), bed.membership)
        pid = await throw_away_pid(tmp_path)
        started = start_time(pid)

    assert not same_process(pid, started)
    assert leftover_files(tmp_path) == []


async def test_the_next_start_cleans_up_the_preflight_of_a_killed_agent(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, silent_host: str
) -> None:
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), profile("orders", component("one", "state.in-memory")))
        agent = AgentProgram(tmp_path / "agent", daprd_binary)
        await agent.join(bed, "r1")
        await start_server(agent)
        await verified(bed, 1)
        secret = hanging_store(silent_host, "two", redisPassword=CANARY)
        await bed.apply(profile("orders", component("one", "state.in-memory"), secret))
        pid = await throw_away_pid(agent.directory)
        started = start_time(pid)
        modes_while_running = [
            mode_of(file) for file in await until(lambda: loaded_files(agent.directory / "state" / "preflight"))
        ]
        await agent.kill()
        assert same_process(pid, started)
        assert leftover_files(agent.directory) != []

        await bed.apply(profile("orders", component("one", "state.in-memory")))
        await agent.start()
        await verified(bed, 3)

        assert not same_process(pid, started)
        assert leftover_files(agent.directory) == []
        assert modes_while_running == [0o600]
        assert [mode for mode in map(mode_of, files_containing(agent.directory, CANARY)) if mode != 0o600] == []


async def loaded_files(directory: Path) -> list[Path]:
    return await asyncio.to_thread(files_containing, directory, CANARY)


def files_containing(directory: Path, text: str) -> list[Path]:
    """Return the files below a directory that contain a text."""
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777
