"""The documents of `make demo-reconciler`: the API server accepts them, and it accepts what their charts render."""

import json
from pathlib import Path

from demo.reconciler import documents
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object
from governor.reconciler.kinds import DEFINITIONS
from governor.reconciler.kinds.module import MODULE
from governor.reconciler.render.request import Renderer
from tests.contract.kube.applyset.bed import CONFIG_MAPS, DEPLOYMENTS, SECRETS
from tests.contract.reconciler.render.bed import request_for

ROLE_BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)
SERVICES = ApiResource("", "v1", "Service", "services", namespaced=True)
RESOURCES = {each.kind: each for each in (CONFIG_MAPS, DEPLOYMENTS, ROLE_BINDINGS, SECRETS, SERVICES)}
RESOURCES |= {each.kind: each.resource for each in DEFINITIONS}


async def test_the_documents_and_what_their_charts_render_are_accepted(
    client: Client, namespace: str, renderer: Renderer, tmp_path: Path
) -> None:
    packages = await documents.package(tmp_path)
    modules = documents.versions_of(packages)
    given = [
        *modules,
        documents.channel(orders=documents.BROKEN),
        *documents.installations(),
        documents.sink("https://127.0.0.1/tickets", "certificates"),
        documents.impatient(15),
        documents.editor("jane"),
    ]
    values = [each["spec"].get("values", {}) for each in modules if each["kind"] == MODULE.kind]
    rendered = list[Object]()
    for packed, own in zip(packages, values, strict=True):
        found = await renderer.render(request_for(packed.file, own))
        rendered += [each.object for each in found.objects]
    assert [each["kind"] for each in rendered if each["metadata"]["name"] == "store"] == [
        "Secret",
        "Service",
        "Deployment",
    ]
    assert json.dumps(rendered).count(documents.MISSING_IMAGE) == 1, "one version is broken"
    for each in (*given, *rendered):
        manifest = {**each, "metadata": {**each["metadata"], "namespace": namespace}}
        stored = await client.apply(RESOURCES[each["kind"]], manifest, manager="user", force=True)
        if each["kind"] in {kind.kind for kind in DEFINITIONS}:
            assert stored["spec"].items() >= each["spec"].items(), "no field is unknown"
