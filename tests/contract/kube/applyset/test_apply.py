"""Apply on a real API server: order, results, conflicts, and no redundant writes."""

import copy

from governor.errors import Kind
from governor.kube.applyset import FieldConflict, Outcome
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LABEL,
    MANAGER,
    NAMESPACES,
    SECRETS,
    RecordingClient,
    apply,
    config_map,
    custom,
    definition,
    delete_definition,
    deployment,
    error_of,
    exists,
    kind_of,
    make_set,
    namespace_of,
    outcomes,
)
from tests.contract.kube.bed import admin_of

PRIORITIES = ApiResource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)


async def test_objects_are_created_once_and_then_unchanged(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    manifests = [config_map("a", x="1"), deployment("d")]
    first = await apply(objects, manifests)
    assert outcomes(first) == {"a": Outcome.CREATED, "d": Outcome.CREATED}
    assert first.ok
    assert first.unsent == 0
    second = await apply(objects, manifests)
    assert outcomes(second) == {"a": Outcome.UNCHANGED, "d": Outcome.UNCHANGED}
    assert second.unsent == 2


async def test_a_new_object_costs_one_request(api: ControlPlane, transport: Transport, namespace: str) -> None:
    client = RecordingClient(transport, admin_of(api))
    await apply(make_set(client, namespace), [config_map(f"c{number}") for number in range(20)])
    assert len(client.sent) == 20 + 3  # the inventory is read once and written twice


async def test_a_changed_manifest_changes_only_its_object(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a", x="1"), config_map("b", x="1")])
    before = await client.get(CONFIG_MAPS, "b", namespace)
    report = await apply(objects, [config_map("a", x="2"), config_map("b", x="1")])
    assert outcomes(report) == {"a": Outcome.CHANGED, "b": Outcome.UNCHANGED}
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "2"}
    assert await client.get(CONFIG_MAPS, "b", namespace) == before


async def test_a_field_removed_from_the_manifest_is_removed_from_the_object(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [config_map("a", x="1", y="1")])
    await apply(objects, [config_map("a", x="1")])
    assert (await client.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}


async def test_every_object_has_the_owner_label_and_is_managed_by_apply(client: Client, namespace: str) -> None:
    await apply(make_set(client, namespace), [config_map("a", x="1")])
    metadata = (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]
    assert metadata["labels"] == {LABEL: namespace}
    assert [(entry["manager"], entry["operation"]) for entry in metadata["managedFields"]] == [(MANAGER, "Apply")]


async def test_definitions_and_namespaces_are_applied_first(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    inner = f"{namespace}-inner"
    thing = custom("Thing", group, "one", size=1)
    thing["metadata"]["namespace"] = inner
    clustered = custom("Place", group, "everywhere")
    definitions = [definition("Thing", group), definition("Place", group, scope="Cluster")]
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": namespace},
        "value": 7,
    }
    manifests = [thing, clustered, config_map("a", inner), priority, namespace_of(inner), *definitions]
    report = await apply(make_set(client, namespace), manifests)
    assert report.ok, report
    assert report.counts() == {Outcome.CREATED: 7}
    order = [result.ref.kind for result in report.results]
    assert order == [
        *["CustomResourceDefinition"] * 2,
        "Namespace",
        "PriorityClass",
        "ConfigMap",
        "Thing",
        "Place",
    ]
    assert await exists(client, kind_of(definitions[0]), "one", inner)
    assert await exists(client, kind_of(definitions[1]), "everywhere")
    assert await exists(client, PRIORITIES, namespace)


async def test_a_failure_does_not_affect_its_stage_and_stops_later_stages(client: Client, namespace: str) -> None:
    broken = config_map("broken", **{"not a key!": "1"})
    later = deployment("later")
    report = await apply(make_set(client, namespace), [config_map("a"), broken, config_map("b"), later])
    assert outcomes(report) == {
        "a": Outcome.CREATED,
        "broken": Outcome.REFUSED,
        "b": Outcome.CREATED,
        "later": Outcome.SKIPPED,
    }
    assert not report.ok
    errors = {result.ref.name: result.error for result in report.results}
    assert "not a key!" in errors["broken"]
    assert "broken" in errors["later"]
    assert not await exists(client, DEPLOYMENTS, "later", namespace)
    again = await apply(make_set(client, namespace), [config_map("a"), config_map("b"), later])
    assert outcomes(again) == {"a": Outcome.UNCHANGED, "b": Outcome.UNCHANGED, "later": Outcome.CREATED}


async def test_a_definition_that_cannot_be_served_is_a_failure(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    first = definition("Thing", group)
    # The same names under another plural: the server accepts the definition and never establishes it.
    rival = copy.deepcopy(first)
    rival["metadata"]["name"] = f"rivals.{group}"
    rival["spec"]["names"]["plural"] = "rivals"
    await apply(make_set(client, namespace), [first])
    objects = make_set(client, namespace, owner=f"{namespace}-2", name="second", served_timeout_s=5)
    report = await apply(objects, [rival, config_map("never")])
    assert [result.outcome for result in report.results] == [Outcome.FAILED, Outcome.SKIPPED]
    assert "not served" in report.results[0].error
    assert "already in use" in report.results[0].error
    assert not await exists(client, CONFIG_MAPS, "never", namespace)


async def test_a_conflict_names_each_field_and_its_manager(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    await apply(objects, [deployment("d", 1)])
    theirs = deployment("d", 5)
    theirs["metadata"]["namespace"] = namespace
    await client.apply(DEPLOYMENTS, theirs, manager="other", force=True)
    await client.patch(
        DEPLOYMENTS,
        "d",
        namespace,
        {"spec": {"minReadySeconds": 9}},
        manager="third",
    )
    mine = deployment("d", 2, minReadySeconds=1)
    report = await apply(objects, [mine, config_map("fine")])
    result = report.results[1]
    assert result.outcome is Outcome.CONFLICT
    assert set(result.conflicts) == {
        FieldConflict("spec.replicas", "other"),
        FieldConflict("spec.minReadySeconds", "third"),
    }
    live = await client.get(DEPLOYMENTS, "d", namespace)
    assert (live["spec"]["replicas"], live["spec"]["minReadySeconds"]) == (5, 9)
    forced = await apply(make_set(client, namespace, force_conflicts=True), [mine])
    assert forced.ok
    live = await client.get(DEPLOYMENTS, "d", namespace)
    assert (live["spec"]["replicas"], live["spec"]["minReadySeconds"]) == (2, 1)


async def test_two_sets_never_share_an_object(client: Client, namespace: str) -> None:
    await apply(make_set(client, namespace), [config_map("a", x="1")])
    other = make_set(client, namespace, owner=f"{namespace}-2", name="second", force_conflicts=True)
    report = await apply(other, [config_map("a", x="1")])
    assert outcomes(report) == {"a": Outcome.REFUSED}
    assert f"belongs to '{namespace}'" in report.results[0].error
    assert (await client.get(CONFIG_MAPS, "a", namespace))["metadata"]["labels"] == {LABEL: namespace}


async def test_an_existing_object_is_shared(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, config_map("a", namespace, theirs="1"), manager="other-client")
    report = await apply(make_set(client, namespace), [config_map("a", ours="1")])
    assert report.ok
    assert report.results[0].shared
    live = await client.get(CONFIG_MAPS, "a", namespace)
    assert live["data"] == {"theirs": "1", "ours": "1"}
    assert LABEL not in live["metadata"].get("labels", {})


async def test_a_terminating_object_is_not_applied(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace)
    manifest = config_map("a", x="1")
    manifest["metadata"]["finalizers"] = ["example.com/wait"]
    await apply(objects, [manifest])
    await client.delete(CONFIG_MAPS, "a", namespace)
    report = await objects.converge([manifest])
    assert outcomes(report.apply) == {"a": Outcome.TERMINATING}
    assert "still terminating: finalizer example.com/wait" in report.apply.results[0].error
    assert report.pending
    await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"finalizers": None}}, manager="other-client")
    again = await objects.converge([manifest])
    assert outcomes(again.apply) == {"a": Outcome.CREATED}
    assert again.ok


async def test_all_problems_are_reported_before_anything_is_written(client: Client, namespace: str) -> None:
    generated = config_map("x")
    generated["metadata"] = {"generateName": "x-"}
    manifests = [
        config_map("good"),
        config_map("good"),
        generated,
        {"apiVersion": "v1", "kind": "ConfigMap"},
        custom("Unknown", "nowhere.example", "u"),
        {**namespace_of("n"), "metadata": {"name": "n", "namespace": namespace}},
        config_map("inventory"),
        namespace_of(namespace),
        "text",
        config_map(".."),
    ]
    error = await error_of(apply(make_set(client, namespace), manifests))
    assert error.kind is Kind.INVALID
    details = "\n".join(map(str, error.details))
    for each in (
        f"ConfigMap {namespace}/good: is defined 2 times",
        "manifest 3 metadata.generateName: is not supported",
        "manifest 4 metadata: is missing",
        "does not serve Unknown in nowhere.example/v1",
        "Namespace is cluster-scoped",
        "manifest 7 (ConfigMap inventory): has the name of the set's own inventory",
        "contains the set's own inventory",
        "manifest 9: is not a map",
        "'..' is not a valid object name",
    ):
        assert each in details
    assert len(error.details) == 9
    assert not await exists(client, CONFIG_MAPS, "good", namespace)
    assert not await exists(client, CONFIG_MAPS, "inventory", namespace)


async def test_nothing_is_written_outside_the_allowed_namespaces(client: Client, namespace: str) -> None:
    objects = make_set(client, namespace, allowed_namespaces=frozenset({namespace}))
    error = await error_of(apply(objects, [config_map("a"), config_map("b", "default"), namespace_of("c")]))
    assert [detail.document for detail in error.details] == [
        "manifest 2 (ConfigMap default/b)",
        "manifest 3 (Namespace c)",
    ]
    assert (await apply(objects, [config_map("a")])).ok


async def test_lists_are_applied_item_by_item(client: Client, namespace: str) -> None:
    typed = {"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "b"}}]}
    plain = {"apiVersion": "v1", "kind": "List", "items": [config_map("a"), typed]}
    report = await apply(make_set(client, namespace), [plain])
    assert outcomes(report) == {"a": Outcome.CREATED, "b": Outcome.CREATED}


async def test_a_manifest_that_violates_its_schema_is_refused(client: Client, namespace: str) -> None:
    unknown = config_map("unknown") | {"spec": {}}
    wrong = {**config_map("wrong"), "data": {"a": 5}}
    report = await apply(make_set(client, namespace), [unknown, wrong])
    assert outcomes(report) == {"unknown": Outcome.REFUSED, "wrong": Outcome.REFUSED}
    assert ".spec: field not declared in schema" in report.results[0].error
    assert ".data.a: expected string" in report.results[1].error


async def test_errors_do_not_contain_secret_values(client: Client, namespace: str) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    broken: list[dict[str, object]] = [
        {"stringData": {"a": 12345678}},
        {"stringData": {"a": ["12345678"]}},
        {"stringData": "12345678"},
        {"data": {"a": "12345678!"}},
        {"data": {"a": 12345678}},
    ]
    for each in broken:
        error = await error_of(apply(make_set(client, namespace), [{**secret, **each}]))
        assert error.kind is Kind.INVALID
        assert "12345678" not in str(error)
    folded = {**secret, "data": {"a": "MTIzNDU2\nNzg=\n"}}
    assert (await apply(make_set(client, namespace), [folded])).ok


async def test_a_deleted_definition_is_re_created_with_its_objects(client: Client, namespace: str) -> None:
    group = f"{namespace}.example"
    manifests = [definition("Thing", group), custom("Thing", group, "one")]
    objects = make_set(client, namespace)
    await apply(objects, manifests)
    await delete_definition(client, f"things.{group}")
    report = await apply(objects, manifests)
    assert report.counts() == {Outcome.CREATED: 2}, report


async def test_an_existing_namespace_is_shared_and_new_objects_in_it_are_owned(client: Client, namespace: str) -> None:
    inner = f"{namespace}-inner"
    await client.create(NAMESPACES, namespace_of(inner), manager="other-client")
    report = await apply(make_set(client, namespace), [namespace_of(inner), config_map("a", inner)])
    assert [(result.outcome, result.shared) for result in report.results] == [
        (Outcome.UNCHANGED, True),
        (Outcome.CREATED, False),
    ]


async def test_an_entry_that_is_no_longer_in_the_plain_text_of_a_secret_is_removed(
    client: Client, namespace: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"c": "Mw=="}}
    objects = make_set(client, namespace)
    assert (await apply(objects, [{**secret, "stringData": {"a": "1", "b": "2"}}])).ok
    assert (await client.get(SECRETS, "s", namespace))["data"] == {"a": "MQ==", "b": "Mg==", "c": "Mw=="}
    assert (await apply(objects, [{**secret, "stringData": {"a": "1", "c": "4"}}])).ok
    assert (await client.get(SECRETS, "s", namespace))["data"] == {"a": "MQ==", "c": "NA=="}
