"""The list-watch protocol against a model of an API server: the store always converges to the server's state."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pytest
import structlog.testing
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.client.paging import FIRST_LIMIT, TOO_LARGE
from governor.kube.errors import ApiError, Status
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.kube.reflector import Added, Changed, Event, Metadata, Removed, Unreadable, View
from governor.kube.reflector.list_watch import ListWatch, WatchError
from governor.kube.reflector.store import Entry, WritableStore

RESOURCE = ApiResource("example.dev", "v1", "Thing", "things", namespaced=False)
PAGE = 2
EXPIRED = Status(kind="Status", message="too old resource version", reason="Expired", code=410)

TOO_LARGE_ERROR = GovernorError(Kind.EXHAUSTED, TOO_LARGE, "too large")
DEADLINE_ERROR = GovernorError(Kind.DEADLINE, "kube-deadline", "too slow")

encode = msgspec.json.encode


class Thing(View, frozen=True):
    size: int
    tree: Any = None


class Server:
    """Model of list and watch in an API server: one revision per write, with compaction."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.objects: dict[str, Object] = {}
        self._events: list[tuple[int, str, Object]] = []
        self._snapshots: dict[int, list[Object]] = {}

    def write(self, name: str, size: object, note: int = 0, **fields: object) -> None:
        event = "MODIFIED" if name in self.objects else "ADDED"
        self.revision += 1
        uid = self.objects[name]["metadata"]["uid"] if name in self.objects else f"uid-{self.revision}"
        metadata: Object = {
            "name": name,
            "uid": uid,
            "resourceVersion": str(self.revision),
            "managedFields": [{}] * note,
        }
        self.objects[name] = {"metadata": metadata, "size": size, "status": {"note": note}, **fields}
        self._events.append((self.revision, event, self.objects[name]))

    def touch(self, name: str) -> None:
        """Change only fields outside the view."""
        if name in self.objects:
            self.write(name, self.objects[name]["size"], self.objects[name]["status"]["note"] + 1)

    def delete(self, name: str) -> None:
        if name in self.objects:
            last = self.objects.pop(name)
            self.revision += 1
            metadata = last["metadata"] | {"resourceVersion": str(self.revision)}
            self._events.append((self.revision, "DELETED", last | {"metadata": metadata}))

    def compact(self) -> None:
        self.compacted = self.revision

    def page(self, query: dict[str, str]) -> bytes:
        revision, start = map(int, query["continue"].split(":")) if "continue" in query else (self.revision, 0)
        if revision < self.compacted:
            raise ApiError("list", 410, EXPIRED)
        items = self._snapshots.setdefault(revision, list(self.objects.values()))
        token = f"{revision}:{start + PAGE}" if start + PAGE < len(items) else ""
        metadata = {"resourceVersion": str(revision), "continue": token}
        return encode({"kind": "ThingList", "metadata": metadata, "items": items[start : start + PAGE]})

    def lines(self, query: dict[str, str]) -> list[bytes]:
        since = int(query["resourceVersion"])
        if since < self.compacted:
            raise ApiError("watch", 410, EXPIRED)
        lines = [_line(event, thing) for revision, event, thing in self._events if revision > since]
        return [*lines, _line("BOOKMARK", {"metadata": {"resourceVersion": str(self.revision)}})]

    def readable(self) -> dict[str, tuple[str, int]]:
        return {name: seen for name, seen in map(_summary, self.objects.values()) if isinstance(seen[1], int)}


def _summary(thing: Object) -> tuple[str, tuple[str, Any]]:
    return thing["metadata"]["name"], (thing["metadata"]["uid"], thing["size"])


def _line(event: str, thing: Object) -> bytes:
    return encode({"type": event, "object": thing})


class Watcher:
    """A list-watch client of the model that checks each event against the previous ones."""

    def __init__(self, server: Server, keep: Callable[[Thing], bool] | None = None) -> None:
        self.server = server
        self.store: WritableStore[Thing] = WritableStore({"size": lambda thing: (thing.size,)})
        self.list_watch = ListWatch(RESOURCE, Thing, self.store, self._on_event, keep)
        self.seen: dict[ObjectRef, Entry[Thing]] = {}
        self.events: list[Event[Thing]] = []

    def _on_event(self, event: Event[Thing]) -> None:
        self.events.append(event)
        match event:
            case Added(ref, new):
                assert ref not in self.seen
                self.seen[ref] = new
            case Changed(ref, old, new):
                assert self.seen[ref] == old != new
                assert old.metadata.uid == new.metadata.uid
                self.seen[ref] = new
            case Removed(ref, old):
                assert self.seen.pop(ref) == old

    def request(self, received: int | None = None) -> None:
        """Send one request; of a watch only the first ``received`` lines arrive."""
        try:
            if self.list_watch.is_listing:
                self.list_watch.receive_page(self.server.page(self.list_watch.list_query()))
            else:
                for line in self.server.lines(self.list_watch.watch_query(300))[:received]:
                    self.list_watch.receive_line(line)
        except GovernorError as error:
            self.list_watch.receive_error(error)

    def expire_watch(self) -> None:
        """Receive 410 as an ERROR event of the watch."""
        if not self.list_watch.is_listing:
            with pytest.raises(WatchError) as caught:
                self.list_watch.receive_line(_line("ERROR", msgspec.to_builtins(EXPIRED)))
            self.list_watch.receive_error(caught.value)

    def catch_up(self) -> None:
        self._list()
        self.request()
        self._list()

    def _list(self) -> None:
        for _ in range(100):
            if not self.list_watch.is_listing:
                return
            self.request()
        raise AssertionError("the list does not end")

    def cached(self) -> dict[str, tuple[str, int]]:
        things = {ref.name: each for ref, each in self.store.items() if not isinstance(each, Unreadable)}
        return {name: (thing.metadata.uid, thing.size) for name, thing in things.items()}

    def unreadable(self) -> dict[str, Unreadable[Thing]]:
        return {ref.name: each for ref, each in self.store.items() if isinstance(each, Unreadable)}


Step: TypeAlias = Callable[[Server, Watcher], None]
names = st.sampled_from("abcdefg")
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda name, size: lambda server, _: server.write(name, size), names, st.integers(0, 3)),
    st.builds(lambda name: lambda server, _: server.write(name, "large"), names),
    st.builds(lambda name: lambda server, _: server.touch(name), names),
    st.builds(lambda name: lambda server, _: server.delete(name), names),
    st.builds(lambda received: lambda _, watcher: watcher.request(received), st.integers(0, 4)),
    st.just(lambda server, _: server.compact()),
    st.just(lambda _, watcher: watcher.expire_watch()),
)


@given(st.lists(steps, max_size=60))
def test_any_order_of_pages_events_disconnects_and_compactions_converges(sequence: list[Step]) -> None:
    server = Server()
    watcher = Watcher(server)
    for step in sequence:
        step(server, watcher)
    watcher.catch_up()

    assert watcher.cached() == server.readable()
    assert watcher.unreadable().keys() == server.objects.keys() - server.readable().keys()
    assert all(each.metadata.uid == server.objects[ref.name]["metadata"]["uid"] for ref, each in watcher.store.items())
    assert watcher.seen == dict(watcher.store)
    assert watcher.list_watch.delivered == watcher.store.changes == len(watcher.events)
    for size in range(4):
        assert {thing.metadata.name for thing in watcher.store.find("size", size)} == {
            name for name, last in last_readable(watcher).items() if last == size
        }


@given(st.lists(steps, max_size=60))
def test_only_kept_objects_are_held_after_any_order_of_steps(sequence: list[Step]) -> None:
    server = Server()
    watcher = Watcher(server, lambda thing: thing.size > 1)
    for step in sequence:
        step(server, watcher)
    watcher.catch_up()

    assert watcher.cached() == {name: seen for name, seen in server.readable().items() if seen[1] > 1}
    assert watcher.unreadable().keys() == server.objects.keys() - server.readable().keys()
    assert watcher.seen == dict(watcher.store)
    assert watcher.list_watch.delivered == len(watcher.events)


def last_readable(watcher: Watcher) -> dict[str, int]:
    lasts = {name: each.last.size for name, each in watcher.unreadable().items() if each.last}
    return lasts | {name: size for name, (_, size) in watcher.cached().items()}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watcher(server: Server) -> Watcher:
    return Watcher(server)


def ref(name: str) -> ObjectRef:
    return ObjectRef("example.dev", "Thing", "", name)


def test_a_write_outside_the_view_emits_no_event(server: Server, watcher: Watcher) -> None:
    server.write("a", 1)
    watcher.catch_up()
    before = len(watcher.events)
    server.touch("a")
    watcher.request()
    assert len(watcher.events) == before
    assert watcher.store[ref("a")].metadata.resource_version == str(server.revision), "the store has the newer version"


def test_objects_deleted_while_disconnected_are_removed_by_the_next_list(server: Server, watcher: Watcher) -> None:
    for name in "abcde":
        server.write(name, 1)
    watcher.catch_up()
    watcher.events.clear()
    server.delete("b")
    server.write("c", 2)
    server.compact()
    watcher.catch_up()
    assert [(type(event), event.ref.name) for event in watcher.events] == [(Changed, "c"), (Removed, "b")]
    assert watcher.list_watch.relists == 1


def test_a_recreated_object_is_removed_and_added(server: Server, watcher: Watcher) -> None:
    server.write("a", 1)
    watcher.catch_up()
    watcher.events.clear()
    server.delete("a")
    server.write("a", 1)
    server.compact()
    watcher.catch_up()
    assert [type(event) for event in watcher.events] == [Removed, Added]


def test_an_object_that_stops_being_kept_is_removed_and_one_that_starts_is_added(server: Server) -> None:
    watcher = Watcher(server, lambda thing: thing.size > 1)
    server.write("a", 2)
    server.write("b", 1)
    watcher.catch_up()
    for name, size in (("a", 1), ("a", 0), ("b", 2), ("b", 3)):
        server.write(name, size)
    watcher.request()
    assert [(type(event), event.ref.name) for event in watcher.events] == [
        (Added, "a"),
        (Removed, "a"),
        (Added, "b"),
        (Changed, "b"),
    ]
    server.write("b", 0)
    server.compact()
    watcher.catch_up()
    assert (type(watcher.events[-1]), len(watcher.store)) == (Removed, 0)


def test_an_expired_continue_token_restarts_the_list(server: Server, watcher: Watcher) -> None:
    for name in "abcde":
        server.write(name, 1)
    watcher.request()
    assert len(watcher.store) == PAGE
    server.delete("a")
    server.compact()
    watcher.catch_up()
    assert watcher.cached() == server.readable()
    assert watcher.list_watch.relists == 1


def list_of(count: int, object_bytes: int, continue_token: str) -> bytes:
    metadata = {"resourceVersion": "1", "continue": continue_token}
    items = [{"metadata": {"name": f"{number}"}, "size": 1, "unread": "x" * object_bytes} for number in range(count)]
    return encode({"kind": "ThingList", "metadata": metadata, "items": items})


def test_the_page_size_follows_the_size_of_the_objects(watcher: Watcher) -> None:
    assert watcher.list_watch.list_query() == {"limit": str(FIRST_LIMIT)}
    watcher.list_watch.receive_page(list_of(100, 1_000_000, "x"))
    assert watcher.list_watch.list_query() == {"limit": "4", "continue": "x"}


@pytest.mark.parametrize("error", [TOO_LARGE_ERROR, DEADLINE_ERROR])
def test_a_page_that_is_too_large_or_slow_is_requested_again_in_parts(watcher: Watcher, error: GovernorError) -> None:
    watcher.list_watch.receive_page(list_of(100, 40_000, "x"))
    before = int(watcher.list_watch.list_query()["limit"])
    watcher.list_watch.receive_error(error)
    assert watcher.list_watch.list_query() == {"limit": str(before // 10), "continue": "x"}
    assert watcher.list_watch.relists == 0


def test_a_watch_that_times_out_does_not_change_the_page_size(watcher: Watcher) -> None:
    watcher.catch_up()
    watcher.list_watch.receive_error(DEADLINE_ERROR)
    watcher.expire_watch()
    assert watcher.list_watch.list_query() == {"limit": str(FIRST_LIMIT)}


@pytest.mark.parametrize("status", [429, 500, 503, 403, 404])
def test_other_failures_keep_the_resource_version(server: Server, watcher: Watcher, status: int) -> None:
    watcher.catch_up()
    watcher.list_watch.receive_error(ApiError("watch", status, Status()))
    assert not watcher.list_watch.is_listing
    assert watcher.list_watch.relists == 0


def test_a_rejected_selector_does_not_count_as_a_relist(watcher: Watcher) -> None:
    watcher.list_watch.receive_error(ApiError("list", 400, Status()))
    assert watcher.list_watch.is_listing
    assert watcher.list_watch.relists == 0


def test_an_object_that_becomes_unreadable_and_readable_again_causes_events_and_is_logged_once(
    server: Server, watcher: Watcher
) -> None:
    server.write("a", 1)
    server.write("b", 1)
    watcher.catch_up()
    watcher.events.clear()
    with structlog.testing.capture_logs() as logs:
        server.write("a", "large")
        server.touch("a")
        server.write("b", 2)
        watcher.request()
        server.compact()
        server.touch("b")
        watcher.expire_watch()
        watcher.catch_up()
        server.write("a", 3)
        watcher.request()
    assert [(each["object"], each["reason"]) for each in logs] == [
        ("Thing.example.dev a", "Expected `int`, got `str` - at `$.size`")
    ]
    assert [(type(event), event.ref.name) for event in watcher.events] == [
        (Changed, "a"),
        (Changed, "b"),
        (Changed, "a"),
    ]
    assert {name: size for name, (_, size) in watcher.cached().items()} == {"a": 3, "b": 2}


def test_an_unreadable_object_is_neither_present_nor_absent(server: Server, watcher: Watcher) -> None:
    server.write("a", 1)
    watcher.catch_up()
    readable = watcher.store[ref("a")]
    server.write("a", "large")
    server.write("b", "large")
    watcher.request()

    a, b = watcher.store.get(ref("a")), watcher.store.get(ref("b"))
    assert isinstance(a, Unreadable)
    assert isinstance(b, Unreadable)
    assert (a.last, b.last) == (readable, None)
    assert a.reason == b.reason == "Expected `int`, got `str` - at `$.size`"
    assert watcher.store.find("size", 1) == [a], "an index lists it under the keys of its last readable view"
    assert watcher.store.get(ref("c")) is None


def test_a_recreated_object_that_is_unreadable_has_no_last_view(server: Server, watcher: Watcher) -> None:
    server.write("a", 1)
    watcher.catch_up()
    server.delete("a")
    server.write("a", "large")
    server.compact()
    watcher.catch_up()
    assert watcher.unreadable()["a"].last is None
    assert [type(event) for event in watcher.events] == [Added, Removed, Added]


def test_an_unreadable_object_in_a_list_hides_no_other(server: Server, watcher: Watcher) -> None:
    server.write("a", "large")
    server.write("b", 1)
    watcher.catch_up()
    assert watcher.cached() == server.readable()
    server.delete("a")
    watcher.request()
    assert not watcher.unreadable()


def nested(levels: int) -> msgspec.Raw:
    return msgspec.Raw(b'{"a":' * levels + b"1" + b"}" * levels)


@pytest.mark.parametrize("levels", [1_100, 3_000, 10_000])
@pytest.mark.parametrize("listed", [True, False])
def test_an_object_of_any_depth_that_the_server_allows_hides_no_other(
    server: Server, watcher: Watcher, levels: int, *, listed: bool
) -> None:
    if not listed:
        watcher.catch_up()
    server.write("a", 1)
    server.write("deep-unread", 2, unread=nested(levels))
    server.write("deep-read", 3, tree=nested(levels))
    server.write("b", 4)
    watcher.catch_up()
    assert watcher.store.keys() == {ref(name) for name in server.objects}
    assert watcher.cached().keys() >= {"a", "b", "deep-unread"}, "the interpreter decides whether deep-read is readable"


@pytest.mark.parametrize("listed", [True, False])
def test_an_object_nested_too_deeply_is_unreadable_only_if_the_view_reads_that_part(
    server: Server, watcher: Watcher, *, listed: bool
) -> None:
    levels = 100_000
    if not listed:
        watcher.catch_up()
    server.write("a", 1, tree={"a": 1})
    server.write("deep-unread", 2, unread=nested(levels))
    server.write("deep-read", 3, tree=nested(levels))
    server.write("b", "large", unread=nested(levels))
    server.write("c", 4)
    watcher.catch_up()
    server.write("a", 5)
    watcher.request()

    assert watcher.store.keys() == {ref(name) for name in server.objects}
    assert {name: size for name, (_, size) in watcher.cached().items()} == {"a": 5, "deep-unread": 2, "c": 4}
    assert {name: each.reason for name, each in watcher.unreadable().items()} == {
        "deep-read": "a field of the view is nested deeper than 100 levels",
        "b": "Expected `int`, got `str` - at `$.size`",
    }
    server.delete("deep-read")
    server.write("deep-unread", 6)
    watcher.request()
    assert watcher.cached().keys() == {"a", "c", "deep-unread"}


def test_an_object_is_as_readable_beside_a_deeper_one_as_alone(server: Server, watcher: Watcher) -> None:
    server.write("a", 1, tree=nested(300))
    server.write("b", 1, unread=nested(100_000))
    watcher.catch_up()
    assert watcher.cached().keys() == {"a", "b"}


def test_views_too_deep_to_compare_count_as_changed() -> None:
    store: WritableStore[Thing] = WritableStore({})
    trees: list[Any] = [{}, {}]
    for _ in range(100_000):
        trees = [{"a": each} for each in trees]
    for tree in trees:
        store.put(ref("a"), Thing(Metadata("a"), 1, tree))
    changed = store.put(ref("a"), Thing(Metadata("a"), 1, trees[0]))
    assert [type(each) for each in changed] == [Changed]


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
def test_an_invalid_event_ends_the_watch_and_changes_nothing(watcher: Watcher, line: bytes) -> None:
    watcher.catch_up()
    with pytest.raises(GovernorError) as caught:
        watcher.list_watch.receive_line(line)
    assert (caught.value.kind, caught.value.code) == (Kind.UNAVAILABLE, "kube-garbled")
    watcher.list_watch.receive_error(caught.value)
    assert not watcher.list_watch.is_listing
    assert not watcher.store


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"{}",
        b'{"kind":"ThingList","metadata":{},"items":[]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":""},"items":[]}',
        b'{"kind":"Thing","metadata":{"resourceVersion":"1"},"items":[]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":"1"},"items":[{}]}',
        b'{"kind":"ThingList","metadata":{"resourceVersion":"1"},"items":[' + b"[" * 5000 + b"]" * 5000 + b"]}",
        b'{"kind":"ThingList","metadata":{"resourceVersion":"1"},"items":[7],"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"kind":"ThingList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":' + b"[" * 5000,
    ],
)
def test_an_invalid_list_is_rejected_and_removes_nothing(server: Server, watcher: Watcher, body: bytes) -> None:
    server.write("a", 1)
    watcher.catch_up()
    watcher.expire_watch()
    with pytest.raises(GovernorError) as caught:
        watcher.list_watch.receive_page(body)
    assert caught.value.code == "kube-garbled"
    assert watcher.list_watch.is_listing
    assert watcher.cached() == server.readable()


def test_a_repeating_continue_token_is_rejected(watcher: Watcher) -> None:
    body = b'{"kind":"ThingList","metadata":{"resourceVersion":"1","continue":"x"},"items":[]}'
    watcher.list_watch.receive_page(body)
    with pytest.raises(GovernorError, match="continue token repeats"):
        watcher.list_watch.receive_page(body)


def test_a_list_without_items_is_empty(watcher: Watcher) -> None:
    watcher.list_watch.receive_page(b'{"kind":"ThingList","metadata":{"resourceVersion":"7"},"items":null}')
    assert not watcher.list_watch.is_listing
    assert watcher.list_watch.watch_query(300) == {
        "watch": "true",
        "resourceVersion": "7",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
    }


def test_a_failing_handler_does_not_count_as_a_server_failure(server: Server) -> None:
    def fail(_: Event[Thing]) -> None:
        raise GovernorError(Kind.UNAVAILABLE, "elsewhere", "another service is unavailable")

    server.write("a", 1)
    list_watch = ListWatch(RESOURCE, Thing, WritableStore({}), fail)
    with pytest.raises(RuntimeError, match="the handler of Thing"):
        list_watch.receive_page(server.page(list_watch.list_query()))


def test_a_bookmark_advances_the_resource_version(server: Server, watcher: Watcher) -> None:
    watcher.catch_up()
    watcher.list_watch.receive_line(_line("BOOKMARK", {"kind": "Thing", "metadata": {"resourceVersion": "99"}}))
    assert watcher.list_watch.watch_query(300)["resourceVersion"] == "99"
    assert not watcher.events
