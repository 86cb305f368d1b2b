"""Sets whose objects are written as a tenant that has no rights where the inventory is."""

from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.kube.applyset import Claim, Outcome
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource, ObjectRef
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import (
    CONFIG_MAPS,
    INVENTORY,
    NAMESPACES,
    SECRETS,
    RecordingClient,
    config_map,
    error_of,
    exists,
    make_set,
    namespace_of,
    outcomes,
    prune_outcomes,
)
from tests.contract.kube.bed import admin_of

RBAC = "rbac.authorization.k8s.io"
ROLES = ApiResource(RBAC, "v1", "Role", "roles", namespaced=True)
BINDINGS = ApiResource(RBAC, "v1", "RoleBinding", "rolebindings", namespaced=True)


@pytest.fixture
def user(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:deployer"


@pytest.fixture
async def tenant(api: ControlPlane, transport: Transport, client: Client, namespace: str, user: str) -> RecordingClient:
    """A client that impersonates a service account with rights on ConfigMaps of the tenant's namespace."""
    metadata = {"name": "deployer", "namespace": namespace}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch", "delete"]}
    role: dict[str, Any] = {"apiVersion": f"{RBAC}/v1", "metadata": metadata}
    await client.create(ROLES, role | {"kind": "Role", "rules": [rule]}, manager="tests")
    subject = {"kind": "ServiceAccount", "name": "deployer", "namespace": namespace}
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "deployer"}
    binding = role | {"kind": "RoleBinding", "subjects": [subject], "roleRef": reference}
    await client.create(BINDINGS, binding, manager="tests")
    tenant = RecordingClient(transport, admin_of(api)).impersonating(user)

    async def permitted() -> bool:
        try:
            return await exists(tenant, CONFIG_MAPS, "none", namespace) is False
        except GovernorError as error:
            assert error.kind is Kind.DENIED  # noqa: PT017 - the authorizer reads the role from its cache
            return False

    await until(permitted)
    return tenant


@pytest.fixture
async def home(client: Client, namespace: str) -> str:
    """The namespace of the inventory."""
    name = f"{namespace}-home"
    await client.create(NAMESPACES, namespace_of(name), manager="tests")
    return name


async def test_the_inventory_and_the_claim_are_written_with_the_records_client(
    client: Client, tenant: RecordingClient, namespace: str, home: str
) -> None:
    uid = str((await client.get(NAMESPACES, "kube-system"))["metadata"]["uid"])
    manifests = [config_map("a", namespace, x="1"), config_map("b", namespace)]
    claim = Claim("hub", 1, 1, uid)
    assert (await error_of(make_set(tenant, home, claim=claim).converge(manifests))).kind is Kind.DENIED
    tenant.sent.clear()
    objects = make_set(tenant, home, claim=claim, records=client)
    assert (await objects.converge(manifests)).ok
    assert await objects.stored_claim() == claim
    assert await exists(client, CONFIG_MAPS, INVENTORY, home)
    await objects.permit_write()
    assert prune_outcomes((await objects.converge(manifests[:1])).prune) == {"b": "removed"}
    assert prune_outcomes(await objects.delete_all()) == {"a": "removed"}
    assert not await exists(client, CONFIG_MAPS, INVENTORY, home)
    assert not [str(request) for request in tenant.sent if home in request.path or "kube-system" in request.path]


async def test_what_the_tenant_may_not_write_is_an_error_that_names_it(
    client: Client, tenant: RecordingClient, namespace: str, home: str, user: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": namespace}}
    objects = make_set(tenant, home, records=client)
    report = await objects.converge([secret, config_map("a", namespace), config_map("b", home)])
    assert outcomes(report.apply) == {"s": Outcome.REFUSED, "a": Outcome.CREATED, "b": Outcome.REFUSED}
    refused = [result for result in report.apply.results if result.outcome is Outcome.REFUSED]
    assert all(f'User "{user}" cannot patch resource' in result.error for result in refused)
    assert not await exists(client, SECRETS, "s", namespace)
    assert not await exists(client, CONFIG_MAPS, "b", home)
    entries = await objects.inventory()
    assert [ref for ref, entry in entries.items() if entry.uid] == [ObjectRef("", "ConfigMap", namespace, "a")]
