"""The server in a real cluster, installed by its chart: used from outside, and killed without losing data."""

import json
import os
import re
import secrets
import signal
import ssl
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from governor import __version__
from governor.domain.bundles import Delivery
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE
from governor.process.tls import fingerprint_of
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import helm
from testbed.cluster.releases import NAME, POD, ServerRelease, is_ready
from testbed.cluster.workloads import Manifest, apply, manifest
from testbed.kube.pki import Authority, Pair
from tests.e2e.cluster.server_bed import JoinedAgent, follow, processes_of
from toolchain.oci import NONROOT, Archive

DOCUMENTS = """
apiVersion: runtime-governor.dev/v1alpha1
kind: Runtime
metadata: {name: r1}
spec: {platform: local}
---
apiVersion: runtime-governor.dev/v1alpha1
kind: Profile
metadata: {name: orders}
spec:
  selector: {}
  resources:
  - apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata: {name: statestore}
    spec:
      type: state.redis
      version: v1
      metadata:
      - {name: redisHost, value: "redis:6379"}
      - {name: redisPassword, value: "sesame"}
"""
IMAGE_ERRORS = ("ErrImagePull", "ImagePullBackOff")
# Prints the restrictions of a process in the server's container.
RESTRICTIONS = """
import json, os
def refusal(path):
    try:
        open(path, "w")
    except OSError as error:
        return error.strerror
status = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines())
print(json.dumps({
    "user": [os.getuid(), os.getgid()],
    "root": refusal("/opt/venv/written"),
    "tmp": refusal("/tmp/written"),
    "capabilities": status["CapEff"],
    "seccomp": status["Seccomp"],
    "account": os.path.exists("/var/run/secrets/kubernetes.io"),
    "settings": [name for name in os.environ if name.startswith("GOVERNOR_")],
}))
"""


@pytest.fixture
async def release(
    cluster: Cluster, cluster_namespace: str, governor_image: Archive, tmp_path: Path
) -> AsyncIterator[ServerRelease]:
    await cluster.import_image(governor_image.file)
    release = ServerRelease(cluster, cluster_namespace, tmp_path)
    await release.restrict()
    await release.create_volume()
    yield release
    await release.uninstall()
    await cluster.kubectl("delete", "persistentvolume", cluster_namespace, "--wait=false")


async def test_a_killed_server_keeps_documents_revisions_and_deliveries(release: ServerRelease) -> None:
    key = secrets.token_hex(32)
    secret = manifest("v1", "Secret", "sealing", stringData={"sealing.key": key})
    await apply(release.cluster, release.namespace, secret)
    notes = await release.install("sealingKey.existingSecret=sealing")
    assert (await follow(release, notes)).splitlines()[-1] == "No runtimes found."
    authority = (release.home / "authority.crt").read_bytes()

    url = await release.url()
    await release.install("sealingKey.existingSecret=sealing", f"publicUrl={url}")
    (release.home / "fleet.yaml").write_text(DOCUMENTS)
    await release.governor("apply", "-f", "fleet.yaml", "-m", "first", "--no-wait")
    agent = await JoinedAgent.joining(await release.governor("token", "join", "r1"))
    assert (agent.join.server, agent.join.ca) == (url, fingerprint_of(release.home / "authority.crt"))
    before = await persistent_state(release, agent)
    assert before["password"] == "sesame"

    await kill_server(release)
    assert await persistent_state(release, agent) == before
    await delete_pod(release)
    assert await persistent_state(release, agent) == before

    assert await release.exec("governor", "--version") == f"governor, version {__version__}\n"
    assert (await release.exec("governor", "server", "authority")).encode() == authority
    assert json.loads(await release.exec("python3", "-c", RESTRICTIONS)) == {
        "user": [NONROOT, NONROOT],
        "root": "Read-only file system",
        "tmp": None,
        "capabilities": "0000000000000000",
        "seccomp": "2",
        "account": False,
        "settings": ["GOVERNOR_SERVER_CONFIG"],
    }
    assert await metrics(release) >= {"governor_build_info"}
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (release.volume / "data").iterdir()}
    assert {name: mode for name, mode in files.items() if mode & 0o077 and name != "server.url"} == {}
    assert key not in "".join(file.read_text(errors="replace") for file in (release.volume / "data").iterdir())


async def persistent_state(release: ServerRelease, agent: JoinedAgent) -> dict[str, Any]:
    """Return what a restart must not change."""
    delivery = await agent.newest()
    return {
        "documents": json.loads(await release.governor("get", "profiles", "orders", "--output=json")),
        "revisions": json.loads(await release.governor("get", "revisions", "--output=json")),
        "delivery": (delivery.sequence, delivery.digest),
        "password": redis_password(delivery),
    }


def redis_password(delivery: Delivery) -> str:
    (resource,) = delivery.resources
    items: list[Mapping[str, str]] = resource["spec"]["metadata"]
    return next(each["value"] for each in items if each["name"] == "redisPassword")


async def delete_pod(release: ServerRelease) -> None:
    """Delete the pod without a grace period, and wait for the next one.

    The new server may start while the old one still runs; then it finds the data directory in use and is restarted.
    """
    before = await release.ready_pod()
    await release.kubectl("delete", "pod", POD, "--force", "--grace-period=0")
    uid = before["metadata"]["uid"]
    after = container(await release.pod(lambda pod: is_ready(pod) and pod["metadata"]["uid"] != uid))
    await release.wait_reachable()
    if after["restartCount"]:
        assert after["lastState"]["terminated"]["exitCode"] == EXIT_CODE[Kind.CONFLICT]


async def kill_server(release: ServerRelease) -> None:
    """Kill the server's process, and wait until kubelet has restarted it in the same pod."""
    before = await release.ready_pod()
    restarts = container(before)["restartCount"]
    (process,) = processes_of(before)
    os.kill(process, signal.SIGKILL)
    after = await release.pod(lambda pod: is_ready(pod) and container(pod)["restartCount"] == restarts + 1)
    await release.wait_reachable()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert container(after)["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL


def container(pod: Manifest) -> Manifest:
    (status,) = pod["status"]["containerStatuses"]
    return dict(status)


async def metrics(release: ServerRelease) -> set[str]:
    """Return the names of the metrics that Prometheus scrapes by the pod's annotations."""
    pod = await release.ready_pod()
    annotations = {key.removeprefix("prometheus.io/"): value for key, value in pod["metadata"]["annotations"].items()}
    assert annotations["scrape"] == "true"
    url = f"http://{pod['status']['podIP']}:{annotations['port']}{annotations['path']}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        return set(re.findall(r"^# TYPE (\S+)", await answer.text(), re.MULTILINE))


async def test_an_upgrade_repairs_a_wrong_image_and_data_outlive_the_release(
    release: ServerRelease,
) -> None:
    authority = Authority()
    await apply(release.cluster, release.namespace, tls_secret(authority.issue(NAME, hosts=[NAME])))
    await release.install("tls.existingSecret=tls", "image.tag=none", wait=False)
    await release.pod(has_no_image)
    await release.install("tls.existingSecret=tls")
    trust = authority.client_context()
    assert await status(release, trust) == 200
    token = await release.exec("governor", "server", "admin-token")
    key = (release.volume / "data" / "sealing.key").read_bytes()

    await helm(release.cluster, "uninstall", NAME, f"--namespace={release.namespace}", "--wait")
    await release.install("tls.existingSecret=tls")

    assert await release.exec("governor", "server", "admin-token") == token
    assert (release.volume / "data" / "sealing.key").read_bytes() == key
    assert await status(release, trust) == 200


def has_no_image(pod: Manifest) -> bool:
    containers = pod["status"].get("containerStatuses", [])
    return any(each["state"].get("waiting", {}).get("reason") in IMAGE_ERRORS for each in containers)


def tls_secret(pair: Pair) -> Manifest:
    files = {"tls.crt": pair.certificate.decode(), "tls.key": pair.key.decode()}
    return manifest("v1", "Secret", "tls", type="kubernetes.io/tls", stringData=files)


async def status(release: ServerRelease, trust: ssl.SSLContext) -> int:
    """Return the status of an administrator's request through the Service, with the certificate's name verified."""
    token = (await release.exec("governor", "server", "admin-token")).strip()
    url = f"{await release.url()}/api/v1alpha1/runtimes"
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(url, ssl=trust, server_hostname=NAME) as answer,
    ):
        return answer.status
