"""Servers of the test bed start on free ports, end with their parent, and name their log when they cannot start."""

import asyncio
import json
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from testbed import server
from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.daprd import Daprd, Sidecar
from testbed.pytest_plugin import StartDaprd, StartRedis, StartServer
from testbed.recipes import provide
from testbed.redis import Redis
from testbed.waiting import until
from toolchain.errors import TestbedError


def put_component(resources: Path, name: str, kind: str, **settings: str) -> None:
    """Write a Dapr component, in the JSON that is also YAML."""
    component = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": kind,
            "version": "v1",
            "metadata": [{"name": key, "value": value} for key, value in settings.items()],
        },
    }
    resources.mkdir(exist_ok=True)
    (resources / f"{name}.yaml").write_text(json.dumps(component), encoding="utf-8")


def connection(redis: Redis) -> dict[str, str]:
    return {"redisHost": redis.address, "redisPassword": redis.password}


async def save_order(daprd: Daprd, value: str) -> int:
    """Post an order to the sidecar's state store and return the status."""
    order = [{"key": "order", "value": value}]
    async with aiohttp.ClientSession(daprd.url) as session, session.post("/v1.0/state/store", json=order) as response:
        return response.status


async def is_gone(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


async def test_a_server_whose_port_is_taken_starts_on_others(
    monkeypatch: pytest.MonkeyPatch, start_redis: StartRedis
) -> None:
    taken = (await start_redis()).port
    choices = iter([[taken], server.free_ports(1)])
    monkeypatch.setattr(server, "free_ports", lambda count: next(choices))
    second = await start_redis()
    assert second.port != taken
    assert await second.execute("PING") == "PONG"


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


@pytest.mark.parametrize(("name", "version"), [("daprd", VERSION), ("daprd-1.16", VERSION_1_16)])
async def test_daprd_has_the_pinned_version_and_the_components_that_its_recipe_keeps(
    name: str, version: str, redis_server: Redis, start_server: StartServer, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets.json"
    secrets.write_text("{}", encoding="utf-8")
    settings = {
        "bindings.cron": {"schedule": "@every 1h", "direction": "input"},
        "bindings.http": {"url": "http://127.0.0.1:1"},
        "bindings.localstorage": {"rootPath": str(tmp_path / "files")},
        "bindings.redis": connection(redis_server),
        "configuration.redis": connection(redis_server),
        "middleware.http.ratelimit": {"maxRequestsPerSecond": "10"},
        "middleware.http.routerchecker": {"rule": "^.*$"},
        "pubsub.in-memory": {},
        "pubsub.redis": connection(redis_server),
        "secretstores.local.env": {},
        "secretstores.local.file": {"secretsFile": str(secrets)},
        "state.in-memory": {},
        "state.redis": connection(redis_server),
    }
    for kind, values in settings.items():
        put_component(tmp_path / "resources", kind, kind, **values)
    sidecar = Sidecar("orders", tmp_path / "resources")
    daprd = await start_server(Daprd(provide([name])[name], tmp_path / "daprd", sidecar))
    async with aiohttp.ClientSession(daprd.url) as session, session.get("/v1.0/metadata") as response:
        metadata = await response.json()
    assert metadata["runtimeVersion"] == version
    assert {component["name"] for component in metadata["components"]} == set(settings)


@pytest.mark.soak
async def test_daprd_1_16_applies_a_changed_file_only_after_a_restart(
    daprd_1_16_binary: Path,
    start_server: StartServer,
    start_daprd: StartDaprd,
    start_redis: StartRedis,
    tmp_path: Path,
) -> None:
    before, after = await start_redis(), await start_redis()
    resources = tmp_path / "resources"
    put_component(resources, "store", "state.redis", **connection(before))
    old = await start_server(Daprd(daprd_1_16_binary, tmp_path / "daprd-1.16", Sidecar("old", resources)))
    reloading = await start_daprd(Sidecar("reloading", resources))

    put_component(tmp_path / "changed", "store", "state.redis", **connection(after))
    (tmp_path / "changed" / "store.yaml").replace(resources / "store.yaml")

    async def is_reloaded() -> bool:
        await save_order(reloading, "foo")
        return await after.execute("EXISTS", "reloading||order") == 1

    await until(is_reloaded)
    assert await save_order(old, "foo") == 204
    assert await before.execute("HGET", "old||order", "data") == '"foo"'
    assert await after.execute("EXISTS", "old||order") == 0

    await old.stop()
    await old.start()
    assert await save_order(old, "bar") == 204
    assert await before.execute("HGET", "old||order", "data") == '"foo"'
    assert await after.execute("HGET", "old||order", "data") == '"bar"'
