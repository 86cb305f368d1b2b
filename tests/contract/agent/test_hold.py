"""A hold by annotations of the agent's namespace on a real API server, with the permissions of a Role only."""

from collections.abc import Callable

import pytest

from governor.agent.platforms.kubernetes.hold import HOLD_REASON, HOLD_UNTIL, NAMESPACES, NamespaceHold
from governor.domain.windows import Hold, hold_restraint
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Transport
from governor.kube.objects import ApiResource
from governor.process.clock import VirtualClock
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.bed import account_of
from tests.contract.kube.reflector.bed import running, until_true

ACCOUNTS = ApiResource("", "v1", "ServiceAccount", "serviceaccounts", namespaced=True)
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True)
BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)


async def may_read(agent: Client, namespace: str) -> bool:
    """Return whether the agent may read its namespace: the API server sees Roles and their bindings a little later."""
    try:
        await agent.get(NAMESPACES, namespace, metadata_only=True)
    except GovernorError as error:
        if error.kind is not Kind.DENIED:
            raise
        return False
    return True


async def grant(client: Client, agent: Client, namespace: str) -> None:
    """Let the service account of the agent read its own namespace, and nothing else."""
    metadata = {"name": "agent", "namespace": namespace}
    rbac = {"apiVersion": f"{ROLES.group}/v1", "metadata": metadata}
    rule = {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [namespace], "verbs": ["get"]}
    await client.create(ROLES, {**rbac, "kind": "Role", "rules": [rule]}, manager="tests")
    subject = {"kind": "ServiceAccount", "name": "agent", "namespace": namespace}
    reference = {"apiGroup": ROLES.group, "kind": "Role", "name": "agent"}
    binding = {**rbac, "kind": "RoleBinding", "subjects": [subject], "roleRef": reference}
    await client.create(BINDINGS, binding, manager="tests")
    await until(lambda: may_read(agent, namespace))


async def revoke(client: Client, agent: Client, namespace: str) -> None:
    """Take that permission away."""

    async def is_denied() -> bool:
        return not await may_read(agent, namespace)

    await client.delete(BINDINGS, "agent", namespace)
    await until(is_denied)


@pytest.fixture
async def agent(api: ControlPlane, client: Client, namespace: str, transport: Transport) -> Client:
    """The client of an agent's service account without permissions."""
    metadata = {"name": "agent", "namespace": namespace}
    await client.create(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, manager="tests")
    return Client(transport, account_of(api, await api.request_token(namespace, "agent")))


async def annotate(client: Client, namespace: str, until: str | None, reason: str | None = None) -> None:
    annotations = {HOLD_UNTIL: until, HOLD_REASON: reason}
    await client.patch(NAMESPACES, namespace, "", {"metadata": {"annotations": annotations}}, manager="kubectl")


async def test_a_hold_is_found_changed_and_removed(agent: Client, client: Client, namespace: str) -> None:
    await grant(client, agent, namespace)
    clock, changes = VirtualClock(), list[Hold | None]()
    hold = NamespaceHold(agent, namespace, clock, on_change=lambda: changes.append(hold.current))
    await hold.read()
    assert hold.current is None
    async with running(hold.run()):

        async def becomes(expected: Callable[[Hold | None], bool]) -> Hold | None:
            await until_true(lambda: clock.sleepers == 1)
            await clock.advance(5)
            await until_true(lambda: expected(hold.current))
            return hold.current

        await annotate(client, namespace, "2026-01-31T22:00:00+01:00", "database migration")
        held = await becomes(lambda found: found is not None)
        await annotate(client, namespace, "tomorrow")
        unreadable = await becomes(lambda found: found != held)
        await annotate(client, namespace, None)
        await becomes(lambda found: found is None)
    restraint = hold_restraint(held, clock.now())
    assert restraint is not None
    assert restraint.message == "held until 2026-01-31 21:00:00Z: database migration"
    assert changes == [held, unreadable, None]
    assert unreadable is not None
    assert "is not a time such as 2026-01-31T22:00:00Z; correct it, or remove it" in unreadable.reason


async def test_without_the_permission_there_is_no_hold_and_one_that_is_known_stays(
    agent: Client, client: Client, namespace: str
) -> None:
    await annotate(client, namespace, "2026-01-31T22:00:00Z")
    hold, found = NamespaceHold(agent, namespace, VirtualClock(), on_change=lambda: None), list[Hold | None]()

    async def read() -> None:
        await hold.read()
        found.append(hold.current)

    await read()
    await grant(client, agent, namespace)
    await read()
    await revoke(client, agent, namespace)
    await annotate(client, namespace, None)
    await read()
    reason = f"annotation {HOLD_UNTIL} of namespace {namespace}"
    assert [each.reason if each else "" for each in found] == ["", reason, reason]
