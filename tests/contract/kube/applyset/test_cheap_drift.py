"""What a run costs if nothing or little changed: one list per kind, and a comparison only of objects that changed."""

import copy
from collections.abc import Awaitable, Callable

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset import DriftMode, IgnoredFields, Outcome
from governor.kube.client import METADATA_LIST, Client, Request, Transport
from governor.kube.objects import Object
from governor.values.digest import digest
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    INVENTORY,
    LABEL,
    NAMESPACES,
    PREFIX,
    SECRETS,
    RecordingClient,
    config_map,
    deployment,
    exists,
    make_set,
    namespace_of,
    outcomes,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of

KEY = f"{PREFIX}/digest-key"


@pytest.fixture
def recording(api: ControlPlane, transport: Transport) -> RecordingClient:
    return RecordingClient(transport, admin_of(api))


def secret(name: str, password: str = "cGxhbg==") -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"password": password}}


def requests(client: RecordingClient) -> list[str]:
    return sorted(str(request) for request in client.sent)


async def test_an_unchanged_set_costs_one_list_per_kind(recording: RecordingClient, namespace: str) -> None:
    manifests = [make(f"{number}") for make in (config_map, secret, deployment) for number in range(5)]
    objects = make_set(recording, namespace)
    await objects.converge(manifests)
    recording.sent.clear()
    report = await objects.converge(manifests)
    assert (report.ok, report.apply.unsent, report.drift.checked) == (True, 15, 15)
    assert requests(recording) == [
        f"GET {CONFIG_MAPS.path(namespace)}",
        f"GET {CONFIG_MAPS.path(namespace, INVENTORY)}",
        f"GET {SECRETS.path(namespace)}",
        f"GET {DEPLOYMENTS.path(namespace)}",
    ]
    assert [request.accept for request in recording.sent[1:]] == [METADATA_LIST] * 3


async def test_few_objects_of_a_kind_are_read_one_by_one(recording: RecordingClient, namespace: str) -> None:
    manifests = [*(config_map(name) for name in "ab"), *(secret(name) for name in "abc")]
    objects = make_set(recording, namespace, single_reads=2)
    await objects.converge(manifests)
    await recording.patch(CONFIG_MAPS, "b", namespace, {"data": {"x": "theirs"}}, manager="other-client")
    await recording.delete(CONFIG_MAPS, "a", namespace)
    recording.sent.clear()
    report = await objects.find_drift(manifests)
    assert [(each.ref.name, each.deleted) for each in report.objects] == [("a", True)]
    paths = [CONFIG_MAPS.path(namespace, name) for name in (INVENTORY, "a", "b", "b")]
    reads = [str(each) for each in recording.sent if each.method == "GET"]
    assert sorted(reads) == sorted(f"GET {path}" for path in [*paths, SECRETS.path(namespace)])


async def test_a_change_of_the_status_costs_nothing_more(recording: RecordingClient, namespace: str) -> None:
    objects = make_set(recording, namespace)
    await objects.converge([deployment("d")])
    live = await recording.get(DEPLOYMENTS, "d", namespace)
    await recording.replace(
        DEPLOYMENTS, {**live, "status": {"observedGeneration": 1}}, manager="other-client", subresource="status"
    )
    recording.sent.clear()
    assert (await objects.converge([deployment("d")])).ok
    assert len(recording.sent) == 2


async def test_a_harmless_change_is_compared_once(recording: RecordingClient, namespace: str) -> None:
    """Fields of other clients are not drift; the inventory then has the new state of the object."""
    manifests = [config_map("a", x="1"), deployment("d")]
    objects = make_set(recording, namespace, ignored_fields=(IgnoredFields(("spec.replicas",)),))
    await objects.converge(manifests)
    await recording.patch(CONFIG_MAPS, "a", namespace, {"data": {"more": "1"}}, manager="other-client")
    await recording.patch(DEPLOYMENTS, "d", namespace, {"spec": {"replicas": 5}}, manager="autoscaler")
    recording.sent.clear()
    report = await objects.converge(manifests)
    assert (report.ok, report.drift.objects) == (True, ())
    assert len(recording.sent) == 1 + 2 + 2 * 2 + 1
    recording.sent.clear()
    assert (await objects.converge(manifests)).ok
    assert len(recording.sent) == 1 + 2


async def test_a_shared_object_is_read_by_a_request_of_its_own(recording: RecordingClient, namespace: str) -> None:
    await recording.create(CONFIG_MAPS, config_map("shared", namespace, theirs="1"), manager="other-client")
    manifests = [config_map("ours"), config_map("shared", ours="1")]
    objects = make_set(recording, namespace)
    await objects.converge(manifests)
    recording.sent.clear()
    assert (await objects.converge(manifests)).ok
    assert f"GET {CONFIG_MAPS.path(namespace, 'shared')}" in requests(recording)
    assert len(recording.sent) == 3
    await recording.patch(CONFIG_MAPS, "shared", namespace, {"data": {"ours": "2"}}, manager="other-client")
    report = await objects.converge(manifests)
    assert [(drift.ref.name, drift.remains) for drift in report.drift.objects] == [("shared", False)]


async def test_an_object_that_was_replaced_is_applied_again(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await objects.converge([config_map("a", x="1"), config_map("b")])
    await client.delete(CONFIG_MAPS, "a", namespace)
    restored = config_map("a", namespace, x="1")
    restored["metadata"]["labels"] = {LABEL: namespace}
    await client.create(CONFIG_MAPS, restored, manager="backup")
    report = await objects.converge([config_map("a", x="1"), config_map("b")])
    assert [(drift.ref.name, drift.deleted) for drift in report.drift.objects] == [("a", True)]
    assert report.ok
    assert prune_outcomes((await objects.converge([config_map("b")])).prune) == {"a": "removed"}


async def test_objects_in_several_namespaces_are_listed_at_once_unless_only_some_are_allowed(
    recording: RecordingClient, namespace: str
) -> None:
    other = f"{namespace}-other"
    await recording.create(NAMESPACES, namespace_of(other), manager="other-client")
    manifests = [config_map("a"), config_map("b", other)]
    await make_set(recording, namespace).converge(manifests)
    for allowed, paths in (
        (None, [CONFIG_MAPS.path()]),
        ({namespace, other}, map(CONFIG_MAPS.path, (namespace, other))),
    ):
        objects = make_set(recording, namespace, allowed_namespaces=allowed and frozenset(allowed))
        recording.sent.clear()
        assert (await objects.converge(manifests)).ok
        assert [str(request) for request in recording.sent[1:]] == [f"GET {path}" for path in paths]


async def test_if_listing_is_denied_each_object_is_read(recording: RecordingClient, namespace: str) -> None:
    manifests = [config_map("a", x="1"), config_map("b", x="1")]
    objects = make_set(recording, namespace)
    await objects.converge(manifests)

    async def denied(request: Request, send: Callable[[Request], Awaitable[bytes]]) -> bytes:
        if request.path == CONFIG_MAPS.path(namespace) and request.method == "GET":
            raise GovernorError(Kind.DENIED, "x", "may not list")
        return await send(request)

    recording.intercept = denied
    await recording.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2"}}, manager="other-client")
    report = await objects.converge(manifests, drift=DriftMode.WARN)
    assert [drift.ref.name for drift in report.drift.objects] == ["a"]


async def test_the_digest_of_a_secret_reveals_nothing_without_its_key(
    recording: RecordingClient, namespace: str
) -> None:
    manifests = [secret("one"), secret("two")]
    objects = make_set(recording, namespace)
    await objects.converge(manifests)
    digests = {ref.name: entry.digest for ref, entry in (await objects.inventory()).items()}
    plain = {digest(each) for each in manifests}
    assert len(set(digests.values()) | plain) == 4
    assert all(digests.values())
    keys = {(await recording.get(SECRETS, name, namespace))["metadata"]["annotations"][KEY] for name in digests}
    assert len(keys) == 2


async def test_a_changed_secret_is_applied_and_keeps_its_key(recording: RecordingClient, namespace: str) -> None:
    objects = make_set(recording, namespace)
    await objects.converge([secret("one"), secret("two")])
    before = await recording.get(SECRETS, "one", namespace)
    changed = [secret("one", "YmFk"), secret("two")]
    assert outcomes((await objects.converge(changed)).apply) == {"one": Outcome.CHANGED, "two": Outcome.UNCHANGED}
    after = await recording.get(SECRETS, "one", namespace)
    assert after["data"] == {"password": "YmFk"}
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    for mode in DriftMode:
        assert (await objects.converge(changed, drift=mode)).apply.unsent == 2


async def test_a_deleted_secret_is_created_again_with_a_new_key(recording: RecordingClient, namespace: str) -> None:
    objects = make_set(recording, namespace)
    await objects.converge([secret("one")])
    before = await recording.get(SECRETS, "one", namespace)
    await recording.delete(SECRETS, "one", namespace)
    assert outcomes((await objects.converge([secret("one")])).apply) == {"one": Outcome.CREATED}
    after = await recording.get(SECRETS, "one", namespace)
    assert after["metadata"]["annotations"] != before["metadata"]["annotations"]
    assert await exists(recording, SECRETS, "one", namespace)


async def test_a_plan_includes_drift(recording: RecordingClient, namespace: str) -> None:
    manifests = [config_map("a", x="1"), config_map("b", x="1"), config_map("c", x="1")]
    objects = make_set(recording, namespace)
    await objects.converge(manifests)
    await recording.patch(CONFIG_MAPS, "a", namespace, {"data": {"x": "2"}}, manager="other-client")
    await recording.delete(CONFIG_MAPS, "b", namespace)
    recording.sent.clear()
    plan = await objects.plan(copy.deepcopy(manifests))
    assert outcomes(plan.apply) == {"a": Outcome.CHANGED, "b": Outcome.CREATED, "c": Outcome.UNCHANGED}
    assert [each.path for each in plan.apply.results[0].differences] == ["data.x"]
    assert {request.query.get("dryRun") for request in recording.sent if request.method != "GET"} == {"All"}


async def test_drift_is_found_in_a_kind_whose_generation_never_changes(client: Client, namespace: str) -> None:
    desired = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": namespace},
        "value": 5,
        "description": "desired",
    }
    objects = make_set(client, namespace)
    await objects.converge([desired])
    kind = await client.discovery.find("scheduling.k8s.io", "PriorityClass")
    await client.patch(kind, namespace, "", {"description": "changed"}, manager="other-client")
    assert (await objects.converge([desired])).drift.objects
    assert (await client.get(kind, namespace))["description"] == "desired"
    await objects.delete_all()


async def test_a_field_that_is_no_longer_ignored_is_compared(client: Client, namespace: str) -> None:
    ignored = (IgnoredFields(("spec.replicas",)),)
    await make_set(client, namespace, ignored_fields=ignored).converge([deployment("d", 1)])
    await client.patch(DEPLOYMENTS, "d", namespace, {"spec": {"replicas": 5}}, manager="autoscaler")
    assert (await make_set(client, namespace, ignored_fields=ignored).converge([deployment("d", 1)])).ok
    report = await make_set(client, namespace).converge([deployment("d", 1)])
    assert [field.difference.path for drift in report.drift.objects for field in drift.fields] == ["spec.replicas"]
    assert (await client.get(DEPLOYMENTS, "d", namespace))["spec"]["replicas"] == 1


async def test_a_secret_that_another_client_replaced_is_repaired(client: Client, namespace: str) -> None:
    """``kubectl replace`` removes the key of the digest, so that the inventory cannot tell what changed."""
    objects = make_set(client, namespace)
    await objects.converge([secret("s"), config_map("c", x="1")])
    for kind, theirs in ((SECRETS, secret("s", "b3RoZXI=")), (CONFIG_MAPS, config_map("c", x="2"))):
        theirs["metadata"] |= {"namespace": namespace, "labels": {LABEL: namespace}}
        await client.replace(kind, theirs, manager="other-client")
    report = await objects.converge([secret("s"), config_map("c", x="1")])
    assert sorted(drift.ref.name for drift in report.drift.objects) == ["c", "s"]
    assert report.ok
    assert (await client.get(SECRETS, "s", namespace))["data"] == {"password": "cGxhbg=="}
    assert (await objects.converge([secret("s"), config_map("c", x="1")])).apply.unsent == 2
