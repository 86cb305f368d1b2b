"""``governor doctor --kubeconfig`` on a real API server with Dapr, for users with and without permissions."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from governor.agent.platforms.kubernetes.resources.namespace_marks import NAME
from governor.process.exit_codes import NEGATIVE, SUCCESS
from testbed.commands import Outcome, Running
from testbed.kube.control_plane import ControlPlane
from testbed.kube.pki import kubeconfig, put
from testbed.kube.webhooks import Webhook
from testbed.server import free_ports
from tests.contract.agent.apply.bed import CONFIG_MAPS
from tests.contract.agent.platform.bed import create_namespace
from tests.contract.kube.applyset.bed import RecordingClient

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def doctor(file: Path, *words: str) -> Outcome:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "governor.cli.main", "doctor", f"--kubeconfig={file}", *words]
    pipe = asyncio.subprocess.PIPE
    environment = {"PATH": os.environ["PATH"], "HOME": str(file.parent)}
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    return await Running(process).ended()


def problems(done: Outcome) -> dict[str, Any]:
    found = msgspec.json.decode(done.out)["findings"]
    return {each["subject"]: each for each in found if each["condition"]["status"] != "True"}


async def test_a_cluster_with_dapr_is_fit_for_an_agent(plane: ControlPlane, admin: RecordingClient) -> None:
    namespace = await create_namespace(admin)
    done = await doctor(plane.kubeconfig, f"--namespace={namespace}")
    assert (done.code, done.lines[-1]) == (SUCCESS, "no problems found"), done.out
    for subject in ("dapr-operator", "dapr-sidecar-injector", "dapr kinds", f"namespace {namespace}", "permissions"):
        assert any(line.startswith(f"ok      {subject} ") for line in done.lines), (subject, done.out)
    mark = {"runtime": "eu-1", "stateNamespace": "elsewhere"}
    metadata = {"name": NAME, "namespace": namespace}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": mark}
    await admin.create(CONFIG_MAPS, config_map, manager="tests")
    governed = await doctor(plane.kubeconfig, f"--namespace={namespace}")
    assert "it is governed by runtime 'eu-1', whose agent has its state in namespace 'elsewhere'" in governed.out
    missing = problems(await doctor(plane.kubeconfig, "--namespace=nowhere", "-o", "json"))
    assert {name: each["next"] for name, each in missing.items()} == {
        "namespace nowhere": "kubectl create namespace nowhere"
    }


async def test_a_user_without_permissions_learns_what_is_missing(
    plane: ControlPlane, admin: RecordingClient, tmp_path: Path
) -> None:
    namespace = await create_namespace(admin)
    token = await plane.request_token(namespace, "default")
    file = put(tmp_path / "kubeconfig", kubeconfig(plane.url, plane.authority.certificate, token))
    done = await doctor(file, f"--namespace={namespace}", "-o", "json")
    found = problems(done)
    assert done.code == NEGATIVE
    assert {"deployments", f"namespace {namespace}", f"permissions in namespace {namespace}"} <= set(found)
    text = found["permissions in the cluster"]["condition"]["message"]
    assert "create clusterroles.rbac.authorization.k8s.io" in text
    assert token not in done.out + done.err


async def test_a_cluster_that_cannot_be_read_is_a_problem(plane: ControlPlane, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    away = put(tmp_path / "away", kubeconfig(f"https://127.0.0.1:{port}", plane.authority.certificate, "token"))
    stale = put(tmp_path / "stale", kubeconfig(plane.url, plane.authority.certificate, "rejected"))
    async with Webhook(plane.authority, lambda _: "") as other:
        foreign = put(tmp_path / "other", kubeconfig(other.client_config["url"], plane.authority.certificate, "token"))
        files = (away, stale, tmp_path / "absent", foreign)
        outcomes = [await doctor(file, "-o", "json") for file in files]
    assert {each.code for each in outcomes} == {NEGATIVE}
    (unreachable,), (rejected,), (absent,), _ = (problems(each).values() for each in outcomes)
    assert (unreachable["subject"], unreachable["condition"]["reason"]) == (
        f"https://127.0.0.1:{port}",
        "KubeUnreachable",
    )
    assert "renew the credential" in rejected["next"]
    assert absent["subject"] == str(tmp_path / "absent")
    assert "rejected" not in outcomes[1].out.replace("rejects", "")
