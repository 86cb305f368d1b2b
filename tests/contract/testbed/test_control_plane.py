"""Control planes of the test bed are real, isolated from each other, break on request, and leave nothing behind."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from testbed.builds.kubernetes import VERSION
from testbed.kube.control_plane import ControlPlane, Options
from testbed.kube.pki import Pair
from testbed.kube.webhooks import Webhook
from testbed.pytest_plugin import StartControlPlane
from testbed.waiting import until
from toolchain.errors import TestbedError

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _broken(
    kubernetes_binaries: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    options = Options(watch_cache=False, api_flags=("--request-timeout=10s",))
    async with ControlPlane(kubernetes_binaries, tmp_path_factory.mktemp("broken"), options) as plane:
        yield plane


@pytest.fixture
def broken(_broken: ControlPlane, server_logs: list[Path]) -> ControlPlane:
    """A control plane that each test of this module breaks and repairs."""
    server_logs.extend(server.log for server in _broken.servers)
    return _broken


def config_map(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def new_name() -> str:
    return f"testbed-{uuid4().hex[:8]}"


async def answer(
    plane: ControlPlane, path: str, user: Pair | None = None, token: str = "", **query: str
) -> tuple[int, bytes]:
    """Return status and first line of the response to a GET."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    context = plane.authority.client_context(user)
    async with (
        aiohttp.ClientSession(plane.url, headers=headers) as session,
        session.get(path, params=query, ssl=context) as response,
    ):
        return response.status, await response.content.readline()


def serving_certificate(plane: ControlPlane) -> str:
    return ssl.get_server_certificate(("127.0.0.1", plane.api.ports["https"]))


async def new_account(plane: ControlPlane) -> str:
    name = new_name()
    await plane.ask("POST", ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    return name


async def test_kubectl_finds_a_server_of_the_pinned_version(control_plane: ControlPlane) -> None:
    versions = json.loads(await control_plane.kubectl("version", "--output=json"))
    assert versions["serverVersion"]["gitVersion"] == versions["clientVersion"]["gitVersion"] == f"v{VERSION}"
    await control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(config_map(name := new_name())))
    assert (await control_plane.ask("GET", f"{CONFIGMAPS}/{name}"))["metadata"]["name"] == name
    with pytest.raises(TestbedError, match="nothing-of-this-name"):
        await control_plane.kubectl("get", "configmap", "nothing-of-this-name")


async def test_two_control_planes_share_nothing(control_plane: ControlPlane, broken: ControlPlane) -> None:
    await control_plane.ask("POST", CONFIGMAPS, config_map(name := new_name()))
    with pytest.raises(TestbedError, match="404"):
        await broken.ask("GET", f"{CONFIGMAPS}/{name}")
    assert (await answer(broken, CONFIGMAPS, control_plane.admin))[0] == 401


async def test_a_server_that_cannot_start_is_an_error_with_its_log(start_control_plane: StartControlPlane) -> None:
    with pytest.raises(TestbedError, match=r"kube-apiserver did not become ready(.|\n)*no-such-flag"):
        await start_control_plane(Options(api_flags=("--no-such-flag",)))


async def test_requests_fail_while_etcd_is_paused_and_work_again_afterwards(broken: ControlPlane) -> None:
    await broken.etcd.pause()
    try:
        assert not await works(broken)
    finally:
        broken.etcd.resume()
    await until(lambda: works(broken))


async def works(plane: ControlPlane) -> bool:
    """Return whether a read succeeds; otherwise the server answers 504 or closes the connection."""
    try:
        return (await answer(plane, CONFIGMAPS, plane.admin))[0] == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_versions_from_before_a_compaction_are_expired(broken: ControlPlane) -> None:
    for _ in range(2):
        await broken.ask("POST", CONFIGMAPS, config_map(new_name()))
    page = (await broken.ask("GET", f"{CONFIGMAPS}?limit=1"))["metadata"]
    for _ in range(2):  # a watch may begin just before the oldest version that is left
        await broken.ask("POST", CONFIGMAPS, config_map(new_name()))
    assert await broken.etcd.compact() > int(page["resourceVersion"])

    status, _ = await answer(broken, CONFIGMAPS, broken.admin, **{"limit": "1", "continue": page["continue"]})
    assert status == 410
    watch = {"watch": "true", "resourceVersion": page["resourceVersion"]}
    status, event = await answer(broken, CONFIGMAPS, broken.admin, **watch)
    assert (status, json.loads(event)["type"], json.loads(event)["object"]["code"]) == (200, "ERROR", 410)


async def test_a_restarted_server_has_its_address_and_its_objects(broken: ControlPlane) -> None:
    await broken.ask("POST", CONFIGMAPS, config_map(name := new_name()))
    url, pid = broken.url, broken.api.pid
    await broken.api.stop()
    with pytest.raises(aiohttp.ClientConnectorError):
        await broken.ask("GET", "/version")
    await broken.api.start()
    assert (await broken.ask("GET", f"{CONFIGMAPS}/{name}"))["metadata"]["name"] == name
    assert broken.url == url
    assert broken.api.pid != pid


async def test_a_new_serving_certificate_is_loaded_without_a_restart(broken: ControlPlane) -> None:
    pid, new = broken.api.pid, broken.authority.issue_serving()
    assert serving_certificate(broken).encode() != new.certificate
    broken.api.serve_with(new)

    async def is_shown() -> bool:
        return serving_certificate(broken).encode() == new.certificate

    await until(is_shown, within_s=120)  # the server checks every minute, even without a file notification
    assert (await answer(broken, "/version", broken.admin))[0] == 200
    assert broken.api.pid == pid


async def test_an_expired_certificate_is_rejected(control_plane: ControlPlane) -> None:
    issue = control_plane.authority.issue
    ended = issue("someone", groups=["system:masters"], valid_for_s=-1)
    renewed = issue("someone", groups=["system:masters"], valid_for_s=3600)
    assert (await answer(control_plane, CONFIGMAPS, ended))[0] == 401
    assert (await answer(control_plane, CONFIGMAPS, renewed))[0] == 200


async def test_tokens_are_issued_for_ten_minutes_or_longer_and_signed_for_less(control_plane: ControlPlane) -> None:
    account = await new_account(control_plane)
    requested = await control_plane.request_token("default", account, 600)
    with pytest.raises(TestbedError, match="less than 10 minutes"):
        await control_plane.request_token("default", account, 599)
    accepted = await control_plane.expiring_token("default", account, 300)
    ended = await control_plane.expiring_token("default", account, -1)
    for token, status in ((requested, 403), (accepted, 403), (ended, 401)):
        assert (await answer(control_plane, CONFIGMAPS, token=token))[0] == status


async def test_nothing_is_left_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, json, os, pathlib
from testbed.kube.control_plane import PROGRAMS, ControlPlane, Options
from testbed.recipes import provide
async def main():
    options = Options(controllers=True, scheduler=True)
    plane = await ControlPlane(provide(PROGRAMS), pathlib.Path({str(tmp_path)!r}), options).start()
    print(json.dumps([server.pid for server in plane.servers]), flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    pids = json.loads(printed)
    assert len(pids) == 4

    async def all_gone() -> bool:
        return not any(is_running(pid) for pid in pids)

    await until(all_gone)


def is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_webhook_denies_what_its_function_denies(control_plane: ControlPlane) -> None:
    name = new_name()

    def decide(request: dict[str, Any]) -> str:
        return "not this one" if request["name"].endswith("-bad") else ""

    async with Webhook(control_plane.authority, decide) as webhook:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
        hook = {
            "name": "refuse.testbed.example",
            "clientConfig": webhook.client_config,
            "rules": [rule],
            "objectSelector": {"matchLabels": {"checked-by": name}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
        }
        configuration = {"metadata": {"name": name}, "webhooks": [hook]}
        await control_plane.ask("POST", WEBHOOKS, configuration)

        async def is_refused() -> bool:
            bad = config_map(f"{new_name()}-bad")
            bad["metadata"]["labels"] = {"checked-by": name}
            try:
                await control_plane.ask("POST", CONFIGMAPS, bad)
            except TestbedError as error:
                return "not this one" in str(error)
            return False

        await until(is_refused)
        good = config_map(name)
        good["metadata"]["labels"] = {"checked-by": name}
        await control_plane.ask("POST", CONFIGMAPS, good)
        assert webhook.requests[-1]["name"] == name
        await control_plane.ask("DELETE", f"{WEBHOOKS}/{name}")
