"""Another controller under test, which is already running in a cluster of its own and can find the same chart.

What is written for a release is a template with ``$name``, ``$namespace``, ``$number`` and ``$revision``; only the
objects of the chart are observed, by their labels.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Final

import msgspec

from bench.kube.with_governor import UNLIMITED
from bench.reconciler.hub import MANAGER, module_name
from bench.reconciler.watched import CHART, NAMESPACE, SELECTOR, Tally, watched
from governor import yamltext
from governor.kube.client import Client, Transport
from governor.kube.config.kubeconfig import load
from governor.kube.objects import Object, ref_of
from governor.reconciler.core_kinds import NAMESPACES
from toolchain.errors import TestbedError

TEMPLATE: Final = CHART.parent / "flux.yaml"


class Setup(msgspec.Struct, frozen=True):
    """Where another controller runs, and how it is given releases."""

    kubeconfig: Path
    pids: tuple[int, ...] = ()
    template: Path = TEMPLATE
    namespace: str = NAMESPACE


def manifests(template: str, namespace: str, number: int, revision: str) -> list[Object]:
    """Return the objects that request one release."""
    names = {"name": module_name(number), "namespace": namespace, "number": str(number), "revision": revision}
    try:
        text = Template(template).substitute(names)
    except KeyError as error:
        known = ", ".join(f"${each}" for each in names)
        raise TestbedError(f"the template of releases has ${error.args[0]} in it; known are {known}") from error
    found = [each.value for each in yamltext.load(text, "the template of releases")]
    return [each for each in found if isinstance(each, dict)]


class Peer:
    """The subject: another controller."""

    def __init__(self, client: Client, setup: Setup, template: str, tally: Tally) -> None:
        self.client = client
        self.pids = setup.pids
        self.server_pids: Sequence[int] = ()
        self.writes_per_release = len(manifests(template, setup.namespace, 0, ""))
        self._namespace = setup.namespace
        self._template = template
        self._tally = tally

    async def write(self, number: int, revision: str) -> None:
        """Write what requests one release."""
        for manifest in manifests(self._template, self._namespace, number, revision):
            ref = ref_of(manifest)
            kind = await self.client.discovery.find(ref.group, ref.kind)
            await self.client.apply(kind, manifest, manager=MANAGER, force=True)

    def progress(self, revision: str) -> tuple[int, str]:
        """Return of how many releases all objects have a revision."""
        exist = f"{self._tally.total(revision):,} objects have it, {len(self._tally):,} exist"
        return len(self._tally.complete(revision)), exist


@asynccontextmanager
async def peer(setup: Setup) -> AsyncIterator[Peer]:
    """Watch the objects in the cluster of a controller; there must be none yet."""
    text = await asyncio.to_thread(setup.template.read_text, encoding="utf-8")
    async with Transport() as transport:
        client = Client(transport, load(setup.kubeconfig), UNLIMITED)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": setup.namespace}}
        await client.apply(NAMESPACES, namespace, manager=MANAGER)
        async with watched(client, setup.namespace) as tally:
            if len(tally):
                message = f"namespace {setup.namespace} has {len(tally):,} objects with the label {SELECTOR}"
                raise TestbedError(f"{message}: delete the releases of the last run first")
            yield Peer(client, setup, text, tally)
