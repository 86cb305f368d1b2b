"""The cluster of the scenario as its users see it: kubectl, the `governor` command, web requests, received tickets."""

import json
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from demo.node import pod_session
from demo.reconciler import documents
from demo.reconciler.documents import SHOP, SPACE, Document
from demo.steps import NotObservedError
from governor.reconciler.kinds.cluster import LOCAL, Cluster, ClusterStatus
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceStatus, instance_name
from governor.reconciler.kinds.state import State
from governor.reconciler.settings import NAMESPACE
from governor.reconciler.states.conditions import shortened
from testbed import images
from testbed.cluster import cluster as node
from testbed.kube.pki import Authority
from testbed.recipes import provide
from testbed.waiting import until
from testbed.webhook_receiver import Receiver, receiving
from toolchain.oci import LOCAL as REGISTRY

WITHIN_S: Final = 240.0
_POLL_S: Final = 0.1
_HEALTH_PORT: Final = 8421

Value = TypeVar("Value")


class Usage(NamedTuple):
    """What a program has used until a time."""

    time_s: float
    cpu_s: float
    resident_mib: float


class World:
    """An empty cluster, a system of tickets beside it, and what the steps install."""

    def __init__(self, cluster: node.Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.authority = Authority("authority of the system of tickets")
        self.tickets: Receiver
        self.http: aiohttp.ClientSession
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        machine = self.cluster.facts["machine"]
        tls = self.authority.issue("tickets", hosts=[machine]).load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self.tickets = await self._stack.enter_async_context(receiving(machine, tls))
        self.http = await self._stack.enter_async_context(pod_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def import_images(self) -> None:
        """Import the images of the governor and of the modules into the node, as if they had been pushed."""
        for archive in (images.governor(self.directory).file, images.redis().file):
            await self.cluster.import_image(archive)

    async def bootstrap(self, *options: str) -> list[str]:
        """Make the cluster reconcile itself with one command, and return what the command printed."""
        return (await self.governor("cluster", "bootstrap", f"--image={REGISTRY}/governor", *options)).splitlines()

    async def governor(self, *words: str) -> str:
        """Run the `governor` command as the administrator and return its output."""
        renderer = provide(["renderer"])["renderer"].parent
        environment = {"PATH": os.pathsep.join([str(renderer), os.defpath]), "KUBECONFIG": str(self.cluster.kubeconfig)}
        return await node.run([sys.executable, "-m", "governor.cli.main", *words], environment=environment)

    async def kubectl(self, *words: str, space: str = NAMESPACE, stdin: str = "") -> str:
        """Run kubectl in a namespace, by default the hub's, and return its output."""
        return await self.cluster.kubectl(f"--namespace={space}", *words, stdin=stdin)

    async def apply(self, *given: Document) -> None:
        """Apply documents."""
        content = {"apiVersion": "v1", "kind": "List", "items": given}
        await self.cluster.kubectl("apply", "--server-side", "--filename=-", stdin=json.dumps(content))

    async def read(self, name: str, space: str = NAMESPACE) -> dict[str, Any]:
        """Return an object by kind and name; an empty one if it does not exist."""
        text = await self.kubectl("get", name, "--ignore-not-found", "--output=json", space=space)
        return json.loads(text) if text else {}

    async def state(self) -> ClusterStatus:
        """Return the State: the status of the Cluster."""
        found = await self.kubectl("get", f"clusters.runtime-governor.dev/{LOCAL}", "--output=json")
        return msgspec.json.decode(found, type=Cluster).status

    async def module(self, name: str) -> ModuleInstanceStatus:
        """Return the status of a module."""
        found = await self.kubectl("get", f"moduleinstance/{instance_name(name, LOCAL)}", "--output=json")
        return msgspec.json.decode(found, type=ModuleInstance).status

    async def reaches(self, expected: State, **versions: str) -> list[str]:
        """Wait until the State is as expected with these modules beside the reconciler; return its lines."""
        latest = ClusterStatus()

        async def is_reached() -> bool:
            nonlocal latest
            latest = await self.state()
            found = {each.module: each.version for each in latest.modules if each.module in documents.VERSIONS}
            return latest.state is expected and found == versions

        await self.observed(is_reached, lambda: "\n".join(_lines(latest)))
        return _lines(latest)

    async def observed(self, condition: Callable[[], Awaitable[Value]], explain: Callable[[], str]) -> Value:
        """Wait for a condition and return its value; if it is not observed in time, raise with the explanation."""
        try:
            return await until(condition, within_s=WITHIN_S, every_s=_POLL_S)
        except TimeoutError as error:
            raise NotObservedError(f"not observed within {WITHIN_S:.0f} s: {explain()}") from error

    async def address(self) -> str:
        """Return the URL of the web site of the modules; its Service has another one after it was re-created."""
        address = await self.kubectl("get", f"service/{SHOP}", "--output=jsonpath={.spec.clusterIP}", space=SPACE)
        return f"http://{address}:8080/cgi-bin/visit"

    async def visit(self, url: str = "") -> str:
        """Visit the web site of the modules and return its answer."""
        async with self.http.get(url or await self.address()) as answer:
            return (await answer.text()).strip()

    async def shows(self, expected: str) -> str:
        """Wait until the web site's answer begins as expected, and return it."""
        latest = ""

        async def is_shown() -> bool:
            nonlocal latest
            try:
                latest = await self.visit()
            except (aiohttp.ClientError, TimeoutError) as error:  # kube-proxy follows with a delay
                latest = f"{type(error).__name__}: {error}"
            return latest.startswith(expected)

        await self.observed(is_shown, lambda: f"the web site answers {latest!r}, expected {expected!r}")
        return latest

    async def pods(self, deployment: str) -> list[dict[str, Any]]:
        """Return the pods of a Deployment of the hub, those that are terminating included."""
        selector = f"--selector=app.kubernetes.io/name={deployment}"
        found = json.loads(await self.kubectl("get", "pods", selector, "--output=json"))["items"]
        return [each for each in found if each["status"].get("phase") in ("Pending", "Running")]

    async def usage(self, pod: dict[str, Any]) -> Usage:
        """Return what the program in a pod says of itself in its metrics."""
        async with self.http.get(f"http://{pod['status']['podIP']}:{_HEALTH_PORT}/metrics") as answer:
            text = await answer.text()
        found = {each.name: each for each in text_string_to_metric_families(text)}
        cpu, memory = found["process_cpu_seconds"], found["process_resident_memory_bytes"]
        return Usage(time.monotonic(), cpu.samples[0].value, memory.samples[0].value / 2**20)

    async def versions(self) -> dict[str, str]:
        """Return what changes with each write of an object of the hub, except for Leases and Events."""
        kinds = "governor,configmaps,secrets,deployments,serviceaccounts"
        found = json.loads(await self.kubectl("get", kinds, "--output=json"))["items"]
        return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in found}


def _lines(state: ClusterStatus) -> list[str]:
    """Return the State as lines to print."""
    modules = [
        f"  {each.module} {each.version}: {each.state}: {shortened(each.message, 110)}" for each in state.modules
    ]
    return [f"State: {state.state}, {state.ready} modules ready", *modules]
