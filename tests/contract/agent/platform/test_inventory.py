"""The inventory of real objects, and its way through an import and a delivery to adopted resources."""

import json

import msgspec
import pytest

from governor.agent.platforms.kubernetes.resources.inventory import NamespaceInventory
from governor.agent.state.file_blobs import FileBlobs
from governor.cli.commands.inventory_import import import_inventory
from governor.domain.inventories import FoundWorkload, ReloadingSidecars
from testbed.kube.control_plane import ControlPlane
from testbed.sidecar_replay import SidecarReplay
from tests.contract.agent.apply.bed import COMPONENTS, EVERY_KIND, SECRET_VALUE, component
from tests.contract.agent.platform.bed import Bed

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWNER = "runtime-governor.dev/owner"


async def test_what_is_found_is_imported_and_adopted_as_it_is(
    bed: Bed, blobs: FileBlobs, plane: ControlPlane, replay: SidecarReplay
) -> None:
    copy = component("copy")
    copy["metadata"]["labels"] = {"runtime-governor.dev/preflight": "run"}
    listed = {"apiVersion": "v1", "kind": "List", "items": [*EVERY_KIND, component("plain"), copy]}
    await plane.kubectl("--namespace", bed.namespace, "apply", "--filename=-", stdin=json.dumps(listed))
    await bed.deploy("orders", 2)
    async with bed.agent(blobs, adopt=["kubectl-client-side-apply"]) as agent:
        source = NamespaceInventory(agent.client, [bed.namespace], agent.observer, OWNER, agent.probes.ask_once)
        inventory = await source.read()
        assert agent.client.writes == []
        reloading = ReloadingSidecars("1.18.3", "orders", instances=2, pods=tuple(sorted(await bed.pods("orders"))))
        assert inventory.workloads == (FoundWorkload(bed.ref("orders"), ("orders",), ("1.18.3",), 2, (reloading,)),)
        asked = dict(replay.requests)
        assert await source.read() == inventory
        assert replay.requests == asked, "a sidecar is asked once"
        assert len(inventory.resources) == len(EVERY_KIND) + 1
        assert {each.managers for each in inventory.resources} == {("kubectl-client-side-apply",)}
        assert SECRET_VALUE not in msgspec.json.encode(inventory).decode()

        imported = import_inventory("r1", inventory)
        assert [warning.split(" ")[0] for warning in imported.warnings] == [
            f"Component/{bed.namespace}/store",
            f"HTTPEndpoint/{bed.namespace}/endpoint",
        ]
        await agent.converge(bed.delivery(*imported.document["spec"]["resources"]))
        owners = {each.resource.name: each.owner for each in (await source.read()).resources}
        left_out = {"store", "endpoint"}
        assert owners == {name: "" if name in left_out else bed.namespace for name in owners}
        assert (await bed.client.get(COMPONENTS, "plain", bed.namespace))["metadata"]["generation"] == 1
        assert await bed.restarts("orders") == 0
