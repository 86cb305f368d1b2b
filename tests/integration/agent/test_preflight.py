"""A change is tried by a throw-away sidecar first: what fails there reaches no application. All servers are real."""

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

from governor.agent.platforms.local import procfs
from governor.agent.platforms.local.daprd import RESOURCES_FLAG
from governor.agent.platforms.local.files import resource_file
from governor.agent.settings import SidecarSettings
from governor.domain.documents import Preflight
from governor.domain.reports import Report, State, acknowledged, overall
from governor.process.child.child import same_process, start_time
from testbed.pytest_plugin import StartRedis, StartServer
from testbed.redis import Redis
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, resource, running_agent, said_of
from tests.integration.agent.test_return import settled
from tests.integration.agent.test_server import AgentProgram, verified
from tests.integration.server.bed import profile, running, runtime

GONE = "127.0.0.1:1"
"""Nobody listens there."""
CANARY = "canary-8c2e51"


def store(redis: Redis, **more: str) -> dict[str, Any]:
    return component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password, **more)


def dead(name: str = "statestore") -> dict[str, Any]:
    """Nobody listens there; on a busy machine the usual 5 s end before daprd has found out."""
    bad = component(name, "state.redis", redisHost=GONE)
    bad["spec"]["initTimeout"] = "50s"
    return bad


@pytest.fixture
def silent_host() -> Iterator[str]:
    """A host that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def waiting(host: str, name: str = "statestore", **more: str) -> dict[str, Any]:
    """A store for which a sidecar waits longer than any test does."""
    made = component(name, "state.redis", redisHost=host, readTimeout="300s", **more)
    made["spec"]["initTimeout"] = "300s"
    return made


def reading(name: str, vault: str, **metadata: str) -> dict[str, Any]:
    """A store whose password is a secret of another."""
    made = component(name, "state.redis", **metadata)
    made["spec"]["metadata"].append({"name": "redisPassword", "secretKeyRef": {"name": "redis", "key": "redis"}})
    return {**made, "auth": {"secretStore": vault}}


def told(report: Report, name: str) -> str:
    """What the preflight said of a resource."""
    evidence = said_of(report, name).evidence
    return next((item.text for item in evidence if item.source.startswith("preflight app-preflight-")), "")


def left(directory: Path) -> list[str]:
    """Files of throw-away sidecars."""
    return [str(path) for path in (directory / "state" / "preflight").rglob("*")]


def throw_aways(directory: Path) -> list[int]:
    """The throw-away sidecars that run."""
    places = list((directory / "state" / "preflight").glob("*/resources"))
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for place in places for pid in pids if procfs.has_flag(pid, place, RESOURCES_FLAG)]


async def running_throw_away(directory: Path) -> int:
    async def look() -> list[int]:
        return await asyncio.to_thread(throw_aways, directory)

    return (await until(look))[0]


@asynccontextmanager
async def trying_agent(directory: Path, program: Path) -> AsyncIterator[AgentBed]:
    async with running_agent(directory, program) as bed:
        bed.preflight = Preflight.SIDECAR
        yield bed


@asynccontextmanager
async def asking(bed: AgentBed, path: str) -> AsyncIterator[list[int]]:
    """Ask the sidecar again and again, as its application does; the answers."""
    answers: list[int] = []

    async def ask() -> None:
        while True:
            try:
                answers.append((await bed.get(path))[0])
            except OSError:
                answers.append(0)
            await asyncio.sleep(0.01)

    task = asyncio.create_task(ask())
    try:
        yield answers
    finally:
        task.cancel()
        await asyncio.wait({task})


async def several(answers: list[int]) -> bool:
    return len(answers) > 50


def watched_daprd(directory: Path, program: Path, before: str = "") -> tuple[Path, Path]:
    """A daprd that notes with what each throw-away sidecar is started; the program and the notes."""
    notes = directory / "notes"
    notes.mkdir()
    script = directory / "watched-daprd"
    script.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-preflight-*)\n'
        f"note={shlex.quote(str(notes))}/$$\n"
        'for word in "$@"; do case "$word" in --resources-path=*) place=$(dirname "${word#*=}");; esac; done\n'
        'echo "$NAMESPACE" > "$note.namespace"\n'
        'printf "%s\\n" "$@" > "$note.words"\n'
        'find "$place" -printf "%m %P\\n" | sort > "$note.files"\n'
        f"{before}\n"
        ";; esac\n"
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    script.chmod(0o700)
    return script, notes


def noted(notes: Path, what: str) -> list[str]:
    """What was noted of the only throw-away sidecar."""
    (file,) = notes.glob(f"*.{what}")
    return file.read_text().splitlines()


async def test_a_good_change_is_tried_and_then_proven(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    async with trying_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(component("memory", "state.in-memory"))
        second = await bed.deliver(store(redis), component("memory", "state.in-memory"))

        assert acknowledged(first)
        assert acknowledged(second)
        assert "does not connect at init" in told(first, "memory")
        assert told(second, "statestore") == "initialised"
        sources = [item.source.split()[0] for item in said_of(second, "statestore").evidence]
        assert sources == ["agent", "preflight", "file", "sidecar"]
        # What did not change is not tried again.
        assert told(second, "memory") == ""
        assert left(tmp_path) == []


@pytest.mark.parametrize("version", ["daprd_binary", "daprd_1_16_binary"])
async def test_a_dead_host_is_refused_and_no_application_notices(
    tmp_path: Path, request: pytest.FixtureRequest, start_redis: StartRedis, version: str
) -> None:
    redis = await start_redis()
    async with trying_agent(tmp_path, request.getfixturevalue(version)) as bed:
        await bed.deliver(store(redis))
        process = bed.sidecar.process
        file = bed.resources / "component.statestore.yaml"
        before = (file.read_bytes(), file.stat().st_mtime_ns)

        async with asking(bed, "/v1.0/state/statestore/order") as answers:
            report = await bed.deliver(dead(), component("other", "state.in-memory"))
            await until(lambda: several(answers))

        assert overall(report) is State.FAILED
        assert said_of(report, "statestore").state is State.FAILED
        assert "connection refused" in told(report, "statestore")
        assert said_of(report, "other").state in (State.RECEIVED, State.PREFLIGHTED)
        assert len(answers) > 50
        assert set(answers) == {204}
        assert (bed.sidecar.process, bed.sidecar.starts) == (process, 1)
        assert (file.read_bytes(), file.stat().st_mtime_ns) == before
        assert [path.name for path in bed.resources.iterdir()] == [file.name]
        assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (component("bad", "state.no-such-type"), "couldn't find state store state.no-such-type"),
        (
            resource("Resiliency", "bad", {"policies": {"timeouts": {"short": "soon"}}, "targets": {}}),
            "invalid duration",
        ),
        (resource("Configuration", "bad", {"tracing": "none"}), "error loading configuration"),
        (
            resource("MCPServer", "bad", {"endpoint": {"streamableHTTP": {"url": f"http://{GONE}"}}}),
            "failed to connect",
        ),
        (reading("bad", "nowhere"), "references a secret store that isn't loaded: nowhere"),
    ],
    ids=["unknown-type", "resiliency", "configuration", "mcp-server", "secret-store-missing"],
)
async def test_what_a_sidecar_cannot_load_is_refused_in_its_own_words(
    tmp_path: Path, daprd_binary: Path, bad: dict[str, Any], words: str
) -> None:
    async with trying_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("good", "state.in-memory"))

        report = await bed.deliver(component("good", "state.in-memory"), bad)

        assert said_of(report, "bad").state is State.FAILED
        assert words in told(report, "bad")
        assert bed.sidecar.starts == 1
        assert [path.name for path in bed.resources.iterdir()] == ["component.good.yaml"]
        assert left(tmp_path) == []


async def test_a_failure_that_the_component_asks_to_ignore_is_refused_before_the_old_one_is_lost(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    bad = dead()
    bad["spec"]["ignoreErrors"] = True
    async with trying_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(redis))

        report = await bed.deliver(bad)

        assert "connection refused" in told(report, "statestore")
        assert (await bed.get("/v1.0/state/statestore/order"))[0] == 204


async def test_secret_stores_come_along_and_their_readers_are_tried_when_they_change(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"redis": redis.password}))
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"redis": "wrong"}))
    vault = component("vault", "secretstores.local.file", secretsFile=str(secrets))
    reader = reading("statestore", "vault", redisHost=redis.address)
    async with trying_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(vault)
        added = await bed.deliver(vault, reader)
        changed = await bed.deliver(component("vault", "secretstores.local.file", secretsFile=str(wrong)), reader)

        assert acknowledged(added)
        assert told(added, "statestore") == "initialised"
        assert "WRONGPASS" in told(changed, "statestore")
        assert (await bed.get("/v1.0/state/statestore/order"))[0] == 204


async def test_a_secret_store_in_a_foreign_file_comes_along_too(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"redis": redis.password}))
    vault = component("vault", "secretstores.local.file", secretsFile=str(secrets))
    async with trying_agent(tmp_path, daprd_binary) as bed:
        (bed.resources / "mine.yaml").write_bytes(resource_file(vault, "default").content)

        report = await bed.deliver(reading("statestore", "vault", redisHost=redis.address))

        assert acknowledged(report)
        assert told(report, "statestore") == "initialised"


async def test_a_throw_away_sidecar_stands_apart_and_takes_no_messages(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    await redis.ask("XADD", "orders", "*", "data", "{}")
    program, notes = watched_daprd(tmp_path, daprd_binary)
    credentials = {"redisHost": redis.address, "redisPassword": redis.password}
    broker = component("broker", "pubsub.redis", consumerID="orders", **credentials)
    subscription = resource(
        "Subscription",
        "sub",
        {"pubsubname": "broker", "topic": "orders", "routes": {"default": "/"}},
        "dapr.io/v2alpha1",
    )
    tick = component("tick", "bindings.cron", schedule="@every 1s")
    async with trying_agent(tmp_path, program) as bed:
        report = await bed.deliver(broker, subscription, tick, resource("Configuration", "calm", {}))

        assert told(report, "broker") == "initialised"
        assert told(report, "tick") == "not tried: an input binding would consume messages"
        assert told(report, "sub") == "not tried: a Subscription is checked only against its schema"
        assert noted(notes, "files") == [
            "600 config/configuration.calm.yaml",
            "600 daprd.log",
            "600 resources/component.broker.yaml",
            "700 ",
            "700 config",
            "700 resources",
        ]
        words = noted(notes, "words")
        assert not any(word.startswith(("--app-port", "--placement", "--scheduler")) for word in words)
        assert noted(notes, "namespace") == ["default"]
        assert await redis.ask("XLEN", "orders") == 1
        assert "preflight" not in repr(await redis.ask("XINFO", "GROUPS", "orders"))


async def test_with_preflight_off_the_change_goes_straight_to_the_sidecar_and_the_report_says_so(
    tmp_path: Path, daprd_binary: Path
) -> None:
    program, notes = watched_daprd(tmp_path, daprd_binary)
    async with running_agent(tmp_path, program) as bed:
        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert "applied without a preflight" in [item.text for item in said_of(report, "one").evidence]
        assert list(notes.iterdir()) == []


async def test_what_is_known_to_work_is_repaired_without_a_preflight(tmp_path: Path, daprd_binary: Path) -> None:
    program, notes = watched_daprd(tmp_path, daprd_binary)
    async with trying_agent(tmp_path, program) as first:
        await first.deliver(component("one", "state.in-memory"))
        await settled(first)
    (first.resources / "component.one.yaml").unlink()

    async with running_agent(tmp_path, program) as second:
        report = await second.concluded(1)

        assert acknowledged(report)
        assert (second.resources / "component.one.yaml").exists()
        assert len(noted(notes, "namespace")) == 1


async def test_one_throw_away_sidecar_tries_for_all_sidecars(tmp_path: Path, daprd_binary: Path) -> None:
    program, notes = watched_daprd(tmp_path, daprd_binary)
    both = [SidecarSettings(app_id="one"), SidecarSettings(app_id="two")]
    async with running_agent(tmp_path, program, sidecars=both) as bed:
        bed.preflight = Preflight.SIDECAR
        mine = [component(f"for-{name}", "state.in-memory", scopes=[name]) for name in ("one", "two")]

        assert acknowledged(await bed.deliver(*mine))

        loaded = [line for line in noted(notes, "files") if "resources/" in line]
        assert loaded == ["600 resources/component.for-one.yaml", "600 resources/component.for-two.yaml"]


async def test_what_is_in_no_sidecars_scope_is_not_tried(tmp_path: Path, daprd_binary: Path) -> None:
    program, notes = watched_daprd(tmp_path, daprd_binary)
    async with trying_agent(tmp_path, program) as bed:
        report = await bed.deliver(component("one", "state.no-such-type", scopes=["elsewhere"]))

        assert acknowledged(report)
        assert list(notes.iterdir()) == []


async def test_a_preflight_that_cannot_run_applies_nothing_and_is_tried_again(
    tmp_path: Path, daprd_binary: Path
) -> None:
    broken = tmp_path / "broken"
    program, _notes = watched_daprd(tmp_path, daprd_binary, f"[ -e {shlex.quote(str(broken))} ] && exit 3")
    async with trying_agent(tmp_path, program) as bed:
        await bed.deliver(component("one", "state.in-memory"))
        broken.touch()

        report = await bed.deliver(component("one", "state.in-memory"), component("two", "state.in-memory"))

        assert "the preflight could not run, so nothing was applied" in said_of(report, "two").evidence[-1].text
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]
        assert bed.sidecar.starts == 1
        broken.unlink()
        assert acknowledged(await bed.said(acknowledged))
        assert left(tmp_path) == []


async def test_a_throw_away_sidecar_that_somebody_killed_is_no_judgement(tmp_path: Path, daprd_binary: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    program, notes = watched_daprd(tmp_path, daprd_binary, f"rm {shlex.quote(str(once))} 2>&- && kill -9 $$")
    async with trying_agent(tmp_path, program) as bed:
        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert len(list(notes.glob("*.words"))) == 2


async def test_what_a_preflight_found_stays_in_the_report_when_the_sidecar_shows_all_anew(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with trying_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(component("one", "state.in-memory"))
        assert bed.sidecar.process is not None
        os.kill(bed.sidecar.process.pid, signal.SIGKILL)

        second = await bed.said(lambda report: acknowledged(report) and report.n > first.n)

        assert told(second, "one") == told(first, "one") != ""


async def test_a_newer_delivery_does_not_wait_for_the_preflight_of_an_older_one(
    tmp_path: Path, daprd_binary: Path, silent_host: str
) -> None:
    async with trying_agent(tmp_path, daprd_binary) as bed:
        await bed.inbox.accept(bed.sign([waiting(silent_host)]), bed.membership)
        pid = await running_throw_away(tmp_path)
        started = start_time(pid)

        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert not same_process(pid, started)
        assert left(tmp_path) == []


async def test_an_agent_that_stops_in_the_middle_of_a_preflight_leaves_nothing(
    tmp_path: Path, daprd_binary: Path, silent_host: str
) -> None:
    async with trying_agent(tmp_path, daprd_binary) as bed:
        await bed.inbox.accept(bed.sign([waiting(silent_host)]), bed.membership)
        pid = await running_throw_away(tmp_path)
        started = start_time(pid)

    assert not same_process(pid, started)
    assert left(tmp_path) == []


async def test_a_killed_agent_leaves_nothing_of_a_preflight_once_it_is_started_again(
    tmp_path: Path, daprd_binary: Path, start_server: StartServer, silent_host: str
) -> None:
    async with running(tmp_path / "server") as bed:
        await bed.apply(runtime("r1"), profile("orders", component("one", "state.in-memory")))
        agent = AgentProgram(tmp_path / "agent", daprd_binary)
        await agent.join(bed, "r1")
        await start_server(agent)
        await verified(bed, 1)
        secret = waiting(silent_host, "two", redisPassword=CANARY)
        await bed.apply(profile("orders", component("one", "state.in-memory"), secret))
        pid = await running_throw_away(agent.directory)
        started = start_time(pid)
        modes_while_running = [mode_of(file) for file in holding(agent.directory / "state" / "preflight", CANARY)]
        await agent.kill()
        assert same_process(pid, started)
        assert left(agent.directory) != []

        await bed.apply(profile("orders", component("one", "state.in-memory")))
        await agent.start()
        await verified(bed, 3)

        assert not same_process(pid, started)
        assert left(agent.directory) == []
        assert modes_while_running == [0o600]
        assert [mode for mode in map(mode_of, holding(agent.directory, CANARY)) if mode != 0o600] == []


def holding(directory: Path, text: str) -> list[Path]:
    """The files below a directory that hold a text."""
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777
