"""What a failed apply is due to: the change, the agent or the runtime; and that nothing is lost by it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from governor.agent.platforms.kubernetes.resources.outcomes import Applied, Outcome
from governor.domain.reports import Cause
from governor.errors import Kind
from governor.kube.client import Client, Limits, Transport
from governor.kube.objects import Object
from governor.process.flowcontrol.backoff import Backoff
from governor.process.flowcontrol.breaker import BreakerPolicy
from governor.values.trees import Manifest
from testbed.kube.api_faults import ApiRequest, Matches
from testbed.kube.control_plane import ControlPlane
from testbed.kube.webhooks import HANG, Decide, Webhook
from testbed.waiting import until
from tests.contract.agent.apply.bed import (
    COMPONENTS,
    CONFIG_MAPS,
    EVERY_KIND,
    NAMESPACES,
    WEBHOOKS,
    Bed,
    component,
    host_of,
    resource,
    secret_refs,
)
from tests.contract.kube.applyset.bed import RecordingClient, error_of
from tests.contract.kube.bed import FaultyApi, account_of

ROLE = "agent"


@pytest.fixture
def no_retry(faults: FaultyApi, transport: Transport) -> Client:
    """A client that does not retry, so that each fault reaches the agent."""
    breaker = BreakerPolicy(failures=1000, backoff=Backoff(initial_s=0.01, max_s=0.01))
    return Client(transport, faults.access, Limits(attempts=1, breaker=breaker))


def only_failure(applied: Applied) -> tuple[str, Cause | None, str]:
    [(ref, failed)] = applied.failures.items()
    return ref.name, failed.cause, failed.text


def is_write(name: str) -> Matches:
    """Match the write of a Component that is not a dry run."""

    def matches(request: ApiRequest) -> bool:
        return (
            request.method == "PATCH" and request.path.endswith(f"/components/{name}") and "dryRun" not in request.query
        )

    return matches


@asynccontextmanager
async def webhook_in(api: ControlPlane, bed: Bed, decide: Decide) -> AsyncIterator[Webhook]:
    """Run a webhook for the Components of a namespace, active when this returns."""
    async with Webhook(api.authority, decide) as webhook:
        rule = {"apiGroups": ["dapr.io"], "apiVersions": ["*"], "resources": ["components"], "operations": ["*"]}
        hook = {
            "name": "fridays.example.com",
            "clientConfig": webhook.client_config,
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1,
        }
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": bed.namespace},
            "webhooks": [hook],
        }
        await bed.client.create(WEBHOOKS, configuration, manager="tests")
        probe = component("probe")
        probe["metadata"]["namespace"] = bed.namespace

        async def is_active() -> bool:
            await bed.client.create(COMPONENTS, probe, manager="tests", dry_run=True)
            return bool(webhook.requests)

        await until(is_active)
        yield webhook
        await bed.client.delete(WEBHOOKS, bed.namespace)


async def test_a_webhook_that_denies_a_part_is_the_changes_fault_and_nothing_is_written(
    api: ControlPlane, bed: Bed
) -> None:
    await bed.agent.converge(bed.manifests(component("a", password="first-pw")))
    before = await bed.components()
    async with webhook_in(api, bed, lambda review: "not on Fridays" if review["name"] == "b" else ""):
        applied = await bed.agent.converge(bed.manifests(component("a", password="other-pw"), component("b")))
    name, cause, text = only_failure(applied)
    assert (name, cause) == ("b", Cause.CHANGE)
    assert "not on Fridays" in text
    assert str(applied).startswith("written: nothing; not written: Component/")
    assert await bed.components() == before
    assert len(await bed.secrets()) == 1


async def test_a_webhook_that_does_not_respond_is_the_runtimes_fault(api: ControlPlane, bed: Bed) -> None:
    async with webhook_in(api, bed, lambda review: HANG if review["name"] == "b" else ""):
        applied = await bed.agent.converge(bed.manifests(component("b")))
    name, cause, text = only_failure(applied)
    assert (name, cause) == ("b", Cause.RUNTIME)
    assert "fridays.example.com" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {**component("b"), "spec": {"version": "v1", "metadata": []}},
        {**component("b"), "spec": {"type": 5, "version": "v1", "metadata": []}},
        {**component("b"), "spec": {"type": "state.redis", "version": "v1", "metadata": [], "unknown": 1}},
    ],
    ids=["required", "type", "unknown"],
)
async def test_a_violation_of_the_schema_is_the_changes_fault(bed: Bed, wrong: Manifest) -> None:
    applied = await bed.agent.converge(bed.manifests(component("a"), wrong))
    assert only_failure(applied)[:2] == ("b", Cause.CHANGE)
    assert not await bed.components()


async def test_a_secret_that_is_too_large_is_a_failure_of_its_resource(bed: Bed) -> None:
    applied = await bed.agent.converge(bed.manifests(component("a"), component("b", password="x" * 1_100_000)))
    name, cause, text = only_failure(applied)
    assert (name, cause) == ("b", Cause.CHANGE)
    assert text.startswith(f"its Secret {bed.namespace}/component-b-")
    assert "xxx" not in text
    assert not await bed.secrets()


async def test_labels_of_the_apply_set_in_a_resource_are_the_changes_fault(bed: Bed) -> None:
    wrong = component("b")
    wrong["metadata"]["labels"] = {"runtime-governor.dev/owner": "me"}
    applied = await bed.agent.converge(bed.manifests(component("a"), wrong))
    name, cause, text = only_failure(applied)
    assert (name, cause) == ("b", Cause.CHANGE)
    assert "is set by the apply set" in text


async def test_a_missing_namespace_is_the_runtimes_fault_and_heals(bed: Bed, client: RecordingClient) -> None:
    missing = f"{bed.namespace}-missing"
    other = Bed(client, missing)
    agent = type(other.agent)(client, bed.runtime, bed.namespace, [missing], other.redactor)
    applied = await agent.converge(other.manifests(component("a")))
    name, cause, text = only_failure(applied)
    assert (name, cause) == ("a", Cause.RUNTIME)
    assert f'namespaces "{missing}" not found' in text
    await client.create(NAMESPACES, namespace_manifest(missing), manager="tests")
    assert (await agent.converge(other.manifests(component("a")))).ok


async def test_a_terminating_namespace_is_the_runtimes_fault(bed: Bed, client: RecordingClient) -> None:
    ending = f"{bed.namespace}-ending"
    await client.create(NAMESPACES, namespace_manifest(ending), manager="tests")
    await client.delete(NAMESPACES, ending)  # without controllers it terminates for ever
    other = Bed(client, ending)
    agent = type(other.agent)(client, bed.runtime, bed.namespace, [ending], other.redactor)
    name, cause, text = only_failure(await agent.converge(other.manifests(component("a"))))
    assert (name, cause) == ("a", Cause.RUNTIME)
    assert "is being terminated" in text


async def test_a_conversion_webhook_that_is_down_is_the_runtimes_fault(bed: Bed) -> None:
    """Without dapr-operator the server cannot convert an old Subscription."""
    old = resource("Subscription", "old", spec={"pubsubname": "p", "topic": "t", "route": "/o"})
    name, cause, text = only_failure(await bed.agent.converge(bed.manifests(old)))
    assert (name, cause) == ("old", Cause.RUNTIME)
    assert "conversion webhook" in text


def namespace_manifest(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def account(api: ControlPlane, bed: Bed, *rules: Manifest) -> str:
    """Create an account with these rules in the namespace and return its token."""
    subject = {"kind": "ServiceAccount", "name": ROLE, "namespace": bed.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE}
    group = "rbac.authorization.k8s.io/v1"
    items = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ROLE}},
        {"apiVersion": group, "kind": "Role", "metadata": {"name": ROLE}, "rules": rules},
        {
            "apiVersion": group,
            "kind": "RoleBinding",
            "metadata": {"name": ROLE},
            "roleRef": role,
            "subjects": [subject],
        },
    ]
    manifests = {"apiVersion": "v1", "kind": "List", "items": items}
    await api.kubectl("--namespace", bed.namespace, "apply", "--filename=-", stdin=json.dumps(manifests))
    return await api.request_token(bed.namespace, ROLE)


def rule(group: str, *resources: str, verbs: tuple[str, ...] = ("*",)) -> Manifest:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


async def test_a_missing_permission_is_the_agents_fault_and_is_named(
    api: ControlPlane, bed: Bed, transport: Transport
) -> None:
    read = ("get", "list", "watch")
    token = await account(api, bed, rule("", "configmaps", "secrets"), rule("dapr.io", "*", verbs=(*read, "create")))
    limited = Bed(Client(transport, account_of(api, token)), bed.namespace)
    manifests = limited.manifests(component("a", password="first-pw"))

    expected = (
        f"the agent may not patch components.dapr.io in namespace {bed.namespace}: grant that to its ServiceAccount"
    )
    assert only_failure(await limited.agent.converge(manifests)) == ("a", Cause.AGENT, expected)
    assert not await bed.components()


async def test_without_access_to_its_inventory_the_agent_names_the_permission(
    api: ControlPlane, bed: Bed, transport: Transport
) -> None:
    token = await account(api, bed, rule("dapr.io", "*"))
    limited = Bed(Client(transport, account_of(api, token)), bed.namespace)
    error = await error_of(limited.agent.converge(limited.manifests(component("a"))))
    assert error.kind is Kind.DENIED
    assert error.message.startswith(f"the agent may not get configmaps in namespace {bed.namespace}: ")


async def test_permissions_that_are_taken_away_leave_what_is_applied(
    api: ControlPlane, bed: Bed, transport: Transport
) -> None:
    token = await account(api, bed, rule("", "configmaps", "secrets"), rule("dapr.io", "*"))
    limited = Bed(Client(transport, account_of(api, token)), bed.namespace)
    assert (await limited.agent.converge(limited.manifests(component("a", host="old")))).ok
    await api.kubectl("--namespace", bed.namespace, "delete", f"rolebinding/{ROLE}")

    async def is_denied() -> bool:
        return (await error_of(limited.client.get(CONFIG_MAPS, "any", bed.namespace))).kind is Kind.DENIED

    await until(is_denied)
    error = await error_of(limited.agent.converge(limited.manifests(component("a", host="new"))))
    assert error.kind is Kind.DENIED
    assert host_of((await bed.components())["a"]) == "old"


@pytest.mark.parametrize("status", [409, 429])
async def test_a_conflict_and_a_busy_server_are_retried(faults: FaultyApi, bed: Bed, status: int) -> None:
    faulty = Bed(faults.client, bed.namespace)
    content = json.dumps(
        {"kind": "Status", "code": status, "reason": "Conflict" if status == 409 else "TooManyRequests"}
    )
    headers = {"Content-Type": "application/json", "Retry-After": "0"}
    faults.answer(status, which=is_write("a"), headers=headers, content=content.encode())
    assert (await faulty.agent.converge(faulty.manifests(component("a"), component("b")))).ok


async def test_what_was_written_is_known_if_the_server_fails_in_between(
    faults: FaultyApi, no_retry: Client, bed: Bed
) -> None:
    old = bed.manifests(component("a", host="old"), component("b", host="old", password="first-pw"), component("gone"))
    await bed.agent.converge(old)
    faulty = Bed(no_retry, bed.namespace)
    new = faulty.manifests(component("a", host="new"), component("b", host="new", password="other-pw"))
    faults.answer(503, which=is_write("b"))
    applied = await faulty.agent.converge(new, kept=secret_refs(old))
    assert only_failure(applied)[:2] == ("b", Cause.AGENT)
    assert applied.written == (bed.ref("a"),)
    assert applied.results[bed.ref("gone")].outcome is Outcome.SKIPPED
    prefix = f"Component/{bed.namespace}"
    assert str(applied) == f"written: {prefix}/a; not written: {prefix}/b, {prefix}/gone"
    hosts = {name: host_of(each) for name, each in (await bed.components()).items()}
    assert hosts == {"a": "new", "b": "old", "gone": "redis:6379"}
    assert len(await bed.secrets()) == 2  # of the state in force, and of the next one
    assert (await faulty.agent.converge(new)).ok
    assert set(await bed.components()) == {"a", "b"}


async def test_if_the_inventory_cannot_be_written_at_last_the_report_says_so(
    faults: FaultyApi, no_retry: Client, bed: Bed
) -> None:
    faulty = Bed(no_retry, bed.namespace)
    manifests = faulty.manifests(*EVERY_KIND)
    name = f"/governor-agent-{bed.runtime}"
    faults.answer(503, which=lambda request: request.method == "PUT" and request.path.endswith(name))
    applied = await faulty.agent.converge(manifests)
    assert not applied.ok
    assert applied.error.startswith("what was written could not be recorded")
    assert len(applied.written) == len(EVERY_KIND)
    assert (await faulty.agent.converge(manifests)).ok
