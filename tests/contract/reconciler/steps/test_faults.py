"""Modules on a cluster that refuses, and with charts that cannot be used."""

import pytest

from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource, Object
from governor.process.flowcontrol.backoff import Backoff
from governor.reconciler.controllers import module_instances
from testbed.pytest_plugin import StartControlPlane
from tests.contract.kube.applyset.bed import CONFIG_MAPS, NAMESPACES, config_map, deployment, exists
from tests.contract.kube.bed import FaultyApi, admin_of
from tests.contract.kube.controller.bed import until_true
from tests.contract.reconciler.bed import state
from tests.contract.reconciler.steps.bed import ModuleBed, listed

FOREIGN_CLAIM = '{"claim":{"holder":"elsewhere/hub","epoch":1,"generation":1,"cluster_uid":"x"},"settled":true}'

QUOTAS = ApiResource("", "v1", "ResourceQuota", "resourcequotas", namespaced=True)
SERVICES = ApiResource("", "v1", "Service", "services", namespaced=True)


async def test_what_an_admission_policy_refuses_is_the_users_and_is_applied_when_the_policy_is_gone(
    bed: ModuleBed,
) -> None:
    await bed.refuse("b")
    await bed.add("orders", values=listed(config_map("a"), config_map("b")))
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "NotApplied")
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "not on my cluster" in found["status"]["message"]
    await bed.has_event("orders", "Warning", "NotApplied")
    await bed.accept("b")
    await bed.becomes("orders", "Ready")
    assert await bed.data("b") == {}


async def test_a_quota_holds_back_a_module_until_it_is_raised(bed: ModuleBed) -> None:
    metadata = {"name": "few", "namespace": bed.space}
    spec = {"hard": {"count/configmaps": "1"}}
    quota: Object = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}
    await bed.client.create(QUOTAS, quota, manager="user")
    used = {"hard": {"count/configmaps": "1"}, "used": {"count/configmaps": "1"}}
    await bed.write_status(QUOTAS, "few", used)
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "NotApplied")
    assert "exceeded quota: few" in found["status"]["message"]
    await bed.client.delete(QUOTAS, "few", bed.space)
    await bed.becomes("orders", "Ready")


async def test_an_immutable_field_is_refused_with_what_to_do_and_the_rest_stays_as_it_is(bed: ModuleBed) -> None:
    def values(app: str) -> Object:
        changed = deployment("web")
        changed["spec"]["selector"]["matchLabels"] = {"app": app}
        changed["spec"]["template"]["metadata"]["labels"] = {"app": app}
        return listed(changed, config_map("a", app=app))

    await bed.add("orders")
    await bed.install("orders", "orders", values=values("one"))
    await bed.is_applied("orders", values=values("one"))
    await bed.install("orders", "orders", values=values("two"))
    found = await bed.becomes("orders", "NotApplied", values=values("two"))
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "spec.selector is immutable" in found["status"]["message"]
    assert "modules.runtime-governor.dev/recreate: on-immutable" in found["status"]["message"]


async def test_objects_of_others_are_not_taken_over(bed: ModuleBed) -> None:
    await bed.client.create(CONFIG_MAPS, config_map("a", bed.space, n="theirs"), manager="kubectl")
    await bed.add("orders", values=listed(config_map("a", n="ours")))
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "NotApplied")
    assert "exists already and is managed by kubectl" in found["status"]["message"]
    assert await bed.data("a") == {"n": "theirs"}
    await bed.add("other", values=listed(config_map("b")))
    await bed.deploy("other")
    await bed.add("thief", values=listed(config_map("module-other", bed.namespace), config_map("b")))
    await bed.install("thief", "thief")
    found = await bed.becomes("thief", "NotApplied")
    assert "belongs to 'other." in found["status"]["message"]
    assert "module-other: refused: exists already" in found["status"]["message"]
    await bed.becomes("other", "Ready")


async def test_a_namespace_that_does_not_go_away_holds_back_a_module_and_is_reported(bed: ModuleBed) -> None:
    await bed.client.delete(NAMESPACES, bed.space)
    await bed.add("orders", readiness={"timeoutSeconds": 60}, values=listed(config_map("a")))
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "Terminating")
    assert (state(found), found["status"].get("actor")) == ("Processing", None)
    assert "is being terminated" in found["status"]["message"]
    await bed.advance(61.0)
    found = await bed.becomes("orders", "Warning")
    assert found["status"]["message"].startswith("not deleted within 60 s: ")
    await bed.finalize_namespace(bed.space)
    await bed.becomes("orders", "Ready")


async def test_the_claim_of_another_hub_is_respected(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a", n="1")))
    await bed.deploy("orders")
    await bed.write_inventory("orders", FOREIGN_CLAIM, labelled=True)
    found = await bed.becomes("orders", "Claimed")
    assert (state(found), found["status"]["actor"]) == ("Error", "operator")
    assert "managed by another hub, elsewhere/hub" in found["status"]["message"]
    await bed.edit("a", n="2")
    values = listed(config_map("a", n="3"))
    await bed.install("orders", "orders", values=values)
    await bed.becomes("orders", "Claimed", values=values)
    assert await bed.data("a") == {"n": "2"}
    await bed.client.delete(CONFIG_MAPS, "module-orders", bed.namespace)
    await bed.becomes("orders", "Ready")
    assert await bed.data("a") == {"n": "3"}
    await bed.write_inventory("orders", FOREIGN_CLAIM, labelled=True)
    await bed.becomes("orders", "Claimed")
    await bed.delete("Installation", "orders")
    await bed.gone("ModuleInstance", "orders.local")
    assert await bed.data("a") == {"n": "3"}


async def test_two_hubs_that_install_a_module_at_once_do_not_take_it_from_each_other(bed: ModuleBed) -> None:
    """This one has not seen the inventory of the other when it begins, and its own claim is newer."""
    await bed.write_inventory("orders", FOREIGN_CLAIM, labelled=False)
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("orders", "orders")
    found = await bed.becomes("orders", "Claimed")
    assert "elsewhere/hub" in found["status"]["message"]
    assert await bed.data("a") is None


async def test_two_installations_of_one_module_leave_it_as_it_is(bed: ModuleBed) -> None:
    await bed.add("orders", values=listed(config_map("a", n="1")))
    await bed.deploy("orders")
    await bed.install("second", "orders", values=listed(config_map("b")))
    await bed.becomes("orders", "Conflict")
    assert await bed.data("a") == {"n": "1"}
    await bed.delete("Installation", "orders")
    await bed.becomes("orders", "Ready", values=listed(config_map("b")))
    await bed.has_data("a", None)


async def test_a_chart_that_cannot_be_used_changes_nothing_and_is_the_operators(bed: ModuleBed) -> None:
    template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {version: {{ .Values.version | quote }}}\n"
    chart = bed.write_chart("orders", a=template)
    await bed.add("orders", chart=chart, values={"version": "1"})
    await bed.deploy("orders")
    down = {"archive": "http://127.0.0.1:9/a.tgz", "digest": f"sha256:{0:064x}"}
    wrong = {"directory": str(chart), "digest": f"sha256:{1:064x}"}
    for version, source, reason in (("2.0.0", down, "ChartUnavailable"), ("1.1.0", wrong, "DigestMismatch")):
        await bed.add_module("orders", version, chart=source, namespace=bed.space)
        await bed.install("orders", "orders", version)
        found = await bed.becomes("orders", reason, version=version)
        assert found["status"]["lastApplied"]["version"] == "1.0.0"
    assert (state(found), found["status"]["actor"]) == ("Error", "operator")
    assert await bed.data("a") == {"version": "1"}
    await bed.deploy("orders", "1.0.0")


async def test_a_chart_of_five_megabytes_is_installed(bed: ModuleBed) -> None:
    template = (
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {size: {{ .Files.Get "big" | len | quote }}}\n'
    )
    chart = bed.write_chart("big", a=template)
    (chart / "big").write_text("0123456789abcdef" * 327_680)
    await bed.add("big", chart=chart)
    await bed.deploy("big")
    assert await bed.data("a") == {"size": "5242880"}


async def test_wrong_values_are_the_users_and_leave_the_module_as_it_is(bed: ModuleBed) -> None:
    template = (
        'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {v: {{ required "set v" .Values.v | quote }}}\n'
    )
    await bed.add("orders", chart=bed.write_chart("orders", a=template))
    await bed.deploy("orders", values={"v": "1"})
    await bed.install("orders", "orders", values={"w": "2"})
    found = await bed.becomes("orders", "RenderFailed", values={"w": "2"})
    assert (state(found), found["status"]["actor"]) == ("Warning", "user")
    assert "set v" in found["status"]["message"]
    assert await bed.data("a") == {"v": "1"}


async def test_lost_answers_of_the_api_server_delay_a_module_and_duplicate_nothing(
    idle: ModuleBed, faults: FaultyApi
) -> None:
    """Each write of the install is performed once without the reconciler receiving the answer."""
    names = [f"o{number}" for number in range(4)]
    await idle.add("orders", values=listed(*(config_map(each) for each in names)))
    faults.drop_response(
        times=6, which=lambda each: each.method in {"POST", "PUT", "PATCH"} and idle.space in each.path
    )
    async with idle.reconciling(faults.access):
        await idle.install("orders", "orders")
        found = await idle.becomes("orders", "Ready")
    assert "operation" not in found["status"]["lastApplied"], "an install"
    assert "history" not in found["status"]
    listed_names = {each["metadata"]["name"] async for each in idle.client.list(CONFIG_MAPS, idle.space)}
    assert listed_names >= set(names)


async def test_a_cluster_that_answers_nonsense_stops_no_other(bed: ModuleBed, faults: FaultyApi) -> None:
    faults.answer(200, times=1_000_000, content=b'{"metadata": {}}', headers={"Content-Type": "application/json"})
    await bed.add_cluster("odd", bed.plane, faults.url)
    await bed.add("orders", values=listed(config_map("a")))
    await bed.install("everywhere", "orders", clusterSelector={})
    await bed.shows("ModuleInstance", "orders.odd", lambda each: each["spec"])
    await until_true(lambda: faults.count() > 2)
    await bed.becomes("orders", "Ready")


async def test_a_remote_cluster_whose_api_server_restarts_gets_a_module_and_keeps_nothing_of_it(
    idle: ModuleBed, start_control_plane: StartControlPlane
) -> None:
    plane = await start_control_plane()
    names = [f"o{number}" for number in range(40)]
    async with Transport() as transport, idle.reconciling():
        remote = Client(transport, admin_of(plane))
        await idle.add_cluster("eu", plane)
        await idle.add("orders", namespace="default", values=listed(*(config_map(each) for each in names)))
        await idle.shows("Cluster", "eu", lambda each: state(each) == "Ready")
        await idle.install("orders", "orders", cluster="eu")

        async def applied() -> set[str]:
            return {each["metadata"]["name"] async for each in remote.list(CONFIG_MAPS, "default")} & set(names)

        await idle.until(applied)
        await plane.api.kill()
        await plane.api.start()
        await idle.shows("ModuleInstance", "orders.eu", lambda each: each["status"].get("state") == "Ready")
        assert await applied() == set(names)
        assert await exists(remote, CONFIG_MAPS, "module-orders", idle.namespace)
        await idle.delete("Installation", "orders")
        await idle.gone("ModuleInstance", "orders.eu")
        assert await applied() == set()
        found = await remote.get(NAMESPACES, idle.namespace)
        assert "deletionTimestamp" in found["metadata"]


async def test_a_module_that_is_refused_is_not_applied_again_before_its_backoff_is_over(
    bed: ModuleBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt writes the inventory before and after it: these writes must not cause the next one."""
    monkeypatch.setattr(module_instances, "BACKOFF", Backoff(initial_s=3600.0, max_s=3600.0))
    await bed.stop()
    await bed.start()
    refused = config_map("a") | {"data": {"number": 1}}
    await bed.add("orders", values=listed(refused))
    await bed.install("orders", "orders")
    await bed.becomes("orders", "NotApplied")
    inventories = []
    for number in range(3):
        await bed.add(f"m{number}", values=listed(config_map(f"m{number}")))
        await bed.deploy(f"m{number}")
        found = await bed.find(CONFIG_MAPS, "module-orders", bed.namespace)
        inventories.append((found or {})["metadata"]["resourceVersion"])
    assert len({*inventories[1:]}) == 1, "the first attempt may be followed by one for its own first write"
    await bed.install("orders", "orders", values=listed(config_map("a", number="1")))
    await bed.becomes("orders", "Ready", values=listed(config_map("a", number="1")))
