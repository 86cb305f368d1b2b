"""The servers that the test bed starts are real, answer as configured, and are gone when they were stopped."""

import asyncio
import json
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from testbed import server
from testbed.daprd import VERSION, Sidecar
from testbed.errors import TestbedError
from testbed.pytest_plugin import StartDaprd, StartRedis
from testbed.redis import Redis, RedisError
from testbed.waiting import until


def state_store(redis: Redis) -> str:
    """A Dapr component, in the JSON that is also YAML."""
    settings = {"redisHost": redis.address, "redisPassword": redis.password}
    metadata = [{"name": name, "value": value} for name, value in settings.items()]
    return json.dumps(
        {
            "apiVersion": "dapr.io/v1alpha1",
            "kind": "Component",
            "metadata": {"name": "statestore"},
            "spec": {"type": "state.redis", "version": "v1", "metadata": metadata},
        }
    )


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def is_gone(port: int) -> bool:
    return not accepts(port)


async def test_redis_keeps_what_it_is_told(redis_server: Redis) -> None:
    assert await redis_server.ask("SET", "order", "foo") == "OK"
    assert await redis_server.ask("GET", "order") == "foo"
    assert await redis_server.ask("GET", "nothing") is None
    assert await redis_server.ask("KEYS", "*") == ["order"]
    assert await redis_server.ask("DBSIZE") == 1


async def test_redis_refuses_a_wrong_password(redis_server: Redis) -> None:
    redis_server.password = "wrong"
    with pytest.raises(RedisError, match="WRONGPASS"):
        await redis_server.ask("PING")


async def test_two_redis_servers_share_nothing(start_redis: StartRedis) -> None:
    one, two = await start_redis(), await start_redis()
    await one.ask("SET", "order", "foo")
    assert one.password != two.password
    assert await two.ask("GET", "order") is None


async def test_a_stopped_server_is_gone_and_returns_on_its_ports(redis_server: Redis) -> None:
    port, pid = redis_server.port, redis_server.pid
    await redis_server.stop()
    assert not accepts(port)
    await redis_server.start()
    assert (redis_server.port, await redis_server.ask("PING")) == (port, "PONG")
    assert redis_server.pid != pid


async def test_a_server_whose_port_is_taken_starts_on_others(
    monkeypatch: pytest.MonkeyPatch, start_redis: StartRedis
) -> None:
    taken = (await start_redis()).port
    choices = iter([[taken], server.free_ports(1)])
    monkeypatch.setattr(server, "free_ports", lambda count: next(choices))
    second = await start_redis()
    assert second.port != taken
    assert await second.ask("PING") == "PONG"


async def test_a_server_that_does_not_start_is_an_error_with_its_log(start_daprd: StartDaprd, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"daprd did not become ready; its log is .*daprd\.log\n(.|\n)*no-such-flag"):
        await start_daprd(Sidecar("orders", tmp_path, arguments=("--no-such-flag",)))


async def test_a_server_dies_with_the_process_that_started_it(redis_binary: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio, os, pathlib
from testbed.redis import Redis
async def main():
    redis = await Redis(pathlib.Path({str(redis_binary)!r}), pathlib.Path({str(tmp_path)!r})).start()
    print(redis.port, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    await until(lambda: is_gone(int(printed)))


async def test_daprd_of_the_pinned_version_stores_in_redis(
    redis_server: Redis, start_daprd: StartDaprd, tmp_path: Path
) -> None:
    resources = tmp_path / "resources"
    resources.mkdir()
    (resources / "statestore.yaml").write_text(state_store(redis_server), encoding="utf-8")
    daprd = await start_daprd(Sidecar("nodeapp", resources))
    async with aiohttp.ClientSession(daprd.url) as session:
        order = [{"key": "order", "value": "foo"}]
        async with session.post("/v1.0/state/statestore", json=order) as response:
            assert response.status == 204
        async with session.get("/v1.0/metadata") as response:
            metadata = await response.json()
        async with session.get(daprd.metrics_url) as response:
            assert "dapr_runtime_component_init_total" in await response.text()
    assert metadata["runtimeVersion"] == VERSION
    assert [component["name"] for component in metadata["components"]] == ["statestore"]
    assert await redis_server.ask("HGET", "nodeapp||order", "data") == '"foo"'


async def test_daprd_sees_only_resources_of_its_namespace(start_daprd: StartDaprd, tmp_path: Path) -> None:
    for namespace in ("blue", "green"):
        component = {
            "apiVersion": "dapr.io/v1alpha1",
            "kind": "Component",
            "metadata": {"name": f"store-{namespace}", "namespace": namespace},
            "spec": {"type": "state.in-memory", "version": "v1", "metadata": []},
        }
        (tmp_path / f"{namespace}.yaml").write_text(json.dumps(component), encoding="utf-8")
    daprd = await start_daprd(Sidecar("orders", tmp_path, namespace="blue"))
    async with aiohttp.ClientSession(daprd.url) as session, session.get("/v1.0/metadata") as response:
        names = [component["name"] for component in (await response.json())["components"]]
    assert names == ["store-blue"]
