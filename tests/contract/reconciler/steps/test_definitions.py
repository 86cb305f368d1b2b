"""Definitions of kinds in charts: applied first, upgraded, and not robbed of what operators write into them."""

import base64
import json
from contextlib import suppress

import yaml

from governor.errors import GovernorError
from governor.kube.objects import ApiResource, Object
from tests.contract.kube.applyset.bed import DEFINITIONS, config_map, custom, definition, kind_of
from tests.contract.reconciler.bed import CHART
from tests.contract.reconciler.steps.bed import ModuleBed, listed

WEBHOOKS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    namespaced=False,
)
OBJECTS_TEMPLATE = (CHART / "templates" / "objects.yaml").read_text()


def with_conversion(crd: Object, **client_config: object) -> Object:
    """Return a definition with a conversion webhook, which is not called: there is one version only."""
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": client_config}
    return {**crd, "spec": {**crd["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}}


def webhook_of(name: str, path: str) -> Object:
    service = {"name": "web", "namespace": "default", "path": path}
    rule = {"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}
    webhook = {
        "name": "a.none.example",
        "clientConfig": {"service": service, "caBundle": ""},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    metadata = {"name": name}
    return {"apiVersion": WEBHOOKS.api_version, "kind": WEBHOOKS.kind, "metadata": metadata, "webhooks": [webhook]}


async def test_definitions_come_first_are_upgraded_and_keep_what_an_operator_has_written(bed: ModuleBed) -> None:
    """The chart has placeholders for certificates, which its operator replaces, as Dapr's does."""
    bundle = base64.b64encode(bed.plane.authority.certificate).decode()
    placeholder = {"service": {"name": "web", "namespace": "default", "path": "/convert"}}
    crd = with_conversion(definition("Part", bed.group), **placeholder)
    name, kind = crd["metadata"]["name"], kind_of(crd)
    first = bed.write_chart("first", crds=yaml.safe_dump(crd), objects=OBJECTS_TEMPLATE)
    crd["spec"]["names"]["shortNames"] = ["prt"]
    second = bed.write_chart("second", crds=json.dumps(crd), objects=OBJECTS_TEMPLATE)
    hooks = webhook_of(bed.namespace, "/one")
    await bed.add("parts", chart=first, values=listed(custom("Part", bed.group, "main"), hooks))
    await bed.deploy("parts")
    assert await bed.find(kind, "main") is not None

    written = {"service": {"name": "mine", "namespace": "default", "path": "/mine"}, "caBundle": bundle}
    change: Object = {"spec": {"conversion": {"webhook": {"clientConfig": written}}}}
    await bed.client.patch(DEFINITIONS, name, "", change, manager="operator")
    live = await bed.find(WEBHOOKS, bed.namespace) or {}
    live["webhooks"][0]["clientConfig"]["caBundle"] = bundle
    await bed.client.replace(WEBHOOKS, live, manager="operator")

    more = listed(custom("Part", bed.group, "main"), webhook_of(bed.namespace, "/two"), config_map("a"))
    await bed.add("parts", "2.0.0", chart=second, values=more)
    await bed.deploy("parts", "2.0.0")
    found = await bed.find(DEFINITIONS, name) or {}
    assert found["spec"]["names"]["shortNames"] == ["prt"]
    client_config = found["spec"]["conversion"]["webhook"]["clientConfig"]
    assert client_config["caBundle"] == bundle
    assert client_config["service"]["name"] == "mine"
    live = await bed.find(WEBHOOKS, bed.namespace) or {}
    assert live["webhooks"][0]["clientConfig"]["caBundle"] == bundle
    assert live["webhooks"][0]["clientConfig"]["service"]["path"] == "/two"
    await bed.becomes("parts", "Ready")


async def test_a_definition_that_vanishes_is_created_again_with_its_resources(bed: ModuleBed) -> None:
    crd = definition("Part", bed.group)
    kind, name = kind_of(crd), crd["metadata"]["name"]
    rule = {"group": bed.group, "kind": "Part", "path": "spec.size", "operator": "Equals", "value": 1}
    await bed.add("parts", readiness={"rules": [rule]}, values=listed(crd, custom("Part", bed.group, "main", size=1)))
    await bed.deploy("parts")
    before = await bed.find(kind, "main") or {}
    await bed.client.delete(DEFINITIONS, name)

    async def is_back() -> bool:
        with suppress(GovernorError):  # the kind is not served
            found = await bed.find(kind, "main")
            return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]
        return False

    await bed.until(is_back)
    await bed.becomes("parts", "Ready")


async def test_resources_of_a_kind_that_its_owner_has_deleted_are_reported_until_it_is_back(bed: ModuleBed) -> None:
    crd = definition("Part", bed.group)
    await bed.client.create(DEFINITIONS, crd, manager="user")
    await bed.add("parts", values=listed(custom("Part", bed.group, "main"), config_map("a", n="1")))
    await bed.deploy("parts")
    await bed.client.delete(DEFINITIONS, crd["metadata"]["name"])
    message = f"the cluster does not serve Part in {bed.group}/v1"
    found = await bed.shows("ModuleInstance", "parts.local", lambda each: message in each["status"]["message"])
    assert found["status"]["reason"] == "NotApplied"
    assert found["status"]["actor"] == "operator"
    await bed.client.create(DEFINITIONS, crd, manager="user")
    await bed.becomes("parts", "Ready")
    assert await bed.find(kind_of(crd), "main") is not None


async def test_a_definition_of_another_owner_stays_as_it_is_and_its_kind_is_used(bed: ModuleBed) -> None:
    """As with Helm: many charts bring the definitions of the same kinds, and users install them beforehand."""
    crd = definition("Part", bed.group)
    name, kind = crd["metadata"]["name"], kind_of(crd)
    changed = {**crd, "spec": {**crd["spec"], "names": {**crd["spec"]["names"], "shortNames": ["prt"]}}}
    before = await bed.client.create(DEFINITIONS, crd, manager="kubectl")
    chart = bed.write_chart("parts", crds=yaml.safe_dump(changed), objects=OBJECTS_TEMPLATE)
    for module in ("parts", "more"):
        await bed.add(module, chart=chart, values=listed(custom("Part", bed.group, module)))
        await bed.deploy(module)
        await bed.has_event(module, "Normal", "DefinitionsLeft")
        assert await bed.find(kind, module) is not None
    live = await bed.find(DEFINITIONS, name, "")
    assert (live or {})["metadata"]["generation"] == before["metadata"]["generation"]
    await bed.deploy("parts", values=listed(custom("Part", bed.group, "parts"), config_map("a")))
    await bed.delete("Installation", "parts")
    await bed.gone("ModuleInstance", "parts.local")
    assert (await bed.find(DEFINITIONS, name, "") or {})["metadata"]["uid"] == before["metadata"]["uid"]
    assert await bed.find(kind, "more") is not None


async def test_modules_that_bring_the_same_definition_share_that_of_the_first(bed: ModuleBed) -> None:
    crd = definition("Part", bed.group)
    chart = bed.write_chart("parts", crds=yaml.safe_dump(crd), objects=OBJECTS_TEMPLATE)
    for module in ("first", "second"):
        await bed.add(module, chart=chart, values=listed(custom("Part", bed.group, module)))
        await bed.deploy(module)
    await bed.has_event("second", "Normal", "DefinitionsLeft")
    assert [reason for _, reason in await bed.reasons("second")].count("DefinitionsLeft") == 1
    await bed.delete("Installation", "first")
    found = await bed.shows("ModuleInstance", "first.local", lambda each: "CustomResourcesExist" in str(each["status"]))
    assert "second" in found["status"]["message"]
    await bed.delete("Installation", "second")
    await bed.gone("ModuleInstance", "second.local")
    await bed.gone("ModuleInstance", "first.local")
    assert await bed.find(DEFINITIONS, crd["metadata"]["name"], "") is None
