"""The product's charts installed in the cluster: the server with its administrator, and agents that join it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from testbed.cluster.cluster import Cluster, run
from testbed.cluster.dapr import helm
from testbed.cluster.workloads import Manifest, apply, manifest
from testbed.waiting import until
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.helm import HELM
from toolchain.oci import LOCAL
from toolchain.repository import REPOSITORY

CHART = REPOSITORY / "charts" / "governor-server"
NAME = "governor-server"
POD = f"{NAME}-0"
PORT = 8420
WITHIN_S = 120.0
_TOKEN, _AUTHORITY = "admin.token", "authority.crt"
_DEFINITION = "customresourcedefinition/runtimestatuses.runtime-governor.dev"


@dataclass(frozen=True)
class ServerRelease:
    """A release of the server's chart in a namespace, with its volume and an administrator's home directory."""

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

    async def restrict(self) -> None:
        """Admit only pods to the namespace that meet the standard "restricted"."""
        label = "pod-security.kubernetes.io/enforce=restricted"
        await self.cluster.kubectl("label", "namespace", self.namespace, label)

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

    async def install_for_agents(self) -> None:
        """Install the release with the URL at which agents reach it, and give the administrator access to it."""
        await self.install()
        await self.install(f"publicUrl={await self.url()}")
        for file, word in ((_TOKEN, "admin-token"), (_AUTHORITY, "authority")):
            (self.home / file).write_text(await self.exec("governor", "server", word), encoding="ascii")

    async def install_agent(
        self, runtime: str, namespace: str, adapt: Callable[[str], str] = lambda command: command
    ) -> str:
        """Run the adapted command that `governor runtime join-command` prints, and return what it printed."""
        words = ("runtime", "join-command", runtime, "--platform=kubernetes", f"--namespace={namespace}")
        printed = await self.governor(*words)
        programs = self.home / "bin"
        programs.mkdir(exist_ok=True)
        if not (programs / "helm").exists():
            (programs / "helm").symlink_to(cache.provide(HELM))
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(self.home),
            "KUBECONFIG": str(self.cluster.kubeconfig),
        }
        await run(["sh", "-euc", adapt(printed)], environment=environment)
        return printed

    async def uninstall(self) -> None:
        """Remove the release; its volume and namespace stay."""
        await helm(self.cluster, "uninstall", NAME, f"--namespace={self.namespace}", "--ignore-not-found")

    async def uninstall_agent(self, runtime: str, namespace: str) -> None:
        """Remove an agent's release, and the definition of the status objects, which helm keeps."""
        release = agent_release(runtime)
        await helm(self.cluster, "uninstall", release, f"--namespace={namespace}", "--ignore-not-found")
        await self.cluster.kubectl("delete", "--ignore-not-found", _DEFINITION)

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

    async def url(self) -> str:
        """Return the URL of the server's API, for this machine and for pods."""
        return f"https://{await self.address()}:{PORT}"

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
        access = {
            "PATH": os.environ["PATH"],
            "GOVERNOR_SERVER": await self.url(),
            "GOVERNOR_TOKEN_FILE": _TOKEN,
            "GOVERNOR_CA_FILE": _AUTHORITY,
        }
        command = ["env", f"--chdir={self.home}", sys.executable, "-m", "governor.cli.main", *words]
        return await run(command, environment={**access, **environment})


def agent_release(runtime: str) -> str:
    """Return the name of the release that the printed command installs."""
    return f"governor-agent-{runtime}"


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod is ready and not being deleted."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


async def _objects(printed: asyncio.StreamReader) -> AsyncGenerator[Manifest]:
    """Yield the objects that kubectl prints as indented JSON, one after another."""
    lines: list[bytes] = []
    async for line in printed:
        lines.append(line)
        if line == b"}\n":
            yield json.loads(b"".join(lines))
            lines.clear()
