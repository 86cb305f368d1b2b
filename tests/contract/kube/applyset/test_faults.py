"""A server that answers with errors, loses answers or is replaced by something else: told, repeated, nothing lost."""

import pytest

from governor.errors import Kind
from governor.kube.applyset import Outcome
from governor.kube.client import Client, Limits, Transport
from governor.kube.objects import ApiResource
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from testbed.kube.api_faults import Asked
from testbed.kube.control_plane import ControlPlane
from testbed.kube.webhooks import Webhook
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    LABEL,
    config_map,
    deployment,
    exists,
    make_set,
    outcomes,
    refused,
    removals,
)
from tests.contract.kube.bed import FaultyApi

WEBHOOKS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)


@pytest.fixture
def impatient(faults: FaultyApi, transport: Transport) -> Client:
    """A client that repeats nothing by itself, so that each fault is seen."""
    breaker = BreakerPolicy(failures=1000, backoff=Backoff(initial_s=0.01, max_s=0.01))
    return Client(transport, faults.access, Limits(attempts=1, breaker=breaker))


async def test_errors_of_the_server_concern_only_their_objects(
    faults: FaultyApi, impatient: Client, client: Client, namespace: str
) -> None:
    manifests = [config_map(f"c{number}") for number in range(4)] + [deployment("later")]
    objects = make_set(impatient, namespace)
    faults.answer(500, which=lambda asked: asked.method == "PATCH" and asked.path.endswith("/c1"))
    faults.answer(503, which=lambda asked: asked.method == "PATCH" and asked.path.endswith("/c2"))
    report = await objects.apply(manifests)
    assert outcomes(report) == {
        "c0": Outcome.CREATED,
        "c1": Outcome.FAILED,
        "c2": Outcome.FAILED,
        "c3": Outcome.CREATED,
        "later": Outcome.SKIPPED,
    }
    entries = {ref.name: entry for ref, entry in (await objects.inventory()).items()}
    assert {name: bool(entry.uid) for name, entry in entries.items()} == {
        "c0": True,
        "c1": False,
        "c2": False,
        "c3": True,
        "later": False,
    }
    again = await objects.apply(manifests)
    assert again.ok
    assert again.unasked == 2
    assert await exists(client, CONFIG_MAPS, "c1", namespace)


async def test_an_object_whose_answer_was_lost_is_ours(faults: FaultyApi, client: Client, namespace: str) -> None:
    """The client repeats the request by itself, and is then told that the object is there already."""
    faults.lose(which=lambda asked: asked.method == "PATCH" and asked.path.endswith("/a"))
    objects = make_set(faults.client, namespace)
    report = await objects.apply([config_map("a", x="1")])
    assert report.ok
    assert not report.results[0].shared
    assert (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]["labels"] == {LABEL: namespace}
    assert removals(await objects.remove_all()) == {"a": "removed"}


async def test_a_failing_record_before_the_apply_writes_nothing(
    faults: FaultyApi, impatient: Client, client: Client, namespace: str
) -> None:
    faults.answer(500, which=lambda asked: asked.method == "POST")
    error = await refused(make_set(impatient, namespace).apply([config_map("a")]))
    assert error.kind is Kind.INTERNAL
    assert not await exists(client, CONFIG_MAPS, "a", namespace)


async def test_a_failing_record_after_the_apply_loses_nothing(
    faults: FaultyApi, impatient: Client, namespace: str
) -> None:
    objects = make_set(impatient, namespace)
    faults.answer(500, which=lambda asked: asked.method == "PUT" and asked.path.endswith(f"/{INVENTORY}"))
    await refused(objects.apply([config_map("a")]))
    assert {ref.name: entry.uid for ref, entry in (await objects.inventory()).items()} == {"a": ""}
    assert removals(await objects.remove_all()) == {"a": "removed"}


async def test_a_stranger_who_answers_404_does_not_make_us_forget(
    faults: FaultyApi, impatient: Client, client: Client, namespace: str
) -> None:
    objects = make_set(impatient, namespace)
    await objects.apply([config_map("a")])
    faults.answer(404, times=3, which=lambda asked: asked.path.endswith("/a"), content=b"no such page")
    report = await objects.remove_all()
    assert removals(report) == {"a": "failed"}
    assert "is the address an API server's" in report.results[0].reason
    faults.answer(404, which=lambda asked: asked.path.endswith(f"/{INVENTORY}"), content=b"no such page")
    error = await refused(objects.apply([config_map("b")]))
    assert error.kind is Kind.UNAVAILABLE
    assert not await exists(client, CONFIG_MAPS, "b", namespace)
    assert removals(await make_set(client, namespace).remove_all()) == {"a": "removed"}


async def test_a_removal_whose_answer_is_an_error_is_repeated_later(
    faults: FaultyApi, impatient: Client, client: Client, namespace: str
) -> None:
    objects = make_set(impatient, namespace)
    await objects.apply([config_map("a"), deployment("d")])
    faults.answer(500, which=lambda asked: asked.method == "DELETE" and asked.path.endswith("/d"))
    assert removals(await objects.remove_all()) == {"d": "failed", "a": "skipped"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert removals(await objects.remove_all()) == {"d": "removed", "a": "removed"}


async def test_a_lost_answer_to_a_removal_is_no_failure(faults: FaultyApi, namespace: str) -> None:
    objects = make_set(faults.client, namespace)
    await objects.apply([config_map("a")])
    faults.lose(which=lambda asked: asked.method == "DELETE" and asked.path.endswith("/a"))
    assert removals(await objects.remove_all()) == {"a": "removed"}


async def test_errors_while_waiting_for_the_end_do_not_end_the_waiting(
    faults: FaultyApi, impatient: Client, namespace: str
) -> None:
    objects = make_set(impatient, namespace)
    await objects.apply([config_map("a")])
    looks = 0

    def later(asked: Asked) -> bool:
        nonlocal looks
        looks += asked.method == "GET" and asked.path.endswith("/a")
        return looks in (2, 3) and asked.path.endswith("/a")

    faults.answer(500, times=2, which=later)
    assert removals(await objects.remove_all()) == {"a": "removed"}


async def test_what_a_webhook_refuses_is_refused_with_its_words(
    api: ControlPlane, client: Client, namespace: str
) -> None:
    async with Webhook(api.authority, lambda asked: "not on Fridays" if asked["name"] == "b" else "") as webhook:
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": namespace},
            "webhooks": [
                {
                    "name": "fridays.example.com",
                    "clientConfig": webhook.client_config,
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
                    ],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "timeoutSeconds": 30,
                }
            ],
        }
        # A set of its own, so that the webhook is certain to be asked.
        guard = make_set(client, "default", owner=f"{namespace}-guard", name=f"{namespace}-guard")
        assert (await guard.apply([configuration])).ok
        objects = make_set(client, namespace)

        async def asked() -> bool:
            await objects.apply([config_map("probe")], full=True)
            return bool(webhook.asked)

        await until(asked)
        manifests = [config_map("a"), config_map("b")]
        report = await objects.apply(manifests)
        assert outcomes(report) == {"a": Outcome.CREATED, "b": Outcome.REFUSED}
        assert "not on Fridays" in report.results[1].error
        assert outcomes((await objects.plan([config_map("b", x="1")])).apply) == {"b": Outcome.REFUSED}
        assert removals(await guard.remove_all()) == {namespace: "removed"}
    assert not await exists(client, WEBHOOKS, namespace)
