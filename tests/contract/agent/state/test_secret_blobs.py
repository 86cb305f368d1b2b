"""State in Secrets of a real API server: interrupted and competing writers, damage, permissions."""

import base64
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from governor.agent.state.secret_blobs import SecretBlobs
from governor.errors import GovernorError, Kind
from governor.kube.client import Client, Limits, Request, Transport
from governor.kube.config.access import Access
from governor.kube.objects import ApiResource, Object
from testbed.kube.api_faults import ApiRequest
from testbed.kube.control_plane import ControlPlane
from testbed.waiting import until
from tests.contract.kube.applyset.bed import RecordingClient
from tests.contract.kube.bed import FaultyApi, admin_of, certificate_of

SECRETS = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
INDEX = "governor-state.agent"
LARGE = random.Random(7).randbytes(2_000_000)
CHUNKS = 3


async def opened(client: Client, namespace: str, agent: str = "agent") -> SecretBlobs:
    return await SecretBlobs.open(client, namespace, agent)


async def stored(client: Client, namespace: str) -> dict[str, Object]:
    """Return all Secrets of the namespace by name."""
    return {each["metadata"]["name"]: each async for each in client.list(SECRETS, namespace)}


async def chunks(client: Client, namespace: str) -> list[str]:
    return sorted(set(await stored(client, namespace)) - {INDEX})


async def rejection(call: Any) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        await call
    return caught.value


def after(skipped: int, method: str) -> Callable[[ApiRequest], bool]:
    """Match every request that follows this many requests of a method, as if the process had been killed there."""
    count = 0

    def matches(request: ApiRequest) -> bool:
        nonlocal count
        is_over = count >= skipped
        count += request.method == method
        return is_over and (request.method == method or count > skipped)

    return matches


def hasty(faults: FaultyApi, transport: Transport) -> Client:
    """Return a client through the proxy that does not repeat requests."""
    return Client(transport, faults.access, Limits(attempts=1))


@pytest.mark.parametrize(
    ("skipped", "method", "expected", "orphans"),
    [
        (0, "POST", b"old", 0),
        (1, "POST", b"old", 1),
        (2, "POST", b"old", 2),
        (0, "PUT", b"old", 3),
        (0, "DELETE", LARGE, 1),
    ],
    ids=["before the chunks", "after one chunk", "after two chunks", "before the index", "before the removal"],
)
async def test_a_killed_writer_leaves_the_old_or_the_new_value_and_the_next_start_sweeps(
    client: Client,
    namespace: str,
    faults: FaultyApi,
    transport: Transport,
    skipped: int,
    method: str,
    expected: bytes,
    orphans: int,
) -> None:
    blobs = await opened(hasty(faults, transport), namespace)
    await blobs.write("newest.json", b"old")
    faults.answer(503, times=1000, which=after(skipped, method))
    if expected == b"old":
        assert (await rejection(blobs.write("newest.json", LARGE))).kind is Kind.UNAVAILABLE
    else:
        await blobs.write("newest.json", LARGE)
    used = CHUNKS if expected == LARGE else 1
    assert len(await chunks(client, namespace)) == used + orphans

    next_start = await opened(client, namespace)
    assert await next_start.read("newest.json") == expected
    assert len(await chunks(client, namespace)) == used


async def test_a_failed_write_removes_its_chunks_as_soon_as_it_can(
    client: Client, namespace: str, faults: FaultyApi, transport: Transport
) -> None:
    blobs = await opened(hasty(faults, transport), namespace)
    await blobs.write("newest.json", b"old")
    faults.answer(503, which=after(2, "POST"))
    assert (await rejection(blobs.write("newest.json", LARGE))).kind is Kind.UNAVAILABLE
    assert len(await chunks(client, namespace)) == 1
    await blobs.write("newest.json", LARGE)
    assert await blobs.read("newest.json") == LARGE


async def test_a_lost_response_is_no_conflict(client: Client, namespace: str, faults: FaultyApi) -> None:
    blobs = await opened(faults.client, namespace)
    for data in (b"one", LARGE, b"three"):
        faults.drop_response(which=lambda request: request.method == "PUT")
        await blobs.write("newest.json", data)
        assert await blobs.read("newest.json") == data
    assert len(await chunks(client, namespace)) == 1


async def test_a_write_whose_result_is_unknown_blocks_no_later_one(
    client: Client, namespace: str, faults: FaultyApi, transport: Transport
) -> None:
    blobs = await opened(hasty(faults, transport), namespace)
    await blobs.write("newest.json", b"one")
    # A request that fails on a reused connection is repeated on a new one.
    faults.drop_response(times=2, which=lambda request: request.method == "PUT")
    assert (await rejection(blobs.write("newest.json", b"two"))).kind is Kind.UNAVAILABLE
    assert await blobs.read("newest.json") == b"one"
    await blobs.write("trials.json", b"{}")
    assert (await blobs.read("newest.json"), await blobs.read("trials.json")) == (b"two", b"{}")
    await blobs.write("newest.json", b"three")
    reopened = await opened(client, namespace)
    assert (await reopened.read("newest.json"), len(await chunks(client, namespace))) == (b"three", 1)


async def test_a_deposed_writer_overwrites_nothing(client: Client, namespace: str) -> None:
    deposed = await opened(client, namespace)
    await deposed.write("newest.json", b"first")
    leader = await opened(client, namespace)
    before = await stored(client, namespace)

    calls = (
        deposed.write("newest.json", b"deposed"),
        deposed.write("never-written.json", LARGE),
        deposed.remove("newest.json"),
    )
    for call in calls:
        error = await rejection(call)
        assert (error.kind, error.code) == (Kind.CONFLICT, "state-taken-over")
    assert await stored(client, namespace) == before
    await leader.write("newest.json", b"second")
    assert (await rejection(deposed.read("newest.json"))).code == "state-taken-over"
    assert await leader.read("newest.json") == b"second"


class TestEpoch:
    async def test_each_process_that_opens_the_state_has_a_higher_one(self, client: Client, namespace: str) -> None:
        epochs = [await (await opened(client, namespace)).raise_epoch(above=0) for _ in range(3)]
        assert epochs == [1, 2, 3]

    async def test_it_is_raised_above_one_that_others_remember(self, client: Client, namespace: str) -> None:
        blobs = await opened(client, namespace)
        await blobs.write("newest.json", b"kept")
        assert await blobs.raise_epoch(above=7) == 8
        assert await blobs.raise_epoch(above=3) == 8
        again = await opened(client, namespace)
        assert await again.raise_epoch(above=0) == 9
        assert await again.read("newest.json") == b"kept"

    async def test_a_deposed_process_cannot_raise_it(self, client: Client, namespace: str) -> None:
        deposed = await opened(client, namespace)
        leader = await opened(client, namespace)
        error = await rejection(deposed.raise_epoch(above=await leader.raise_epoch(above=0)))
        assert (error.kind, error.code) == (Kind.CONFLICT, "state-taken-over")
        assert f"was opened by {leader.holder}" in error.message


class Interrupted(Client):
    """Another process opens the state when the index is replaced for the second time.

    With ``is_late`` it does so after the first of two requests, whose response is lost.
    """

    def __init__(self, transport: Transport, access: Access, other: Client, namespace: str, *, is_late: bool) -> None:
        super().__init__(transport, access)
        self.other, self.namespace, self.is_late, self.replaced = other, namespace, is_late, 0

    async def replace(self, resource: ApiResource, manifest: Object, **options: Any) -> Object:
        self.replaced += 1
        if self.replaced == 2:
            if self.is_late:
                await super().replace(resource, manifest, **options)
            await opened(self.other, self.namespace)
        return await super().replace(resource, manifest, **options)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the index", "after the index"])
async def test_a_writer_that_is_deposed_during_a_write_leaves_a_whole_value(
    client: Client, namespace: str, faults: FaultyApi, transport: Transport, is_late: bool
) -> None:
    deposed = await opened(Interrupted(transport, faults.access, client, namespace, is_late=is_late), namespace)
    await deposed.write("newest.json", b"first")
    assert (await rejection(deposed.write("newest.json", LARGE))).code == "state-taken-over"
    assert await (await opened(client, namespace)).read("newest.json") == (LARGE if is_late else b"first")
    assert len(await chunks(client, namespace)) == (CHUNKS if is_late else 1)


async def test_a_user_may_edit_the_metadata_of_the_index(client: Client, namespace: str) -> None:
    blobs = await opened(client, namespace)
    await blobs.write("newest.json", b"one")
    await client.patch(SECRETS, INDEX, namespace, {"metadata": {"labels": {"team": "orders"}}}, manager="user")
    await blobs.write("newest.json", b"two")
    assert await blobs.read("newest.json") == b"two"
    assert (await stored(client, namespace))[INDEX]["metadata"]["labels"]["team"] == "orders"


async def replace_chunk(client: Client, namespace: str, name: str, data: dict[str, bytes]) -> None:
    found = (await stored(client, namespace))[name]
    await client.delete(SECRETS, name, namespace)
    metadata = {"name": name, "namespace": namespace, "labels": found["metadata"]["labels"]}
    await client.create(SECRETS, {**found, "metadata": metadata, "data": data}, manager="user")


@pytest.mark.parametrize(
    "data", [None, {}, {"chunk": b"other"}, "swapped"], ids=["missing", "empty", "other", "swapped"]
)
async def test_a_damaged_value_is_an_error_and_never_absent(
    client: Client, namespace: str, data: dict[str, bytes] | str | None
) -> None:
    await (await opened(client, namespace)).write("newest.json", LARGE)
    first, second, _ = await chunks(client, namespace)
    if data is None:
        await client.delete(SECRETS, first, namespace)
    elif isinstance(data, str):
        copied = (await stored(client, namespace))[second]["data"]["chunk"]
        await replace_chunk(client, namespace, first, {"chunk": base64.b64decode(copied)})
    else:
        await replace_chunk(client, namespace, first, data)
    blobs = await opened(client, namespace)
    error = await rejection(blobs.read("newest.json"))
    assert (error.kind, error.code) == (Kind.PRECONDITION, "state-damaged")
    assert "runtime-governor.dev/agent=agent" in str(error)
    # It can be replaced.
    await blobs.write("newest.json", b"new")
    assert await blobs.read("newest.json") == b"new"


@pytest.mark.parametrize("index", [b"", b"{", b'{"writer":"x","format":3}'], ids=["empty", "torn", "newer"])
async def test_a_damaged_index_is_an_error_and_is_kept(client: Client, namespace: str, index: bytes) -> None:
    blobs = await opened(client, namespace)
    await blobs.write("newest.json", b"one")
    change = {"data": {"index": base64.b64encode(index).decode()}}
    await client.patch(SECRETS, INDEX, namespace, change, manager="user")
    for call in (opened(client, namespace), blobs.write("newest.json", b"two")):
        assert (await rejection(call)).code == "state-damaged"
    assert (await stored(client, namespace))[INDEX]["data"] == change["data"]


async def test_a_deleted_index_is_an_error_as_long_as_there_are_chunks(client: Client, namespace: str) -> None:
    blobs = await opened(client, namespace)
    await blobs.write("newest.json", b"one")
    await client.delete(SECRETS, INDEX, namespace)
    for call in (blobs.write("newest.json", b"two"), opened(client, namespace)):
        error = await rejection(call)
        assert (error.kind, error.code) == (Kind.PRECONDITION, "state-damaged")
    for name in await chunks(client, namespace):
        await client.delete(SECRETS, name, namespace)
    assert await (await opened(client, namespace)).read("newest.json") is None


async def test_secrets_of_others_are_not_touched(client: Client, namespace: str) -> None:
    metadata = {"name": "foreign", "namespace": namespace, "labels": {"runtime-governor.dev/agent": "agent"}}
    foreign: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    await client.create(SECRETS, foreign, manager="user")
    await client.create(SECRETS, {**foreign, "metadata": {**metadata, "name": "governor-state.taken"}}, manager="user")
    await (await opened(client, namespace, "other")).write("newest.json", b"other")
    before = await stored(client, namespace)

    assert (await rejection(opened(client, namespace, "taken"))).code == "state-damaged"
    blobs = await opened(client, namespace)
    await blobs.write("newest.json", b"one")
    await blobs.remove("newest.json")
    after_all = await stored(client, namespace)
    assert {name: after_all[name] for name in before} == before
    assert set(after_all) - set(before) == {INDEX}


async def test_chunks_are_immutable_and_show_what_they_are(client: Client, namespace: str) -> None:
    await (await opened(client, namespace)).write("newest.json", b"confidential")
    (name,) = await chunks(client, namespace)
    secrets = await stored(client, namespace)
    assert secrets[name]["immutable"] is True
    assert {each["type"] for each in secrets.values()} == {"runtime-governor.dev/agent-state"}
    assert secrets[name]["metadata"]["labels"] == {
        "runtime-governor.dev/agent": "agent",
        "runtime-governor.dev/value": "newest.json",
    }


async def test_a_small_value_beside_one_in_chunks_is_stored_by_one_request(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    recording = RecordingClient(transport, admin_of(api))
    blobs = await opened(recording, namespace)
    await blobs.write("private-key.pem", b"confidential")
    methods = []
    for data in (b"one", b"two", LARGE, b"four"):
        recording.sent.clear()
        await blobs.write("newest.json", data)
        methods.append([each.method for each in recording.sent])
    assert methods == [["PUT"], ["PUT"], ["POST"] * CHUNKS + ["PUT"], ["PUT"] + ["DELETE"] * CHUNKS]
    reopened = await opened(client, namespace)
    assert (await reopened.read("newest.json"), await reopened.read("private-key.pem")) == (b"four", b"confidential")
    assert len(await chunks(client, namespace)) == 1


@pytest.mark.parametrize("name", ["", "Agent", "a.b", "-a", "a" * 64])
async def test_an_agent_name_is_a_dns_label(client: Client, namespace: str, name: str) -> None:
    assert (await rejection(opened(client, namespace, name))).kind is Kind.INVALID


ALLOWED = ("get", "list", "create", "update", "delete")


class User:
    """A user without permissions until ``allow``."""

    def __init__(self, api: ControlPlane, transport: Transport, namespace: str) -> None:
        pair = api.authority.issue(namespace, groups=[])
        self.client = Client(transport, Access(api.url, api.authority.certificate, certificate_of(pair)))
        self._api = api
        self._namespace = namespace
        self._rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"

    async def bind(self) -> None:
        """Bind the user to the role that ``allow`` changes."""
        await self._api.ask("POST", f"{self._rbac}/roles", self._role(ALLOWED))
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": "state"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "state"},
            "subjects": [{"kind": "User", "name": self._namespace, "apiGroup": group}],
        }
        await self._api.ask("POST", f"{self._rbac}/rolebindings", binding)
        await self._has(ALLOWED)

    async def allow(self, *verbs: str) -> None:
        """Allow exactly this with Secrets."""
        await self._api.ask("PUT", f"{self._rbac}/roles/state", self._role(verbs))
        await self._has(verbs)

    async def _has(self, verbs: Sequence[str]) -> None:
        """Wait until the API server has noticed."""

        async def is_effective() -> bool:
            return [verb for verb in ALLOWED if await self._may(verb)] == [verb for verb in ALLOWED if verb in verbs]

        await until(is_effective)

    async def _may(self, verb: str) -> bool:
        attributes = {"namespace": self._namespace, "verb": verb, "resource": "secrets"}
        body = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
        review = msgspec.json.encode({**body, "spec": {"resourceAttributes": attributes}})
        answer = await self.client.send(
            Request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        )
        return bool(msgspec.json.decode(answer)["status"]["allowed"])

    def _role(self, verbs: Sequence[str]) -> Object:
        rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": list(verbs)}]
        return {"metadata": {"name": "state"}, "rules": rules}


async def test_without_permission_the_error_says_which_are_needed(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    error = await rejection(opened(User(api, transport, namespace).client, namespace))
    assert (error.kind, error.code) == (Kind.DENIED, "state-denied")
    assert f"namespace {namespace}" in str(error)
    assert "get, list, create, update and delete Secrets" in str(error)


async def test_what_was_denied_is_not_stored_and_leaves_no_chunks(
    api: ControlPlane, client: Client, transport: Transport, namespace: str
) -> None:
    user = User(api, transport, namespace)
    await user.bind()
    blobs = await opened(user.client, namespace)
    await blobs.write("newest.json", b"one")
    await user.allow("get", "list", "create", "delete")
    error = await rejection(blobs.write("newest.json", LARGE))
    assert (error.kind, error.code) == (Kind.DENIED, "state-denied")
    assert await blobs.read("newest.json") == b"one"
    assert len(await chunks(client, namespace)) == 1
