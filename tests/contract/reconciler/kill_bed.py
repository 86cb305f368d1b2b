"""``governor reconciler`` as a process that is killed at a request, and what must be there in the end."""

import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from governor.kube.client import Client, Transport
from governor.kube.lease import LEASES
from governor.kube.objects import Object
from governor.reconciler.main import NAME
from governor.reconciler.release.objects import SETTINGS
from governor.reconciler.release.record import PREFIX
from governor.reconciler.render.request import Renderer
from testbed.kube.api_faults import ApiRequest, Matches
from testbed.kube.control_plane import ControlPlane
from testbed.recipes import provide
from testbed.reconciler import Reconciler
from tests.contract.kube.applyset.bed import CONFIG_MAPS, SECRETS, config_map
from tests.contract.kube.bed import FaultyApi
from tests.contract.reconciler.steps.bed import ModuleBed


class KillBed(ModuleBed):
    """One hub whose reconciler is a process. All of its requests pass a proxy, where it is killed."""

    def __init__(
        self,
        plane: ControlPlane,
        client: Client,
        transport: Transport,
        namespace: str,
        directory: Path,
        renderer: Renderer,
        faults: FaultyApi,
    ) -> None:
        super().__init__(plane, client, transport, namespace, directory, renderer)
        self._faults = faults
        kubeconfig = yaml.safe_load(plane.kubeconfig.read_text())
        kubeconfig["clusters"][0]["cluster"]["server"] = faults.url
        file = directory / "kubeconfig"
        file.write_text(yaml.safe_dump(kubeconfig))
        self.program = Reconciler(directory / "reconciler", file, provide(["renderer"])["renderer"], namespace)
        self.foreign: list[Object] = []
        self._deaths = 0
        self._is_paused = False

    async def prepare(self) -> None:
        """Create the namespace with objects of others: one with nothing of ours, one labelled by another hub."""
        await super().prepare()
        other = config_map("labelled", self.space, by="another hub")
        other["metadata"]["labels"] = {SETTINGS.owner_label: "orders.another-hub"}
        for manifest in (config_map("foreign", self.space, by="a user"), other):
            self.foreign.append(await self.client.create(CONFIG_MAPS, manifest, manager="others"))

    def kill_before(self, which: Matches, after: int = 0) -> None:
        """Kill the program at a request, which the API server does not receive; some matching ones pass before.

        Nor does it receive what the program has sent at the same time.
        """
        passed, is_killed, death = 0, False, self._deaths

        def is_last(request: ApiRequest) -> bool:
            nonlocal passed, is_killed
            if self._deaths != death:
                return False
            if not is_killed and which(request):
                passed += 1
                if passed > after:
                    os.kill(self.program.pid, signal.SIGKILL)
                    is_killed = True
            return is_killed

        self._faults.answer(503, times=sys.maxsize, which=is_last)

    async def died(self) -> None:
        """Wait until the program is killed."""
        assert await self.program.ended() == -signal.SIGKILL
        await self.program.kill()
        self._faults.cut()
        self._deaths += 1

    def pause_before(self, which: Matches) -> None:
        """Pause the program at a request, which the API server does not receive."""

        def is_paused(request: ApiRequest) -> bool:
            if not self._is_paused and which(request):
                os.kill(self.program.pid, signal.SIGSTOP)
                self._is_paused = True
                return True
            return False

        self._faults.answer(503, times=1, which=is_paused)

    async def paused(self) -> None:
        """Wait until the program is paused."""

        async def is_so() -> bool:
            return self._is_paused

        await self.until(is_so)

    async def resume(self) -> list[ApiRequest]:
        """Resume the program, and return what it has sent until it has noticed that it does not lead any more."""
        sent = len(self._faults.requests)
        os.kill(self.program.pid, signal.SIGCONT)

        async def has_noticed() -> bool:
            return 'leader_election_master_status{name="governor-reconciler"} 0' in await self.program.metrics()

        await self.until(has_noticed)
        return list(self._faults.requests[sent:])

    def limit_files(self, size: int | None) -> None:
        """Let the kernel refuse to write files of the program beyond a size, as if the disk were full."""
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self.program.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def restart(self) -> None:
        """Start the program again; the Lease of the killed one, if it got one, would otherwise last for 15 s."""
        if await self.find(LEASES, NAME, self.namespace):
            await self.client.delete(LEASES, NAME, self.namespace)
        await self.program.start()

    async def owned(self) -> dict[str, dict[str, str]]:
        """Return the data of all ConfigMaps in the namespace of the modules, without those of others."""
        others = {each["metadata"]["name"] for each in self.foreign}
        found = [each async for each in self.client.list(CONFIG_MAPS, self.space)]
        return {
            each["metadata"]["name"]: each.get("data", {}) for each in found if each["metadata"]["name"] not in others
        }

    async def check_foreign(self) -> None:
        """Fail if an object of others was touched."""
        for each in self.foreign:
            assert await self.find(CONFIG_MAPS, each["metadata"]["name"]) == each

    async def records(self) -> set[str]:
        """Return the names of the inventories and records of all modules."""
        label = SETTINGS.inventory_label
        inventories = [each async for each in self.client.list(CONFIG_MAPS, self.namespace, labels=label)]
        secrets = [each async for each in self.client.list(SECRETS, self.namespace)]
        names = [each["metadata"]["name"] for each in (*inventories, *secrets)]
        return {each for each in names if each.startswith(("module-", PREFIX))}


def writes(method: str, path: str) -> Callable[[ApiRequest], bool]:
    """Match requests with a method and a path that ends with a pattern."""
    return lambda request: request.method == method and bool(re.search(f"{path}$", request.path))


def hooked(manifest: Object, *events: str, policies: Iterable[str] = ("before-hook-creation",)) -> Object:
    """Return an object as a hook of a chart."""
    annotations = {"helm.sh/hook": ",".join(events), "helm.sh/hook-delete-policy": ",".join(policies)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
