"""The resources of a runtime on a real API server: applied exactly, taken back, removed, and compared."""

import asyncio
import json

import pytest

from governor.agent.platforms.kubernetes.resources.live_resources import LiveVersion
from governor.agent.platforms.kubernetes.resources.manifests import Manifests
from governor.agent.platforms.kubernetes.resources.outcomes import Outcome
from governor.domain.documents import Drift
from governor.domain.reports import Cause
from governor.errors import Kind
from governor.kube.objects import Object
from governor.process.clock import VirtualClock
from governor.values.trees import Manifest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.agent.apply.bed import (
    COMPONENTS,
    CONFIG_MAPS,
    CONFIGURATIONS,
    EVERY_KIND,
    SECRET_VALUE,
    SECRETS,
    Bed,
    component,
    host_of,
    resource,
    secret_refs,
    secret_store,
)
from tests.contract.kube.applyset.bed import RecordingClient, error_of

OWNER = "runtime-governor.dev/owner"


def secret_name(manifests: Manifests, bed: Bed, name: str = "store") -> str:
    return str(manifests.secrets[bed.ref(name)]["metadata"]["name"])


async def test_every_kind_is_applied_and_an_unchanged_delivery_writes_nothing(
    bed: Bed, client: RecordingClient
) -> None:
    manifests = bed.manifests(*EVERY_KIND)
    applied = await bed.agent.converge(manifests)
    assert applied.ok, applied
    assert {each.outcome for each in applied.results.values()} == {Outcome.APPLIED}
    assert len(applied.written) == len(EVERY_KIND)
    live = await client.get(COMPONENTS, "store", bed.namespace)
    assert live["metadata"]["labels"] == {OWNER: bed.runtime}
    assert {each["manager"] for each in live["metadata"]["managedFields"]} == {f"governor-agent-{bed.runtime}"}
    assert SECRET_VALUE not in json.dumps(live)
    secret = await client.get(SECRETS, secret_name(manifests, bed), bed.namespace)
    assert secret["immutable"] is True
    client.sent.clear()
    # An agent that was restarted derives the same names.
    again = await Bed(client, bed.namespace).agent.converge(bed.manifests(*EVERY_KIND))
    assert {each.outcome for each in again.results.values()} == {Outcome.UNCHANGED}
    assert not client.writes


async def test_the_secrets_of_the_last_verified_bundle_stay_until_the_next_is_verified(bed: Bed) -> None:
    old = bed.manifests(component("store", password="first-pw"))
    new = bed.manifests(component("store", password="other-pw"))
    await bed.agent.converge(old)
    kept = secret_refs(old)
    assert (await bed.agent.converge(new, kept=kept)).ok
    assert await bed.secrets() == {secret_name(old, bed), secret_name(new, bed)}
    assert (await bed.agent.converge(new)).ok
    assert await bed.secrets() == {secret_name(new, bed)}


async def test_a_secret_to_which_a_resource_refers_is_not_removed(bed: Bed, client: RecordingClient) -> None:
    old = bed.manifests(component("store", password="first-pw"))
    await bed.agent.converge(old)
    copied = {**old.resources[bed.ref("store")], "metadata": {"name": "copy", "namespace": bed.namespace}}
    await client.create(COMPONENTS, copied, manager="kubectl")
    new = bed.manifests(component("store"))
    for _ in range(2):
        assert (await bed.agent.converge(new)).ok
        assert await bed.secrets() == {secret_name(old, bed)}
    await client.delete(COMPONENTS, "copy", bed.namespace)
    assert (await bed.agent.converge(new)).ok
    assert not await bed.secrets()


def content(live: Object) -> dict[str, object]:
    labels = live["metadata"].get("labels")
    return {**{key: value for key, value in live.items() if key != "metadata"}, "labels": labels}


async def test_taking_a_change_back_restores_the_previous_objects(bed: Bed, client: RecordingClient) -> None:
    async def contents() -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {}
        for kind in (COMPONENTS, CONFIGURATIONS, SECRETS):
            found |= {
                f"{each['kind']}/{each['metadata']['name']}": content(each)
                async for each in client.list(kind, bed.namespace)
            }
        return found

    settings = resource("Configuration", "settings", spec={"tracing": {"samplingRate": "1"}})
    old = bed.manifests(component("store", password="first-pw"), component("queue"), settings)
    await bed.agent.converge(old)
    before = await contents()
    scoped = component("store", host="elsewhere", password="other-pw", scopes=["a"])
    new = bed.manifests(scoped, component("extra", password="x"))
    assert (await bed.agent.converge(new, kept=secret_refs(old))).ok
    assert await contents() != before
    assert (await bed.agent.converge(old, kept=secret_refs(new))).ok
    assert (await bed.agent.converge(old)).ok
    assert await contents() == before


async def test_an_object_of_another_tool_is_refused_and_nothing_is_written(
    bed: Bed, api: ControlPlane, client: RecordingClient
) -> None:
    theirs = component("queue", host="theirs")
    await api.kubectl("--namespace", bed.namespace, "apply", "--filename=-", stdin=json.dumps(theirs))
    manifests = bed.manifests(component("store"), component("queue"))
    applied = await bed.agent.converge(manifests)
    refused = applied.results[bed.ref("queue")]
    assert (refused.outcome, refused.cause) == (Outcome.FAILED, Cause.CHANGE)
    assert "managed by kubectl-client-side-apply" in refused.text
    assert applied.results[bed.ref("store")].outcome is Outcome.SKIPPED
    assert not applied.written
    assert set(await bed.components()) == {"queue"}
    adopting = Bed(client, bed.namespace, adopt=["kubectl-client-side-apply"])
    assert (await adopting.agent.converge(manifests)).ok
    found = await bed.components()
    assert {name: host_of(each) for name, each in found.items()} == {"queue": "redis:6379", "store": "redis:6379"}
    assert found["queue"]["metadata"]["labels"] == {OWNER: bed.runtime}


async def test_an_object_of_another_runtime_is_refused(bed: Bed, client: RecordingClient) -> None:
    await bed.agent.converge(bed.manifests(component("store")))
    other = Bed(client, bed.namespace, f"{bed.runtime}-2")
    refused = (await other.agent.converge(other.manifests(component("store")))).results[bed.ref("store")]
    assert refused.cause is Cause.CHANGE
    assert f"belongs to {bed.runtime!r}" in refused.text


async def test_only_what_the_agent_wrote_is_removed(bed: Bed, client: RecordingClient) -> None:
    placed = component("theirs")
    placed["metadata"]["namespace"] = bed.namespace
    await client.create(COMPONENTS, placed, manager="kubectl")
    await bed.agent.converge(bed.manifests(component("store"), component("old", password="first-pw")))
    applied = await bed.agent.converge(bed.manifests(component("store"), removals=("old", "theirs", "never")))
    outcomes = {ref.name: each.outcome for ref, each in applied.results.items()}
    assert outcomes == {
        "store": Outcome.UNCHANGED,
        "old": Outcome.REMOVED,
        "theirs": Outcome.FAILED,
        "never": Outcome.UNCHANGED,
    }
    foreign = applied.results[bed.ref("theirs")]
    assert (foreign.cause, "managed by kubectl" in foreign.text) == (Cause.RUNTIME, True)
    assert set(await bed.components()) == {"store", "theirs"}


async def test_after_a_lost_inventory_only_the_removals_of_the_delivery_are_removed(
    bed: Bed, client: RecordingClient
) -> None:
    await bed.agent.converge(bed.manifests(*map(component, ("store", "old", "unlisted"))))
    await client.delete(CONFIG_MAPS, f"governor-agent-{bed.runtime}", bed.namespace)
    manifests = bed.manifests(component("store"), removals=("old",))
    drifted = await bed.agent.find_drift(manifests)
    assert drifted is not None
    assert drifted.texts == {
        bed.ref("store"): "is no longer in the agent's inventory",
        bed.ref("old"): "is back, although the delivery removes it",
    }
    assert drifted.is_repairable
    assert (await bed.agent.converge(manifests)).ok
    assert set(await bed.components()) == {"store", "unlisted"}
    assert await bed.agent.find_drift(manifests) is None


async def test_an_empty_delivery_must_be_allowed(bed: Bed) -> None:
    old = bed.manifests(component("store", password="first-pw"))
    await bed.agent.converge(old)
    kept = secret_refs(old)
    error = await error_of(bed.agent.converge(bed.manifests(), kept=kept))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "delivery-empty")
    assert set(await bed.components()) == {"store"}
    assert (await bed.agent.converge(bed.manifests(), kept=kept, allow_empty=True)).ok
    assert not await bed.components()
    assert await bed.secrets() == {secret_name(old, bed)}
    assert (await bed.agent.converge(bed.manifests(), allow_empty=True)).ok
    assert not await bed.secrets()


async def test_secret_stores_come_before_components_and_removals_last(bed: Bed, client: RecordingClient) -> None:
    await bed.agent.converge(bed.manifests(component("old", password="first-pw")))
    client.sent.clear()
    await bed.agent.converge(bed.manifests(component("a-reader", password="other-pw"), secret_store("z-store")))
    written = [
        (each.method, each.path.rpartition("/")[2].partition("?")[0].rpartition("-")[0] or each.path.rpartition("/")[2])
        for each in client.sent
        if each.method in {"PATCH", "DELETE"} and "dryRun" not in each.query
    ]
    assert written == [
        ("PATCH", "component-a-reader"),
        ("PATCH", "z"),
        ("PATCH", "a"),
        ("DELETE", "old"),
    ]


async def test_live_resources_are_as_delivered_in_spite_of_defaults_of_the_server(
    bed: Bed, client: RecordingClient
) -> None:
    manifests = bed.manifests(*EVERY_KIND)
    assert await bed.agent.read(manifests) == {}
    await bed.agent.converge(manifests)
    client.sent.clear()
    assert {ref: each.manifest for ref, each in (await bed.agent.read(manifests)).items()} == manifests.resources
    lists = [each for each in client.sent if "/dapr.io/" in each.path]
    assert len(lists) == len(EVERY_KIND)
    await client.patch(COMPONENTS, "store", bed.namespace, {"scopes": ["a"]}, manager="kubectl-edit")
    changed = await bed.agent.read(manifests)
    assert changed[bed.ref("store")].manifest == {**manifests.resources[bed.ref("store")], "scopes": ["a"]}
    other = bed.manifests(component("store", host="elsewhere"))
    assert (await bed.agent.read(other)).keys() == changed.keys()


async def test_live_resources_are_as_delivered_whatever_others_write_into_the_metadata(
    bed: Bed, client: RecordingClient
) -> None:
    settings = resource("Configuration", "settings", spec={"tracing": {"samplingRate": "1"}})
    manifests = bed.manifests(settings)
    await bed.agent.converge(manifests)
    noted = {"metadata": {"annotations": {"note": "x"}}}
    await client.patch(CONFIGURATIONS, "settings", bed.namespace, noted, manager="kubectl-annotate")
    assert {ref: each.manifest for ref, each in (await bed.agent.read(manifests)).items()} == manifests.resources
    without = {"spec": {"tracing": None}}
    await client.patch(CONFIGURATIONS, "settings", bed.namespace, without, manager="kubectl-edit")
    [changed] = (await bed.agent.read(manifests)).values()
    assert "tracing" not in changed.manifest["spec"]


@pytest.mark.parametrize("count", [3, 12])
async def test_what_was_written_is_reported_with_its_version(bed: Bed, client: RecordingClient, count: int) -> None:
    """Few are read one by one, many with a list."""
    names = [f"store-{number}" for number in range(count)]
    await bed.agent.converge(bed.manifests(*map(component, names)))
    changed = bed.manifests(*(component(name, host="new") for name in names[1:]))
    client.sent.clear()
    applied = await bed.agent.converge(changed)
    sent = list(client.sent)
    live = await bed.agent.read(changed)
    assert applied.versions == {ref: LiveVersion(each.written, each.version, each.uid) for ref, each in live.items()}
    assert bed.agent.uids == {ref: each.uid for ref, each in live.items()}
    recorded = max(number for number, each in enumerate(sent) if each.method == "PUT")
    assert len(sent[recorded + 1 :]) == (count - 1 if count == 3 else 1)


async def test_a_resource_is_written_some_time_after_a_new_secret_that_it_refers_to(
    client: RecordingClient, namespace: str
) -> None:
    """dapr-operator reads both from caches; if it knows the resource first, the sidecars get no update any more."""
    clock = VirtualClock()
    bed = Bed(client, namespace, clock=clock)

    async def is_pausing() -> bool:
        return clock.sleepers == 1

    running = asyncio.create_task(bed.agent.converge(bed.manifests(component("store", password="first-pw"))))
    await until(is_pausing)
    assert (len(await bed.secrets()), await bed.components()) == (1, {})
    await clock.advance(0.1)
    await until(is_pausing)
    client.sent.clear()
    # Nothing is sent while the sidecars reload, not even to the inventory.
    assert "store" in await bed.components()
    assert [str(each) for each in client.sent if "/components" not in each.path] == []
    await clock.advance(0.05)
    assert (await running).ok
    # The Secret is there already: only the sidecars are waited for.
    other = bed.manifests(component("store", host="other", password="first-pw"))
    running = asyncio.create_task(bed.agent.converge(other))
    await until(is_pausing)
    assert host_of((await bed.components())["store"]) == "other"
    await clock.advance(0.05)
    assert (await running).ok


def changes(value: str) -> Manifest:
    return {"spec": {"metadata": [{"name": "redisHost", "value": value}]}}


async def test_drift_is_found_and_named_without_values(bed: Bed, client: RecordingClient) -> None:
    manifests = bed.manifests(component("store", password="first-pw"), component("queue"), component("same"))
    await bed.agent.converge(manifests)
    assert await bed.agent.find_drift(manifests) is None
    await client.patch(COMPONENTS, "store", bed.namespace, changes("their-password"), manager="kubectl-edit")
    await client.delete(COMPONENTS, "queue", bed.namespace)
    drifted = await bed.agent.find_drift(manifests)
    assert drifted is not None
    assert drifted.is_repairable
    assert drifted.texts.keys() == {bed.ref("store"), bed.ref("queue")}
    assert "by kubectl-edit" in drifted.texts[bed.ref("store")]
    assert "their-password" not in drifted.texts[bed.ref("store")]
    assert drifted.texts[bed.ref("queue")] == "was deleted"


async def test_fields_that_another_client_adds_are_drift(bed: Bed, client: RecordingClient) -> None:
    settings = resource("Configuration", "settings", spec={"tracing": {"samplingRate": "1"}})
    manifests = bed.manifests(component("store"), settings)
    await bed.agent.converge(manifests)
    denied = {"api": {"denied": [{"name": "state", "version": "v1"}]}}
    await client.patch(COMPONENTS, "store", bed.namespace, {"scopes": ["elsewhere"]}, manager="kubectl-edit")
    await client.patch(CONFIGURATIONS, "settings", bed.namespace, {"spec": denied}, manager="other-operator")
    for _ in range(2):
        drifted = await bed.agent.find_drift(manifests)
        assert drifted is not None
        assert not drifted.is_repairable
        assert drifted.texts == {
            bed.ref("store"): "has fields that were not delivered: scopes by kubectl-edit; remove them",
            bed.ref("settings", "Configuration"): (
                "has fields that were not delivered: spec.api by other-operator; remove them"
            ),
        }
        await bed.agent.converge(manifests)
    await client.patch(COMPONENTS, "store", bed.namespace, {"scopes": None}, manager="kubectl-edit")
    await client.patch(CONFIGURATIONS, "settings", bed.namespace, {"spec": {"api": None}}, manager="other-operator")
    assert await bed.agent.find_drift(manifests) is None


async def test_what_others_write_into_the_metadata_is_no_drift(bed: Bed, client: RecordingClient) -> None:
    manifests = bed.manifests(component("store"))
    await bed.agent.converge(manifests)
    noted = {"metadata": {"annotations": {"note": "x"}, "labels": {"team": "a"}}}
    await client.patch(COMPONENTS, "store", bed.namespace, noted, manager="kubectl-annotate")
    assert await bed.agent.find_drift(manifests) is None


async def test_a_deleted_secret_is_drift_of_its_resource(bed: Bed, client: RecordingClient) -> None:
    manifests = bed.manifests(component("store", password="first-pw"))
    await bed.agent.converge(manifests)
    name = secret_name(manifests, bed)
    await client.delete(SECRETS, name, bed.namespace)
    drifted = await bed.agent.find_drift(manifests)
    assert drifted is not None
    assert drifted.texts == {bed.ref("store"): f"its Secret {bed.namespace}/{name} was deleted"}
    assert (await bed.agent.converge(manifests)).ok
    assert await bed.secrets() == {name}


@pytest.mark.parametrize("mode", [Drift.WARN, Drift.OFF])
async def test_drift_is_not_repaired_if_the_policy_does_not_enforce(
    bed: Bed, client: RecordingClient, mode: Drift
) -> None:
    manifests = bed.manifests(component("store"), component("queue"))
    await bed.agent.converge(manifests)
    await client.patch(COMPONENTS, "store", bed.namespace, changes("drifted"), manager="kubectl-edit")
    applied = await bed.agent.converge(manifests, drift=mode)
    assert set(applied.drift) == ({bed.ref("store")} if mode is Drift.WARN else set())
    assert host_of((await bed.components())["store"]) == "drifted"
    # A new delivery is applied all the same.
    assert (await bed.agent.converge(bed.manifests(component("store", host="new")), drift=mode)).ok
    assert host_of((await bed.components())["store"]) == "new"


async def test_drift_is_repaired_until_another_client_insists(bed: Bed, client: RecordingClient) -> None:
    manifests = bed.manifests(component("store"))
    await bed.agent.converge(manifests)
    repaired = 0
    while True:
        await client.patch(COMPONENTS, "store", bed.namespace, changes("theirs"), manager="other-operator")
        applied = await bed.agent.converge(manifests)
        if applied.drift:
            break
        repaired += 1
        assert host_of((await bed.components())["store"]) == "redis:6379"
    assert repaired == 3
    text = applied.drift[bed.ref("store")]
    assert "again after each repair" in text
    assert "by other-operator" in text


async def test_a_resource_that_another_client_creates_again_is_drift(bed: Bed, client: RecordingClient) -> None:
    await bed.agent.converge(bed.manifests(component("store"), component("old")))
    manifests = bed.manifests(component("store"), removals=("old",))
    await bed.agent.converge(manifests)
    assert await bed.agent.find_drift(manifests) is None
    again = component("old")
    again["metadata"]["namespace"] = bed.namespace
    await client.create(COMPONENTS, again, manager="kubectl")
    drifted = await bed.agent.find_drift(manifests)
    assert drifted is not None
    assert "managed by kubectl and not by this agent" in drifted.texts[bed.ref("old")]
    assert not drifted.is_repairable


async def test_a_delivery_of_one_megabyte_is_applied(bed: Bed) -> None:
    large = [component(f"store-{number}", host="x" * 9_000, password="y" * 1_000) for number in range(100)]
    manifests = bed.manifests(*large)
    applied = await bed.agent.converge(manifests)
    assert applied.ok, applied
    assert len(applied.written) == 100
    assert len(await bed.secrets()) == 100
