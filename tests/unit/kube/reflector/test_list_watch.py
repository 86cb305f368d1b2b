"""List and watch against a model of a server: whatever happens in between, what is held ends as what is there."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.errors import ApiError, Status
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import View
from governor.kube.reflector.list_watch import ListWatch, WatchError
from governor.kube.reflector.store import Added, Changed, Event, Removed, WritableStore

RESOURCE = ApiResource("example.dev", "v1", "Thing", "things", namespaced=False)
PAGE = 2
GONE = Status(kind="Status", message="too old resource version", reason="Expired", code=410)

encode = msgspec.json.encode


class Thing(View, frozen=True):
    size: int


class Server:
    """The part of an API server that list and watch speak to: a revision per write, of which old ones are forgotten."""

    def __init__(self) -> None:
        self.revision = 1
        self.forgotten = 0
        self.objects: dict[str, Object] = {}
        self._events: list[tuple[int, str, Object]] = []
        self._snapshots: dict[int, list[Object]] = {}

    def write(self, name: str, size: object, note: int = 0) -> None:
        event = "MODIFIED" if name in self.objects else "ADDED"
        self.revision += 1
        uid = self.objects[name]["metadata"]["uid"] if name in self.objects else f"uid-{self.revision}"
        metadata: Object = {
            "name": name,
            "uid": uid,
            "resourceVersion": str(self.revision),
            "managedFields": [{}] * note,
        }
        self.objects[name] = {"metadata": metadata, "size": size, "status": {"note": note}}
        self._events.append((self.revision, event, self.objects[name]))

    def touch(self, name: str) -> None:
        """Change what no view reads."""
        if name in self.objects:
            self.write(name, self.objects[name]["size"], self.objects[name]["status"]["note"] + 1)

    def delete(self, name: str) -> None:
        if name in self.objects:
            last = self.objects.pop(name)
            self.revision += 1
            metadata = last["metadata"] | {"resourceVersion": str(self.revision)}
            self._events.append((self.revision, "DELETED", last | {"metadata": metadata}))

    def compact(self) -> None:
        self.forgotten = self.revision

    def page(self, query: dict[str, str]) -> bytes:
        revision, start = map(int, query["continue"].split(":")) if "continue" in query else (self.revision, 0)
        if revision < self.forgotten:
            raise ApiError("list", 410, GONE)
        items = self._snapshots.setdefault(revision, list(self.objects.values()))
        more = f"{revision}:{start + PAGE}" if start + PAGE < len(items) else ""
        position = {"resourceVersion": str(revision), "continue": more}
        return encode({"kind": "ThingList", "metadata": position, "items": items[start : start + PAGE]})

    def lines(self, query: dict[str, str]) -> list[bytes]:
        since = int(query["resourceVersion"])
        if since < self.forgotten:
            raise ApiError("watch", 410, GONE)
        lines = [_line(event, thing) for revision, event, thing in self._events if revision > since]
        return [*lines, _line("BOOKMARK", {"metadata": {"resourceVersion": str(self.revision)}})]

    def readable(self) -> dict[str, tuple[str, int]]:
        return {name: seen for name, seen in map(_seen, self.objects.values()) if isinstance(seen[1], int)}


def _seen(thing: Object) -> tuple[str, tuple[str, Any]]:
    return thing["metadata"]["name"], (thing["metadata"]["uid"], thing["size"])


def _line(event: str, thing: Object) -> bytes:
    return encode({"type": event, "object": thing})


class Follower:
    """A client of that server, with a record of events that is itself checked as it grows."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.store: WritableStore[Thing] = WritableStore({"size": lambda thing: (thing.size,)})
        self.protocol = ListWatch(RESOURCE, Thing, self.store, self._on_event)
        self.told: dict[ObjectRef, Thing] = {}
        self.events: list[Event[Thing]] = []

    def _on_event(self, event: Event[Thing]) -> None:
        self.events.append(event)
        match event:
            case Added(ref, new):
                assert ref not in self.told
                self.told[ref] = new
            case Changed(ref, old, new):
                assert self.told[ref] == old != new
                assert old.metadata.uid == new.metadata.uid
                self.told[ref] = new
            case Removed(ref, old):
                assert self.told.pop(ref) == old

    def ask(self, heard: int | None = None) -> None:
        """One request; of a watch only the first ``heard`` lines arrive."""
        try:
            if self.protocol.is_listing:
                self.protocol.receive_page(self.server.page(self.protocol.list_query()))
            else:
                for line in self.server.lines(self.protocol.watch_query(300))[:heard]:
                    self.protocol.receive_line(line)
        except GovernorError as error:
            self.protocol.receive_error(error)

    def forget(self) -> None:
        """The server's other way to say 410, in the middle of a watch."""
        if not self.protocol.is_listing:
            with pytest.raises(WatchError) as told:
                self.protocol.receive_line(_line("ERROR", msgspec.to_builtins(GONE)))
            self.protocol.receive_error(told.value)

    def catch_up(self) -> None:
        self._list()
        self.ask()
        self._list()

    def _list(self) -> None:
        while self.protocol.is_listing:
            self.ask()

    def held(self) -> dict[str, tuple[str, int]]:
        return {ref.name: (thing.metadata.uid, thing.size) for ref, thing in self.store.items()}


Act: TypeAlias = Callable[[Server, Follower], None]
names = st.sampled_from("abcdefg")
acts: st.SearchStrategy[Act] = st.one_of(
    st.builds(lambda name, size: lambda server, _: server.write(name, size), names, st.integers(0, 3)),
    st.builds(lambda name: lambda server, _: server.write(name, "much"), names),
    st.builds(lambda name: lambda server, _: server.touch(name), names),
    st.builds(lambda name: lambda server, _: server.delete(name), names),
    st.builds(lambda heard: lambda _, follower: follower.ask(heard), st.integers(0, 4)),
    st.just(lambda server, _: server.compact()),
    st.just(lambda _, follower: follower.forget()),
)


@settings(max_examples=300)
@given(st.lists(acts, max_size=60))
def test_any_order_of_pages_events_cuts_and_compactions_ends_with_the_servers_state(story: list[Act]) -> None:
    server = Server()
    follower = Follower(server)
    for act in story:
        act(server, follower)
    follower.catch_up()

    held = follower.held()
    there = {ref.name for ref in follower.protocol.unreadable}
    assert {name: seen for name, seen in held.items() if name not in there} == server.readable()
    assert there == server.objects.keys() - server.readable().keys()
    assert held.keys() <= server.objects.keys()
    assert all(held[name][0] == server.objects[name]["metadata"]["uid"] for name in held)
    assert follower.told == dict(follower.store)
    assert follower.protocol.delivered == len(follower.events)
    for size in range(4):
        assert {thing.metadata.name for thing in follower.store.find("size", size)} == {
            name for name, (_, its) in held.items() if its == size
        }


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def follower(server: Server) -> Follower:
    return Follower(server)


def ref(name: str) -> ObjectRef:
    return ObjectRef("example.dev", "Thing", "", name)


def test_a_write_that_changes_nothing_read_makes_no_event(server: Server, follower: Follower) -> None:
    server.write("a", 1)
    follower.catch_up()
    before = len(follower.events)
    server.touch("a")
    follower.ask()
    assert len(follower.events) == before
    assert follower.store[ref("a")].metadata.resource_version == str(server.revision), "the newer version is held"


def test_what_was_deleted_while_away_is_removed_by_the_next_list(server: Server, follower: Follower) -> None:
    for name in "abcde":
        server.write(name, 1)
    follower.catch_up()
    follower.events.clear()
    server.delete("b")
    server.write("c", 2)
    server.compact()
    follower.catch_up()
    assert [(type(event), event.ref.name) for event in follower.events] == [(Changed, "c"), (Removed, "b")]
    assert follower.protocol.relists == 1


def test_an_object_made_anew_under_its_old_name_is_removed_and_added(server: Server, follower: Follower) -> None:
    server.write("a", 1)
    follower.catch_up()
    follower.events.clear()
    server.delete("a")
    server.write("a", 1)
    server.compact()
    follower.catch_up()
    assert [type(event) for event in follower.events] == [Removed, Added]


def test_an_expired_page_begins_the_list_again(server: Server, follower: Follower) -> None:
    for name in "abcde":
        server.write(name, 1)
    follower.ask()
    assert len(follower.store) == PAGE
    server.delete("a")
    server.compact()
    follower.catch_up()
    assert follower.held() == server.readable()
    assert follower.protocol.relists == 1


@pytest.mark.parametrize("status", [429, 500, 503, 403, 404])
def test_a_failure_that_is_not_about_the_position_keeps_it(server: Server, follower: Follower, status: int) -> None:
    follower.catch_up()
    follower.protocol.receive_error(ApiError("watch", status, Status()))
    assert not follower.protocol.is_listing
    assert follower.protocol.relists == 0


def test_a_refused_selector_is_no_reason_to_count_relists(follower: Follower) -> None:
    follower.protocol.receive_error(ApiError("list", 400, Status()))
    assert follower.protocol.is_listing
    assert follower.protocol.relists == 0


def test_an_unreadable_object_is_told_once_and_its_last_readable_state_stays(
    server: Server, follower: Follower
) -> None:
    server.write("a", 1)
    server.write("b", 1)
    follower.catch_up()
    with structlog.testing.capture_logs() as logs:
        server.write("a", "much")
        server.touch("a")
        server.write("b", 2)
        follower.ask()
        server.compact()
        server.touch("b")
        follower.forget()
        follower.catch_up()
    assert [(each["object"], each["reason"]) for each in logs] == [
        ("Thing.example.dev a", "Expected `int`, got `str` - at `$.size`")
    ]
    assert {name: size for name, (_, size) in follower.held().items()} == {"a": 1, "b": 2}
    assert list(follower.protocol.unreadable) == [ref("a")]

    server.write("a", 3)
    follower.ask()
    assert follower.held()["a"][1] == 3
    assert not follower.protocol.unreadable


def test_an_unreadable_object_in_a_list_hides_no_other(server: Server, follower: Follower) -> None:
    server.write("a", "much")
    server.write("b", 1)
    follower.catch_up()
    assert follower.held() == server.readable()
    server.delete("a")
    follower.ask()
    assert not follower.protocol.unreadable


@pytest.mark.parametrize(
    "line",
    [
        b"<html>",
        b"{}",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{"metadata":{}}}',
        b'{"type":"BOOKMARK","object":{"metadata":{}}}',
        b'{"type":"MOVED","object":{"metadata":{"name":"a"},"size":1}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff"},"size":1}}',
        b'{"type":"ADDED","object":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_no_server_says_breaks_the_stream_and_nothing_else(follower: Follower, line: bytes) -> None:
    follower.catch_up()
    with pytest.raises(GovernorError) as told:
        follower.protocol.receive_line(line)
    assert (told.value.kind, told.value.code) == (Kind.UNAVAILABLE, "kube-garbled")
    follower.protocol.receive_error(told.value)
    assert not follower.protocol.is_listing
    assert not follower.store


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"{}",
        b'{"kind":"ThingList","metadata":{},"items":[]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":""},"items":[]}',
        b'{"kind":"Thing","metadata":{"resourceVersion":"1"},"items":[]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":"1"},"items":[{}]}',
    ],
)
def test_what_is_no_list_is_refused_and_removes_nothing(server: Server, follower: Follower, body: bytes) -> None:
    server.write("a", 1)
    follower.catch_up()
    follower.forget()
    with pytest.raises(GovernorError) as told:
        follower.protocol.receive_page(body)
    assert told.value.code == "kube-garbled"
    assert follower.protocol.is_listing
    assert follower.held() == server.readable()


def test_a_list_that_goes_in_circles_is_refused(follower: Follower) -> None:
    body = b'{"kind":"ThingList","metadata":{"resourceVersion":"1","continue":"x"},"items":[]}'
    follower.protocol.receive_page(body)
    with pytest.raises(GovernorError, match="continue token repeats"):
        follower.protocol.receive_page(body)


def test_a_list_without_items_is_empty(follower: Follower) -> None:
    follower.protocol.receive_page(b'{"kind":"ThingList","metadata":{"resourceVersion":"7"},"items":null}')
    assert not follower.protocol.is_listing
    assert follower.protocol.watch_query(300) == {
        "watch": "true",
        "resourceVersion": "7",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
    }


def test_a_handler_that_fails_is_not_taken_for_a_server_that_fails(server: Server) -> None:
    def fail(_: Event[Thing]) -> None:
        raise GovernorError(Kind.UNAVAILABLE, "elsewhere", "something else is away")

    server.write("a", 1)
    protocol = ListWatch(RESOURCE, Thing, WritableStore({}), fail)
    with pytest.raises(RuntimeError, match="the handler of Thing"):
        protocol.receive_page(server.page(protocol.list_query()))


def test_a_bookmark_moves_the_position(server: Server, follower: Follower) -> None:
    follower.catch_up()
    follower.protocol.receive_line(_line("BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": "99"}}))
    assert follower.protocol.watch_query(300)["resourceVersion"] == "99"
    assert not follower.events
