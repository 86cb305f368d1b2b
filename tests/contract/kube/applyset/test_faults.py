"""Apply and prune while the server fails, loses responses or is replaced: errors are reported, retries succeed."""

import pytest

from governor.errors import Kind
from governor.kube.applyset import Outcome
from governor.kube.client import Client, Limits, Transport
from governor.kube.objects import ApiResource
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.kube.webhooks import Webhook
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    LABEL,
    NAMESPACES,
    apply,
    config_map,
    custom,
    definition,
    deployment,
    error_of,
    exists,
    make_set,
    namespace_of,
    outcomes,
    prune_outcomes,
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
def no_retry(faults: FaultyApi, transport: Transport) -> Client:
    """A client that does not retry, so that each fault reaches the apply set."""
    breaker = BreakerPolicy(failures=1000, backoff=Backoff(initial_s=0.01, max_s=0.01))
    return Client(transport, faults.access, Limits(attempts=1, breaker=breaker))


async def test_server_errors_affect_only_their_objects(
    faults: FaultyApi, no_retry: Client, client: Client, namespace: str
) -> None:
    manifests = [config_map(f"c{number}") for number in range(4)] + [deployment("later")]
    objects = make_set(no_retry, namespace)
    faults.answer(500, which=lambda request: request.method == "PATCH" and request.path.endswith("/c1"))
    faults.answer(503, which=lambda request: request.method == "PATCH" and request.path.endswith("/c2"))
    report = await apply(objects, manifests)
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
    }
    again = await apply(objects, manifests)
    assert again.ok
    assert again.unsent == 2
    assert await exists(client, CONFIG_MAPS, "c1", namespace)


async def test_an_object_whose_response_was_lost_is_owned(faults: FaultyApi, client: Client, namespace: str) -> None:
    """The client retries the request, and the server reports that the object exists."""
    faults.drop_response(which=lambda request: request.method == "PATCH" and request.path.endswith("/a"))
    objects = make_set(faults.client, namespace)
    report = await apply(objects, [config_map("a", x="1")])
    assert report.ok
    assert not report.results[0].shared
    assert (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]["labels"] == {LABEL: namespace}
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}


async def test_if_the_inventory_cannot_be_written_first_nothing_is_applied(
    faults: FaultyApi, no_retry: Client, client: Client, namespace: str
) -> None:
    faults.answer(500, which=lambda request: request.method == "POST")
    error = await error_of(apply(make_set(no_retry, namespace), [config_map("a")]))
    assert error.kind is Kind.INTERNAL
    assert not await exists(client, CONFIG_MAPS, "a", namespace)


async def test_if_the_inventory_cannot_be_written_last_no_object_is_lost(
    faults: FaultyApi, no_retry: Client, namespace: str
) -> None:
    objects = make_set(no_retry, namespace)
    faults.answer(500, which=lambda request: request.method == "PUT" and request.path.endswith(f"/{INVENTORY}"))
    await error_of(apply(objects, [config_map("a")]))
    assert {ref.name: entry.uid for ref, entry in (await objects.inventory()).items()} == {"a": ""}
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}


async def test_a_404_of_another_server_does_not_count_as_absent(
    faults: FaultyApi, no_retry: Client, client: Client, namespace: str
) -> None:
    objects = make_set(no_retry, namespace)
    await apply(objects, [config_map("a")])
    faults.answer(404, times=3, which=lambda request: request.path.endswith("/a"), content=b"no such page")
    report = await objects.delete_all()
    assert prune_outcomes(report) == {"a": "failed"}
    assert "check that the address is an API server's" in report.results[0].reason
    faults.answer(404, which=lambda request: request.path.endswith(f"/{INVENTORY}"), content=b"no such page")
    error = await error_of(apply(objects, [config_map("b")]))
    assert error.kind is Kind.UNAVAILABLE
    assert not await exists(client, CONFIG_MAPS, "b", namespace)
    assert prune_outcomes(await make_set(client, namespace).delete_all()) == {"a": "removed"}


async def test_a_failed_deletion_can_be_retried(
    faults: FaultyApi, no_retry: Client, client: Client, namespace: str
) -> None:
    objects = make_set(no_retry, namespace)
    await apply(objects, [config_map("a"), deployment("d")])
    faults.answer(500, which=lambda request: request.method == "DELETE" and request.path.endswith("/d"))
    assert prune_outcomes(await objects.delete_all()) == {"d": "failed", "a": "skipped"}
    assert await exists(client, CONFIG_MAPS, "a", namespace)
    assert prune_outcomes(await objects.delete_all()) == {"d": "removed", "a": "removed"}


async def test_a_lost_response_to_a_deletion_is_not_a_failure(faults: FaultyApi, namespace: str) -> None:
    objects = make_set(faults.client, namespace)
    await apply(objects, [config_map("a")])
    faults.drop_response(which=lambda request: request.method == "DELETE" and request.path.endswith("/a"))
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}


async def test_a_deleted_object_that_cannot_be_read_stays_in_the_inventory(
    faults: FaultyApi, no_retry: Client, namespace: str
) -> None:
    objects = make_set(no_retry, namespace)
    await apply(objects, [config_map("a")])
    reads = 0

    def second_read(request: ApiRequest) -> bool:
        nonlocal reads
        reads += request.method == "GET" and request.path.endswith("/a")
        return reads == 2

    faults.answer(500, which=second_read)
    report = await objects.delete_all()
    assert prune_outcomes(report) == {"a": "terminating"}
    assert "cannot be read" in report.results[0].reason
    assert prune_outcomes(await objects.delete_all()) == {"a": "absent"}


async def test_a_webhook_rejection_is_refused_with_its_message(
    api: ControlPlane, client: Client, namespace: str
) -> None:
    async with Webhook(api.authority, lambda review: "not on Fridays" if review["name"] == "b" else "") as webhook:
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
        # In another set, so that the webhook is active before the objects are applied.
        guard = make_set(client, "default", owner=f"{namespace}-guard", name=f"{namespace}-guard")
        assert (await apply(guard, [configuration])).ok
        objects = make_set(client, namespace)

        async def webhook_is_active() -> bool:
            await apply(objects, [config_map("probe", n=str(len(webhook.requests)))])
            return bool(webhook.requests)

        await until(webhook_is_active)
        manifests = [config_map("a"), config_map("b")]
        report = await apply(objects, manifests)
        assert outcomes(report) == {"a": Outcome.CREATED, "b": Outcome.REFUSED}
        assert "not on Fridays" in report.results[1].error
        assert outcomes((await objects.plan([config_map("b", x="1")])).apply) == {"b": Outcome.REFUSED}
        assert prune_outcomes(await guard.delete_all()) == {namespace: "removed"}
    assert not await exists(client, WEBHOOKS, namespace)


async def test_a_missing_prerequisite_is_a_failure_that_a_retry_heals(
    faults: FaultyApi, no_retry: Client, client: Client, namespace: str
) -> None:
    """An API server that lags behind does not know a namespace or a definition yet that another one has created."""
    group = f"{namespace}.example"
    other = f"{namespace}-later"
    manifests = [definition("Thing", group), custom("Thing", group, "one"), config_map("a", other)]
    objects = make_set(no_retry, namespace)
    report = await apply(objects, manifests)
    assert outcomes(report) == {f"things.{group}": Outcome.CREATED, "a": Outcome.FAILED, "one": Outcome.SKIPPED}
    assert f'namespaces "{other}" not found' in report.results[1].error
    await client.create(NAMESPACES, namespace_of(other), manager="other-client")
    faults.answer(
        404,
        which=lambda request: request.method == "PATCH" and request.path.endswith("/things/one"),
        content=b"404 page not found\n",
    )
    assert outcomes(await apply(objects, manifests))["one"] == Outcome.FAILED
    assert outcomes(await apply(objects, manifests))["one"] == Outcome.CREATED


async def test_a_terminating_namespace_is_waited_for(client: Client, namespace: str) -> None:
    other = f"{namespace}-old"
    await client.create(NAMESPACES, namespace_of(other), manager="other-client")
    await client.delete(NAMESPACES, other)  # without controllers it terminates for ever
    report = await make_set(client, namespace).converge([config_map("a", other)])
    assert outcomes(report.apply) == {"a": Outcome.TERMINATING}
    assert "because it is being terminated" in report.apply.results[0].error
    assert report.pending
