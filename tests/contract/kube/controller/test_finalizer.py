"""Finalizers on a real API server."""

import asyncio
from types import ModuleType

import msgspec
import pytest

from governor.kube.applyset import Settings
from governor.kube.client import Client, Transport
from governor.kube.controller import Context, Controller
from governor.kube.controller.events import EventRecorder
from governor.kube.controller.reconciliation import Environment, Reconciliation
from governor.kube.objects import Object, ObjectRef
from governor.kube.reflector import View
from governor.kube.reflector.store import WritableStore
from governor.process.clock import SystemClock
from governor.process.reconcile.reconciler import Done, Outcome, ReconcileMetrics, Waiting
from governor.process.telemetry.instruments import Registry
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import DEPLOYMENTS, exists
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.controller.bed import (
    SITES,
    WITHIN_S,
    Box,
    event_reasons,
    get_or_none,
    install_sites,
    keep_child,
    load_example,
    operating,
    site,
    until_true,
)


@pytest.fixture
async def example(client: Client) -> ModuleType:
    await install_sites(client)
    return load_example("sites")


class Sites:
    """The sites of one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def create(self, name: str, **metadata: object) -> None:
        manifest = site(name, self._namespace)
        manifest["metadata"] |= metadata
        await self._client.create(SITES, manifest, manager="user")

    async def delete(self, name: str) -> None:
        await self._client.delete(SITES, name, self._namespace)

    async def get(self, name: str) -> Object | None:
        return await get_or_none(self._client, SITES, name, self._namespace)

    async def is_deployed(self, name: str) -> None:
        await until(lambda: exists(self._client, DEPLOYMENTS, name, self._namespace), within_s=WITHIN_S)

    async def is_gone(self, name: str) -> None:
        async def gone() -> bool:
            return await self.get(name) is None

        await until(gone, within_s=WITHIN_S)

    async def has_no_finalizer(self, name: str) -> None:
        async def removed() -> bool:
            found = await self.get(name)
            return found is not None and not found["metadata"].get("finalizers")

        await until(removed, within_s=WITHIN_S)


async def test_the_finalizer_is_added_before_the_first_write_and_a_deletion_while_stopped_is_finalized(
    api: ControlPlane, client: Client, transport: Transport, faults: FaultyApi, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)
    async with operating(transport, faults.access, namespace, example.SITES):
        await sites.create("a")
        await sites.is_deployed("a")
    writes = [each for each in faults.requests if each.method != "GET" and "/leases" not in each.path]
    assert writes[0].query["fieldManager"] == "sites-controller-finalizer"
    await sites.delete("a")
    found = await sites.get("a")
    assert found is not None
    assert found["metadata"]["deletionTimestamp"]
    async with operating(transport, admin_of(api), namespace, example.SITES):
        await sites.is_gone("a")
    assert not await exists(client, DEPLOYMENTS, "a", namespace, terminating=True)


async def test_an_object_is_finalized_once_and_its_namesake_again(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)
    finalized: list[bool] = []

    async def finalize(context: Context[object]) -> Outcome:
        outcome = await context.delete_objects()
        if isinstance(outcome, Done):  # until then it is called again
            finalized.append(context.object is not None)
        return outcome

    example.SITES.finalize = finalize
    async with operating(transport, admin_of(api), namespace, example.SITES) as running:
        for _ in range(2):
            await sites.create("a")
            await sites.is_deployed("a")
            await sites.delete("a")
            await sites.is_gone("a")
        await sites.create("last")
        await sites.is_deployed("last")
        assert running.results("sites", "error") == 0
    assert finalized == [True, True]


async def test_a_cache_that_lags_behind_a_removed_finalizer_finalizes_nothing_again(
    client: Client, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)
    finalized: list[str] = []

    async def finalize(context: Context[object]) -> Outcome:
        finalized.append(context.key.name)
        return Done()

    example.SITES.finalize = finalize
    await sites.create("a", finalizers=[example.SITES.finalizer])
    await sites.delete("a")
    key = ObjectRef(SITES.group, SITES.kind, namespace, "a")
    store = WritableStore[View]({})
    store.put(key, msgspec.convert(await sites.get("a"), example.Site))
    clock, registry = SystemClock(), Registry()
    recorder, metrics = EventRecorder(client, "tests", clock, registry), ReconcileMetrics(registry)
    environment = Environment(client, recorder, metrics, clock, namespace, "", resync_s=60.0, grace_s=1.0)
    runs = Reconciliation(example.SITES, environment, SITES, store, {}, lambda *_: None)

    assert [await runs.run(key), await runs.run(key)] == [Done(), Done()]

    await sites.is_gone("a")
    assert finalized == ["a"]


async def test_a_finalizer_that_takes_too_long_reports_it_and_keeps_the_object(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)

    async def finalize(_: Context[object]) -> Outcome:
        return Waiting("the bucket is not empty", 60.0)

    controller = example.SITES
    controller.finalize = finalize
    controller.finalizer_timeout_s = 1.0

    async def reported() -> Object:
        found = await sites.get("a")
        assert found is not None
        conditions = found.get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == "Finalized"), {})

    async def recorded() -> bool:
        return "FinalizerTimeout" in await event_reasons(client, "a", namespace)

    async with operating(transport, admin_of(api), namespace, controller):
        await sites.create("a")
        await sites.is_deployed("a")
        await sites.delete("a")
        condition = await until(reported, within_s=WITHIN_S)
        assert (condition["status"], condition["reason"]) == ("False", "DeadlineExceeded")
        assert "the bucket is not empty" in condition["message"]
        await until(recorded, within_s=WITHIN_S)
        assert await exists(client, DEPLOYMENTS, "a", namespace)


async def test_a_report_of_a_finalizer_leaves_the_conditions_of_other_writers_as_they_are(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)
    foreign = {
        "type": "Other",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
        "observedGeneration": 1,
    }

    async def finalize(_: Context[object]) -> Outcome:
        return Waiting("the bucket is not empty", 60.0)

    example.SITES.finalize = finalize
    example.SITES.finalizer_timeout_s = 0.0

    async def conditions() -> dict[str, Object]:
        found = await sites.get("a")
        assert found is not None
        return {each["type"]: each for each in found.get("status", {}).get("conditions", [])}

    async def reported() -> bool:
        return "Finalized" in await conditions()

    await sites.create("a", finalizers=["example.dev/site"])
    await client.patch(
        SITES, "a", namespace, {"status": {"conditions": [foreign]}}, manager="another", subresource="status"
    )
    await client.patch(SITES, "a", namespace, {"spec": {"image": "other"}}, manager="user")
    await sites.delete("a")
    async with operating(transport, admin_of(api), namespace, example.SITES):
        await until(reported, within_s=WITHIN_S)
    assert (await conditions())["Other"] == foreign


async def test_a_finalize_function_that_hangs_is_reported(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)

    async def finalize(_: Context[object]) -> Outcome:
        return await asyncio.Future[Outcome]()

    example.SITES.finalize = finalize
    example.SITES.finalizer_timeout_s = 0.0
    example.SITES.timeout_s = 0.1

    async def recorded() -> bool:
        return "FinalizerTimeout" in await event_reasons(client, "a", namespace)

    async with operating(transport, admin_of(api), namespace, example.SITES):
        await sites.create("a", finalizers=["example.dev/site"])
        await sites.delete("a")
        await until(recorded, within_s=20)


@pytest.mark.parametrize("finalizers", [[], ["example.dev/site"]])
async def test_an_object_whose_name_is_too_long_for_an_inventory_is_reported_and_can_be_deleted(
    api: ControlPlane,
    client: Client,
    transport: Transport,
    namespace: str,
    example: ModuleType,
    finalizers: list[str],
) -> None:
    sites = Sites(client, namespace)
    name = "a" * 253

    async def recorded() -> bool:
        return "NameTooLong" in await event_reasons(client, name, namespace)

    async with operating(transport, admin_of(api), namespace, example.SITES) as running:
        await sites.create(name, finalizers=finalizers)
        await until(recorded, within_s=WITHIN_S)
        await sites.delete(name)
        await sites.is_gone(name)
        await until_true(lambda: running.results("sites", "success") > len(finalizers))


async def test_an_object_that_no_longer_matches_the_selector_loses_its_finalizer(
    api: ControlPlane, client: Client, transport: Transport, namespace: str, example: ModuleType
) -> None:
    sites = Sites(client, namespace)
    example.SITES.labels = "run=yes"
    async with operating(transport, admin_of(api), namespace, example.SITES):
        await sites.create("a", labels={"run": "yes"})
        await sites.is_deployed("a")
        await client.patch(SITES, "a", namespace, {"metadata": {"labels": {"run": None}}}, manager="user")
        await sites.has_no_finalizer("a")
        assert not await exists(client, DEPLOYMENTS, "a", namespace, terminating=True)


def test_a_finalizer_needs_a_view_with_finalizers() -> None:
    with pytest.raises(ValueError, match="derive its view Box from Resource"):
        Controller(
            "boxes",
            SITES,
            Box,
            keep_child,
            settings=Settings(manager="boxes", label_prefix="boxes.example"),
            finalizer="example.dev/box",
        )
