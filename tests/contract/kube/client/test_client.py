"""The client's verbs on a real API server: merges, conflicts, errors, pages, streams."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from governor.errors import GovernorError, Kind
from governor.kube.client import METADATA, METADATA_LIST, Client, Request, Transport, paging, rest
from governor.kube.errors import NO_API, ApiError
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane
from testbed.kube.webhooks import HANG, Webhook
from tests.contract.kube.bed import admin_of

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)
EVENTS = ApiResource("", "v1", "Event", "events", namespaced=True)
SERVICES = ApiResource("", "v1", "Service", "services", namespaced=True)
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
DEPLOYMENTS = ApiResource("apps", "v1", "Deployment", "deployments", namespaced=True)
HOOKS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def event_of(namespace: str, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": {"namespace": namespace}}


def service(namespace: str, *ports: int) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": namespace}
    listed = [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports]
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": listed}}


def webhook_configuration(namespace: str, webhook: Webhook, timeout_s: int = 30) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    hook = {
        "name": f"{namespace}.example.com",
        "clientConfig": webhook.client_config,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": timeout_s,
    }
    metadata = {"name": namespace}
    return {"apiVersion": HOOKS.api_version, "kind": HOOKS.kind, "metadata": metadata, "webhooks": [hook]}


async def rejected(awaited: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await awaited
    return caught.value


class TestApply:
    async def test_a_field_of_another_manager_is_a_conflict_that_names_both(
        self, client: Client, namespace: str
    ) -> None:
        await client.apply(CONFIG_MAPS, config_map(namespace, k="mine", l="mine"), manager="first")
        error = await rejected(client.apply(CONFIG_MAPS, config_map(namespace, k="yours"), manager="second"))
        assert (error.kind, error.status, error.reason) == (Kind.CONFLICT, 409, "Conflict")
        [cause] = error.causes
        assert (cause.reason, cause.field) == ("FieldManagerConflict", ".data.k")
        assert '"first"' in cause.message
        assert error.details[0].path == ".data.k"

    async def test_with_force_the_field_changes_its_manager(self, client: Client, namespace: str) -> None:
        await client.apply(CONFIG_MAPS, config_map(namespace, k="mine"), manager="first")
        applied = await client.apply(CONFIG_MAPS, config_map(namespace, k="yours"), manager="second", force=True)
        assert applied["data"] == {"k": "yours"}
        error = await rejected(client.apply(CONFIG_MAPS, config_map(namespace, k="mine"), manager="first"))
        assert '"second"' in error.causes[0].message

    async def test_the_same_value_is_no_conflict(self, client: Client, namespace: str) -> None:
        await client.apply(CONFIG_MAPS, config_map(namespace, k="same"), manager="first")
        await client.apply(CONFIG_MAPS, config_map(namespace, k="same"), manager="second")

    async def test_lists_with_keys_merge_item_by_item(self, client: Client, namespace: str) -> None:
        await client.apply(SERVICES, service(namespace, 80), manager="first")
        merged = await client.apply(SERVICES, service(namespace, 81), manager="second")
        assert [port["port"] for port in merged["spec"]["ports"]] == [80, 81]
        left = await client.apply(SERVICES, service(namespace, 82), manager="first")
        assert {port["port"] for port in left["spec"]["ports"]} == {81, 82}

    async def test_a_field_that_is_no_longer_applied_is_removed(self, client: Client, namespace: str) -> None:
        await client.apply(CONFIG_MAPS, config_map(namespace, k="1", l="2"), manager="first")
        applied = await client.apply(CONFIG_MAPS, config_map(namespace, l="2"), manager="first")
        assert applied["data"] == {"l": "2"}

    async def test_an_unchanged_apply_keeps_the_resource_version(self, client: Client, namespace: str) -> None:
        first = await client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        again = await client.apply(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]

    async def test_a_status_is_applied_separately_from_its_object(self, client: Client, namespace: str) -> None:
        pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
        named = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": namespace}}
        await client.apply(DEPLOYMENTS, {**named, "spec": spec}, manager="first")
        status = {**named, "status": {"observedGeneration": 7}}
        applied = await client.apply(DEPLOYMENTS, status, manager="second", subresource="status")
        assert applied["status"]["observedGeneration"] == 7
        assert applied["spec"]["selector"] == spec["selector"]

    async def test_an_invalid_field_is_named(self, client: Client, namespace: str) -> None:
        error = await rejected(client.apply(SERVICES, service(namespace, 99999), manager="first"))
        assert (error.kind, error.reason) == (Kind.INVALID, "Invalid")
        assert error.causes[0].field == "spec.ports[0].port"


class TestDryRun:
    async def test_it_returns_the_result_and_writes_nothing(self, client: Client, namespace: str) -> None:
        manifest = config_map(namespace, k="1")
        for call in (client.create, client.apply):
            result = await call(CONFIG_MAPS, manifest, manager="first", dry_run=True)
            assert result["metadata"]["uid"]
            assert (await rejected(client.get(CONFIG_MAPS, "a", namespace))).kind is Kind.NOT_FOUND

    async def test_an_existing_object_is_unchanged(self, client: Client, namespace: str) -> None:
        before = await client.create(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        changed = config_map(namespace, k="2")
        assert (await client.replace(CONFIG_MAPS, changed, manager="first", dry_run=True))["data"] == {"k": "2"}
        await client.apply(CONFIG_MAPS, changed, manager="first", force=True, dry_run=True)
        await client.delete(CONFIG_MAPS, "a", namespace, dry_run=True)
        assert await client.get(CONFIG_MAPS, "a", namespace) == before


class TestErrors:
    async def test_an_object_that_does_not_exist(self, client: Client, namespace: str) -> None:
        for call in (
            client.get(CONFIG_MAPS, "a", namespace),
            client.delete(CONFIG_MAPS, "a", namespace),
            client.patch(CONFIG_MAPS, "a", namespace, {"data": {"k": "1"}}, manager="first"),
        ):
            error = await rejected(call)
            assert (error.kind, error.status, error.reason) == (Kind.NOT_FOUND, 404, "NotFound")

    async def test_an_object_that_already_exists(self, client: Client, namespace: str) -> None:
        await client.create(CONFIG_MAPS, config_map(namespace), manager="first")
        error = await rejected(client.create(CONFIG_MAPS, config_map(namespace), manager="first"))
        assert (error.kind, error.status, error.reason) == (Kind.EXISTS, 409, "AlreadyExists")

    async def test_an_outdated_resource_version(self, client: Client, namespace: str) -> None:
        old = await client.create(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        await client.replace(CONFIG_MAPS, config_map(namespace, k="2"), manager="first")
        error = await rejected(client.replace(CONFIG_MAPS, old | {"data": {"k": "3"}}, manager="first"))
        assert (error.kind, error.status, error.reason) == (Kind.CONFLICT, 409, "Conflict")
        assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"k": "2"}

    async def test_a_recreated_object_is_not_deleted_by_the_uid_of_the_old_one(
        self, client: Client, namespace: str
    ) -> None:
        first = await client.create(CONFIG_MAPS, config_map(namespace), manager="first")
        await client.delete(CONFIG_MAPS, "a", namespace, uid=first["metadata"]["uid"])
        second = await client.create(CONFIG_MAPS, config_map(namespace), manager="first")
        error = await rejected(client.delete(CONFIG_MAPS, "a", namespace, uid=first["metadata"]["uid"]))
        assert error.kind is Kind.CONFLICT
        assert (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]["uid"] == second["metadata"]["uid"]

    async def test_a_namespace_that_does_not_exist(self, client: Client, namespace: str) -> None:
        error = await rejected(client.apply(CONFIG_MAPS, config_map(f"{namespace}-no"), manager="first"))
        assert error.kind is Kind.NOT_FOUND

    async def test_a_kind_that_is_not_served(self, client: Client) -> None:
        ships = ApiResource("example.com", "v1", "Ship", "ships", namespaced=False)
        error = await rejected(client.get(ships, "a"))
        assert (error.kind, error.code, error.status) == (Kind.UNAVAILABLE, NO_API, 404)

    async def test_a_malformed_manifest(self, client: Client, namespace: str) -> None:
        broken = config_map(namespace) | {"data": "text"}
        assert (await rejected(client.create(CONFIG_MAPS, broken, manager="first"))).kind is Kind.INVALID

    async def test_a_denying_and_an_unreachable_webhook_affect_only_their_objects(
        self, api: ControlPlane, client: Client, namespace: str
    ) -> None:
        async with Webhook(api.authority, lambda request: "not today" if request["name"] == "bad" else "") as webhook:
            await client.apply(HOOKS, webhook_configuration(namespace, webhook), manager="tests")
            await self._until_webhook_active(client, namespace)
            error = await rejected(client.create(CONFIG_MAPS, config_map(namespace, "bad"), manager="first"))
            assert error.kind in (Kind.DENIED, Kind.INVALID)
            assert "not today" in str(error)
        for number in range(12):
            failed = await rejected(client.create(CONFIG_MAPS, config_map(namespace, f"n{number}"), manager="first"))
            assert (failed.kind, failed.reason) == (Kind.INTERNAL, "InternalError")
        assert await client.get(HOOKS, namespace)
        await client.delete(HOOKS, namespace)

    async def test_a_webhook_that_hangs_is_called_once_per_request_and_named(
        self, api: ControlPlane, client: Client, namespace: str
    ) -> None:
        def decide(request: dict[str, Any]) -> str:
            return "not today" if request["name"] == "bad" else HANG

        async with Webhook(api.authority, decide) as webhook:
            await client.apply(HOOKS, webhook_configuration(namespace, webhook, timeout_s=1), manager="tests")
            await self._until_webhook_active(client, namespace)
            writes = (client.apply(CONFIG_MAPS, config_map(namespace, f"n{n}"), manager="first") for n in range(8))
            for error in await asyncio.gather(*(rejected(write) for write in writes)):
                assert (error.kind, error.reason) == (Kind.INTERNAL, "InternalError")
                assert f'failed calling webhook "{namespace}.example.com"' in str(error)
            hanging = [request["name"] for request in webhook.requests if request["name"] != "bad"]
            assert sorted(hanging) == [f"n{number}" for number in range(8)]
            assert await client.get(HOOKS, namespace)
            await client.delete(HOOKS, namespace)

    async def _until_webhook_active(self, client: Client, namespace: str) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    await client.create(CONFIG_MAPS, config_map(namespace, "bad"), manager="first", dry_run=True)
                except ApiError:
                    return


class TestReading:
    async def test_a_patch_merges(self, client: Client, namespace: str) -> None:
        await client.create(CONFIG_MAPS, config_map(namespace, k="1", l="2"), manager="first")
        change = {"data": {"k": None, "m": "3"}}
        assert (await client.patch(CONFIG_MAPS, "a", namespace, change, manager="first"))["data"] == {
            "l": "2",
            "m": "3",
        }

    async def test_a_paged_list_contains_each_object_once(
        self, client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paging, "FIRST_LIMIT", 3)
        names = [f"n{number}" for number in range(7)]
        for name in names:
            await client.create(CONFIG_MAPS, config_map(namespace, name), manager="first")
        found = [each async for each in client.list(CONFIG_MAPS, namespace)]
        assert [each["metadata"]["name"] for each in found] == names
        assert {(each["apiVersion"], each["kind"]) for each in found} == {("v1", "ConfigMap")}

    async def test_only_the_metadata_is_sent_if_no_more_is_needed(self, client: Client, namespace: str) -> None:
        created = await client.create(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        reduced = {name: created[name] for name in ("apiVersion", "kind", "metadata")}
        assert await client.get(CONFIG_MAPS, "a", namespace, metadata_only=True) == reduced
        assert [each async for each in client.list(CONFIG_MAPS, namespace, metadata_only=True)] == [reduced]
        for path, accept in (
            (CONFIG_MAPS.path(namespace, "a"), METADATA),
            (CONFIG_MAPS.path(namespace), METADATA_LIST),
        ):
            assert b'"data"' not in await client.send(Request("GET", path, accept=accept))

    async def test_a_watch_of_metadata_delivers_no_other_fields(self, client: Client, namespace: str) -> None:
        await client.create(CONFIG_MAPS, config_map(namespace, k="1"), manager="first")
        request = Request("GET", CONFIG_MAPS.path(namespace), {"watch": "1"}, accept=METADATA)
        async with aclosing(client.stream_lines(request)) as lines:
            event = msgspec.json.decode(await anext(lines))
        assert event["type"] == "ADDED"
        assert set(event["object"]) == {"apiVersion", "kind", "metadata"}

    async def test_a_large_list_is_the_same_with_gzip(
        self, api: ControlPlane, client: Client, transport: Transport, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await client.create(CONFIG_MAPS, config_map(namespace, k="text " * 50_000), manager="first")
        request = Request("GET", CONFIG_MAPS.path(namespace))
        monkeypatch.setattr(rest, "is_loopback", lambda host: False)
        assert await Client(transport, admin_of(api)).send(request) == await client.send(request)

    async def test_selectors_filter_a_list(self, client: Client, namespace: str) -> None:
        for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
            manifest = config_map(namespace, name)
            manifest["metadata"]["labels"] = {"colour": colour}
            await client.create(CONFIG_MAPS, manifest, manager="first")
        selected = client.list(CONFIG_MAPS, namespace, labels="colour in (red,green)", fields="metadata.name!=a")
        assert [each["metadata"]["name"] async for each in selected] == ["c"]

    async def test_names_with_colons_work(self, client: Client, namespace: str) -> None:
        name = f"team:{namespace}:reader"
        role = {"apiVersion": ROLES.api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": []}
        await client.apply(ROLES, role, manager="first")
        assert (await client.get(ROLES, name))["metadata"]["name"] == name
        await client.delete(ROLES, name)

    async def test_a_watch_delivers_events_until_its_timeout(self, client: Client, namespace: str) -> None:
        created = await client.create(CONFIG_MAPS, config_map(namespace, k="größe 🚢"), manager="first")
        query = {"watch": "1", "resourceVersion": created["metadata"]["resourceVersion"], "timeoutSeconds": "2"}
        async with aclosing(client.stream_lines(Request("GET", CONFIG_MAPS.path(namespace), query))) as lines:
            await client.apply(CONFIG_MAPS, config_map(namespace, k="new"), manager="first", force=True)
            await client.delete(CONFIG_MAPS, "a", namespace)
            events = [msgspec.json.decode(line) async for line in lines]
        assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]

    async def test_a_line_much_longer_than_a_chunk_is_complete(self, client: Client, namespace: str) -> None:
        text = "größe 🚢 " * 40_000
        created = await client.create(CONFIG_MAPS, config_map(namespace, k=text), manager="first")
        query = {"watch": "1", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        query |= {"allowWatchBookmarks": "true", "fieldSelector": "metadata.name=a"}
        async with aclosing(client.stream_lines(Request("GET", CONFIG_MAPS.path(namespace), query))) as lines:
            event = msgspec.json.decode(await anext(lines))
        assert event["object"]["data"]["k"] == text
        assert event["object"]["metadata"]["uid"] == created["metadata"]["uid"]


async def test_a_name_that_would_change_the_path_is_not_sent(client: Client, namespace: str) -> None:
    with pytest.raises(GovernorError, match="is not an object name"):
        await client.delete(CONFIG_MAPS, "../../secrets/a", namespace)


async def test_pages_and_watches_from_compacted_history_are_expired(
    api: ControlPlane, client: Client, namespace: str
) -> None:
    # The server has no watch cache for Events.
    path = EVENTS.path(namespace)
    for name in ("a", "b"):
        await client.create(EVENTS, event_of(namespace, name), manager="first")
    page = msgspec.json.decode(await client.send(Request("GET", path, {"limit": "1"})))["metadata"]
    for name in ("c", "d"):  # a watch may start just before the oldest version that remains
        await client.create(EVENTS, event_of(namespace, name), manager="first")
    await api.etcd.compact()
    error = await rejected(client.send(Request("GET", path, {"limit": "1", "continue": page["continue"]})))
    assert (error.status, error.reason, error.kind) == (410, "Expired", Kind.PRECONDITION)
    watch = {"watch": "1", "resourceVersion": page["resourceVersion"]}
    async with aclosing(client.stream_lines(Request("GET", path, watch))) as lines:
        event = msgspec.json.decode(await anext(lines))
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
