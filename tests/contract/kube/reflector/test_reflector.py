"""The reflector on a healthy API server: what it tells, what it holds, what it leaves out."""

import msgspec
import structlog.testing

from governor.kube.client import Client, Transport
from governor.kube.reflector import Added
from testbed.kube.control_plane import ControlPlane
from tests.contract.kube.bed import admin_of
from tests.contract.kube.reflector.bed import (
    BARE,
    CONFIG_MAPS,
    MANAGER,
    Follower,
    box,
    each,
    following,
    ref,
    until_true,
)

MANY = 10_000
FEW = 100


async def put(client: Client, namespace: str, name: str, size: object, manager: str = MANAGER) -> None:
    await client.apply(CONFIG_MAPS, box(namespace, name, size), manager=manager, force=True)


async def test_objects_are_told_as_they_come_change_and_go(client: Client, namespace: str) -> None:
    await put(client, namespace, "old", 1)
    async with following(client, namespace) as follower:
        assert follower.record.story == [("Added", "old", "1")]
        await put(client, namespace, "new", 2)
        await put(client, namespace, "new", 3)
        await client.delete(CONFIG_MAPS, "old", namespace)
        await follower.holds({"new": "3"})
        assert follower.record.story[1:] == [
            ("Added", "new", "2"),
            ("Changed", "new", "3"),
            ("Removed", "old", "1"),
        ]
        assert (follower.reflector.relists, follower.reflector.reconnects, follower.reflector.last_error) == (0, 0, "")


async def test_nothing_is_told_when_nothing_that_is_read_changed(client: Client, namespace: str) -> None:
    await put(client, namespace, "a", 1)
    async with following(client, namespace) as follower:
        before = follower.reflector.store[ref(namespace, "a")]
        await put(client, namespace, "a", 1, manager="another")
        await client.patch(CONFIG_MAPS, "a", namespace, {"metadata": {"annotations": {"seen": "yes"}}}, manager=MANAGER)
        written = await client.get(CONFIG_MAPS, "a", namespace)
        await put(client, namespace, "barrier", 1)
        await follower.holds({"a": "1", "barrier": "1"})

        assert follower.record.story == [("Added", "a", "1"), ("Added", "barrier", "1")]
        after = follower.reflector.store[ref(namespace, "a")]
        assert len(written["metadata"]["managedFields"]) > 1
        assert before == after
        assert before.metadata.resource_version != after.metadata.resource_version
        assert after.metadata.resource_version == written["metadata"]["resourceVersion"]


async def test_what_is_held_has_the_fields_of_the_view_and_no_others(client: Client, namespace: str) -> None:
    await put(client, namespace, "a", 1)
    written = await client.get(CONFIG_MAPS, "a", namespace)
    async with following(client, namespace) as follower:
        view = follower.reflector.store[ref(namespace, "a")]
        assert msgspec.to_builtins(view) == {
            "metadata": {
                "name": "a",
                "namespace": namespace,
                "uid": written["metadata"]["uid"],
                "resourceVersion": written["metadata"]["resourceVersion"],
            },
            "data": {"size": "1", "owner": ""},
        }


async def test_an_object_that_leaves_the_label_selector_is_removed(client: Client, namespace: str) -> None:
    await client.create(CONFIG_MAPS, box(namespace, "a", 1, labels={"tier": "web"}), manager=MANAGER)
    await client.create(CONFIG_MAPS, box(namespace, "b", 1, labels={"tier": "store"}), manager=MANAGER)
    async with following(client, namespace, labels="tier=web") as follower:
        assert follower.sizes == {"a": "1"}
        for name, tier in (("a", "store"), ("b", "web")):
            await client.patch(CONFIG_MAPS, name, namespace, {"metadata": {"labels": {"tier": tier}}}, manager=MANAGER)
        await follower.holds({"b": "1"})
        assert follower.record.story == [("Added", "a", "1"), ("Removed", "a", "1"), ("Added", "b", "1")]


async def test_a_field_selector_names_one_object(client: Client, namespace: str) -> None:
    async with following(client, namespace, fields="metadata.name=b") as follower:
        for name in "abc":
            await put(client, namespace, name, 1)
        await put(client, namespace, "b", 2)
        await follower.holds({"b": "2"})
        assert {event.ref.name for event in follower.record.events} == {"b"}


async def test_without_a_namespace_all_are_followed(client: Client, namespace: str) -> None:
    async with following(client, namespace) as inside, following(client, "") as everywhere:
        await put(client, namespace, "a", 1)
        await put(client, "default", namespace, 2)
        wanted = {ref(namespace, "a"), ref("default", namespace)}
        await until_true(lambda: wanted <= everywhere.reflector.store.keys())
        await inside.holds({"a": "1"})


async def test_an_index_follows_each_change(client: Client, namespace: str) -> None:
    def owners(follower: Follower, owner: str) -> list[str]:
        return sorted(view.metadata.name for view in follower.reflector.store.find("owner", owner))

    for name, owner in (("a", "x"), ("b", "x"), ("c", "y")):
        await client.create(CONFIG_MAPS, box(namespace, name, owner=owner), manager=MANAGER)
    async with following(client, namespace, indexes={"owner": lambda view: (view.data.owner,)}) as follower:
        assert (owners(follower, "x"), owners(follower, "y"), owners(follower, "z")) == (["a", "b"], ["c"], [])
        await client.patch(CONFIG_MAPS, "a", namespace, {"data": {"owner": "z"}}, manager=MANAGER)
        await client.delete(CONFIG_MAPS, "c", namespace)
        await until_true(lambda: owners(follower, "z") == ["a"] and not owners(follower, "y"))
        assert owners(follower, "x") == ["b"]


async def test_an_object_that_does_not_fit_the_view_hides_no_other(client: Client, namespace: str) -> None:
    await put(client, namespace, "bad", "much")
    await put(client, namespace, "good", 1)
    with structlog.testing.capture_logs() as logs:
        async with following(client, namespace) as follower:
            assert follower.sizes == {"good": "1"}
            await put(client, namespace, "good", "more")
            await put(client, namespace, "last", 1)
            await follower.holds({"good": "1", "last": "1"})
            assert set(follower.reflector.unreadable) == {ref(namespace, "bad"), ref(namespace, "good")}
            await client.delete(CONFIG_MAPS, "bad", namespace)
            await put(client, namespace, "good", 2)
            await follower.holds({"good": "2", "last": "1"})
            assert not follower.reflector.unreadable
    told = [each["object"] for each in logs if each["event"] == "object does not fit its view"]
    assert told == [f"ConfigMap {namespace}/bad", f"ConfigMap {namespace}/good"]


async def test_ten_thousand_objects_are_listed_once_and_followed(
    api: ControlPlane, transport: Transport, namespace: str
) -> None:
    client = Client(transport, admin_of(api), BARE)
    await each(client.create(CONFIG_MAPS, box(namespace, f"box-{n}", n), manager=MANAGER) for n in range(MANY))
    async with following(client, namespace) as follower:
        assert len(follower.reflector.store) == follower.reflector.delivered == MANY
        assert all(isinstance(event, Added) for event in follower.record.events)
        await each(client.delete(CONFIG_MAPS, f"box-{n}", namespace) for n in range(FEW))
        await until_true(lambda: len(follower.reflector.store) == MANY - FEW)
        assert (follower.reflector.relists, follower.reflector.reconnects) == (0, 0)
        assert follower.reflector.delivered == MANY + FEW
