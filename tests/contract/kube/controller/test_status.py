"""The status writer and Events on a real API server."""

from typing import Any

import msgspec

from governor.kube.applyset import Settings
from governor.kube.client import Client, Transport
from governor.kube.controller import Condition, Context, Controller, EventType, Resource, Status
from governor.kube.objects import Object
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Done, Outcome, Requeue
from testbed.kube.api_faults import ApiRequest
from testbed.waiting import until
from tests.contract.kube.bed import FaultyApi
from tests.contract.kube.controller.bed import (
    SITES,
    WITHIN_S,
    event_reasons,
    events_of,
    install_sites,
    operating,
    site,
    until_true,
)


class Spec(Resource, frozen=True, kw_only=True):
    spec: dict[str, Any]


def sites(reconcile: Any) -> Controller[Spec]:
    settings = Settings(manager="sites", label_prefix="sites.example")
    return Controller("sites", SITES, Spec, reconcile, settings=settings, backoff=Backoff(initial_s=0.01, max_s=0.05))


def writes_status(request: ApiRequest) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def test_the_status_is_written_only_on_change_and_keeps_its_transition_time(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    await install_sites(client)
    written: list[bool] = []

    async def reconcile(context: Context[Spec]) -> Outcome:
        spec = context.object.spec
        status = "True" if spec["replicas"] < 10 else "False"
        condition = Condition("Ready", status, spec["image"], "message")
        written.append(await context.write_status(Status(conditions=(condition,))))
        return Done()

    async def change(**spec: Any) -> None:
        runs = len(written)
        await client.patch(SITES, "a", namespace, {"spec": spec}, manager="user")
        await until_true(lambda: len(written) > runs)

    async def conditions() -> dict[str, Object]:
        found = (await client.get(SITES, "a", namespace))["status"]["conditions"]
        return {each["type"]: each for each in found}

    old = "2020-01-01T00:00:00Z"
    foreign = {"type": "Other", "status": "True", "reason": "R", "message": "", "lastTransitionTime": old}
    async with operating(transport, faults.access, namespace, sites(reconcile)):
        await client.create(SITES, site("a", namespace, image="One"), manager="user")
        await until_true(lambda: written == [True])
        first = (await conditions())["Ready"]
        assert (first["observedGeneration"], first["reason"]) == (1, "One")
        body = {"apiVersion": "example.dev/v1", "kind": "Site", "metadata": {"name": "a", "namespace": namespace}}
        await client.apply(SITES, body | {"status": {"conditions": [foreign]}}, manager="another", subresource="status")
        backdated = [first | {"lastTransitionTime": old}, foreign]
        change_status = {"status": {"conditions": backdated}}
        await client.patch(SITES, "a", namespace, change_status, manager="user", subresource="status")
        await change(image="Two")
        ready = (await conditions())["Ready"]
        assert (ready["reason"], ready["observedGeneration"], ready["lastTransitionTime"]) == ("Two", 2, old)
        await change(replicas=10)
        ready = (await conditions())["Ready"]
        assert ready["status"] == "False"
        assert ready["lastTransitionTime"] != old
        assert (await conditions())["Other"] == foreign
    assert faults.count(writes_status) == 3

    written.clear()
    async with operating(transport, faults.access, namespace, sites(reconcile)):
        await until_true(lambda: written == [False])
    assert faults.count(writes_status) == 3, "neither its own writes nor a new term repeat a write"


async def test_a_condition_of_an_earlier_term_is_removed_and_those_of_others_stay(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    await install_sites(client)
    desired = [Condition("Ready", "True", "R"), Condition("Degraded", "True", "R")]
    written: list[bool] = []

    async def reconcile(context: Context[Spec]) -> Outcome:
        written.append(await context.write_status(Status(conditions=tuple(desired))))
        return Done()

    body = {"apiVersion": "example.dev/v1", "kind": "Site", "metadata": {"name": "a", "namespace": namespace}}
    foreign = msgspec.to_builtins(Condition("Other", "True", "R", last_transition_time="2020-01-01T00:00:00Z"))
    async with operating(transport, faults.access, namespace, sites(reconcile)):
        await client.create(SITES, site("a", namespace), manager="user")
        await until_true(lambda: written == [True])
        await client.apply(SITES, body | {"status": {"conditions": [foreign]}}, manager="another", subresource="status")
    desired.pop()
    written.clear()
    async with operating(transport, faults.access, namespace, sites(reconcile)):
        await until_true(lambda: bool(written))
    assert written == [True]
    found = (await client.get(SITES, "a", namespace))["status"]["conditions"]
    assert {each["type"] for each in found} == {"Ready", "Other"}


async def test_repeated_events_are_counted_and_rejected_ones_do_not_fail_the_reconcile(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    await install_sites(client)
    runs: list[str] = []

    async def reconcile(context: Context[Spec]) -> Outcome:
        runs.append(context.object.spec["image"])
        context.event("Seen", "it was seen", EventType.WARNING)
        context.event("Image", context.object.spec["image"])
        return Done()

    async def change(image: str) -> None:
        await client.patch(SITES, "a", namespace, {"spec": {"image": image}}, manager="user")
        await until_true(lambda: runs[-1] == image)

    async def counted(count: int) -> bool:
        found = [each for each in await events_of(client, "a", namespace) if each["reason"] == "Seen"]
        return [each["count"] for each in found] == [count]

    def creates_event(request: ApiRequest) -> bool:
        return request.method == "POST" and request.path.endswith("/events")

    async with operating(transport, faults.access, namespace, sites(reconcile)) as running:
        await client.create(SITES, site("a", namespace, image="one"), manager="user")
        await until(lambda: counted(1), within_s=WITHIN_S)
        await change("two")
        await until(lambda: counted(2), within_s=WITHIN_S)
        faults.answer(403, which=creates_event)
        await change("three")
        await until(lambda: counted(3), within_s=WITHIN_S)
        dropped = {"reason": "error"}
        await until_true(lambda: running.registry.value("governor_events_dropped_total", dropped) == 1)
        assert running.results("sites", "error") == 0
    assert await event_reasons(client, "a", namespace) == {"Seen", "Image"}


class Counted(Status, frozen=True):
    url: str = "0"


class CountedSpec(Spec, frozen=True, kw_only=True):
    status: Counted = Counted()


async def test_a_run_sees_the_status_that_the_last_one_wrote_even_if_its_watch_is_late(
    client: Client, transport: Transport, faults: FaultyApi, namespace: str
) -> None:
    await install_sites(client)
    seen: list[int] = []

    async def reconcile(context: Context[CountedSpec]) -> Outcome:
        seen.append(int(context.object.status.url))
        await context.write_status(Counted(url=str(seen[-1] + 1)))
        return Requeue(0.0) if len(seen) < 20 else Done()

    settings = Settings(manager="sites", label_prefix="sites.example")
    controller = Controller("sites", SITES, CountedSpec, reconcile, settings=settings)
    async with operating(transport, faults.access, namespace, controller):
        await client.create(SITES, site("a", namespace), manager="user")
        await until_true(lambda: len(seen) >= 20)
    assert seen[:20] == list(range(20))
