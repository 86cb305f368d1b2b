"""The server's chart installed in a real cluster, the command line in front of it, and an agent that has joined."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from governor.client import Client
from governor.domain.bundles import Delivery
from governor.values.secret import Secret
from governor.wire.credentials import (
    JoinToken,
    encode_public_key,
    mint,
    read_join_token,
    read_public_key,
)
from governor.wire.deliveries import open_delivery
from governor.wire.rest import Enrolment, EnrolRequest
from testbed.cluster.cluster import Cluster, run
from testbed.cluster.dapr import helm
from testbed.cluster.workloads import Manifest, apply, manifest
from testbed.server import free_ports
from testbed.waiting import until
from toolchain.errors import TestbedError
from toolchain.oci import LOCAL
from toolchain.repository import REPOSITORY

CHART = REPOSITORY / "charts" / "governor-server"
NAME = "governor-server"
POD = f"{NAME}-0"
PORT = 8420
WITHIN_S = 120.0


@dataclass(frozen=True)
class Installation:
    """A release of the chart in the test's namespace, with its volume and a user's home directory."""

    cluster: Cluster
    namespace: str
    home: Path

    @property
    def volume(self) -> Path:
        """The directory on the node to which the server's claim is bound."""
        return self.cluster.state / "volumes" / self.namespace

    async def create_volume(self) -> None:
        """Create a local volume owned by root; unlike a hostPath, kubelet gives it to the pod's group."""
        self.volume.mkdir(parents=True)
        node = {"key": "kubernetes.io/hostname", "operator": "Exists"}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": self.namespace,
            "local": {"path": str(self.volume)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        }
        await apply(self.cluster, "default", manifest("v1", "PersistentVolume", self.namespace, spec=spec))

    async def install(self, *values: str, wait: bool = True) -> str:
        """Install or upgrade the release, wait until it is ready, and return the chart's notes."""
        given = (f"image.repository={LOCAL}/governor", f"persistence.storageClassName={self.namespace}", *values)
        settings = [f"--set={value}" for value in given]
        release = [NAME, str(CHART), f"--namespace={self.namespace}"]
        waiting = ["--wait", "--timeout=120s"] if wait else []
        printed = await helm(self.cluster, "upgrade", "--install", *release, *settings, *waiting)
        if wait:
            await self.wait_reachable()
        return printed.partition("NOTES:\n")[2]

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl in the namespace and return its output."""
        return await self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)

    async def exec(self, *command: str) -> str:
        """Run a command in the server's container and return its output."""
        return await self.kubectl("exec", POD, "--", *command)

    async def pod(self, condition: Callable[[Manifest], bool]) -> Manifest:
        """Watch the server's pod, and return it once it meets a condition."""
        selected = ("pods", f"--field-selector=metadata.name={POD}", "--watch", "--output=json")
        kubectl = [self.cluster.facts["kubectl"], f"--kubeconfig={self.cluster.kubeconfig}"]
        process = await asyncio.create_subprocess_exec(
            *(*kubectl, "get", f"--namespace={self.namespace}", *selected), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(WITHIN_S), aclosing(_objects(process.stdout)) as pods:
                async for pod in pods:
                    if condition(pod):
                        return pod
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        raise TestbedError(f"kubectl stopped watching {POD}")

    async def ready_pod(self) -> Manifest:
        """Return the server's pod once it is ready."""
        return await self.pod(is_ready)

    async def address(self) -> str:
        """Return the Service's address."""
        return await self.kubectl("get", "service", NAME, "--output=jsonpath={.spec.clusterIP}")

    async def wait_reachable(self) -> None:
        """Wait until the Service routes to a pod; kube-proxy follows the pod's readiness with a delay."""
        address = await self.address()

        async def is_reachable() -> bool:
            try:
                _, writer = await asyncio.open_connection(address, PORT)
            except OSError:
                return False
            writer.close()
            return True

        await until(is_reachable, within_s=WITHIN_S)

    async def governor(self, *words: str, **environment: str) -> str:
        """Run the command line as a user who has followed the notes, and return its output."""
        files = {"GOVERNOR_TOKEN_FILE": "admin.token", "GOVERNOR_CA_FILE": "authority.crt"}
        server = f"https://{await self.address()}:{PORT}"
        variables = {"PATH": os.environ["PATH"], "GOVERNOR_SERVER": server, **files, **environment}
        command = ["env", f"--chdir={self.home}", sys.executable, "-m", "governor.cli.main", *words]
        return await run(command, environment=variables)


async def _objects(printed: asyncio.StreamReader) -> AsyncGenerator[Manifest]:
    """Yield the objects that kubectl prints as indented JSON, one after another."""
    lines: list[bytes] = []
    async for line in printed:
        lines.append(line)
        if line == b"}\n":
            yield json.loads(b"".join(lines))
            lines.clear()


def is_ready(pod: Manifest) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


@dataclass
class JoinedAgent:
    """An agent's client that has joined with a token printed by `governor token join`."""

    join: JoinToken
    key: Ed25519PrivateKey
    enrolment: Enrolment

    @classmethod
    async def joining(cls, token: str) -> "JoinedAgent":
        """Join with a token, trusting only the authority named in it."""
        join, key = read_join_token(Secret(token.strip())), Ed25519PrivateKey.generate()
        async with Client(join.server, None, ca_fingerprint=join.ca) as client:
            request = EnrolRequest(join.runtime, join.secret, encode_public_key(key.public_key()))
            return cls(join, key, await client.enrol(request))

    async def newest(self) -> Delivery:
        """Return the newest delivery, verified with the key that was pinned at the enrolment."""
        credential = partial(mint, self.join.runtime, self.key)
        async with (
            Client(self.join.server, lambda: credential(datetime.now(UTC)), ca_fingerprint=self.join.ca) as client,
            aclosing(client.watch(self.join.runtime)) as deliveries,
        ):
            async with asyncio.timeout(WITHIN_S):
                return open_delivery(await anext(deliveries), read_public_key(self.enrolment.delivery_key))


def processes_of(pod: Manifest) -> list[int]:
    """Return the host's process ids of a pod's governor processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_inside = pod["metadata"]["uid"] in (process / "cgroup").read_text()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if is_inside and b"governor" in command:
            found.append(int(process.name))
    return found


@asynccontextmanager
async def forwarded(installation: Installation, line: str) -> AsyncIterator[int]:
    """Run the port-forward command of the notes on a free local port."""
    (port,) = free_ports(1)
    words = re.sub(rf" {PORT}$", f" {port}:{PORT}", line).split()[1:]
    kubectl = [installation.cluster.facts["kubectl"], f"--kubeconfig={installation.cluster.kubeconfig}"]
    process = await asyncio.create_subprocess_exec(*kubectl, *words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            assert b"Forwarding from" in await process.stdout.readline()
        yield port
    finally:
        process.kill()
        await process.communicate()


async def follow(installation: Installation, notes: str) -> str:
    """Run the commands of the notes, with another local port only, and return their output."""
    lines = [line.strip() for line in notes.splitlines() if line.startswith("  ")]
    (forward,) = (line for line in lines if "port-forward" in line)
    programs = installation.home / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(installation.cluster.facts["kubectl"])
    (programs / "governor").symlink_to(Path(sys.executable).with_name("governor"))
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "KUBECONFIG": str(installation.cluster.kubeconfig)}
    async with forwarded(installation, forward) as port:
        script = "\n".join(line for line in lines if line != forward).replace(f"localhost:{PORT}", f"localhost:{port}")
        return await run(
            ["env", f"--chdir={installation.home}", "sh", "-euc", f"exec 2>&1\n{script}"], environment=environment
        )
