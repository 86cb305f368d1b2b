"""The list-and-watch protocol without I/O: bytes from the server in; what to ask next, a true store and events out.

A list is read page by page into the store at once, so no more than one page is ever held beside it. What was held and
is on no page has gone meanwhile. An expired token of a later page begins the list again: the watch that follows must
start from one snapshot. Every list is of the newest state (no resourceVersion is asked for), so the store never moves
back in time. Streaming lists are not used: they would be a second road, and servers without them need this one.
"""

from collections.abc import Callable
from typing import Final, Generic, NoReturn

from governor.errors import GovernorError, Kind
from governor.kube.errors import UNDECODABLE, ApiError, status_of
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.pages import PAGE
from governor.kube.reflector.store import Event, WritableStore
from governor.kube.reflector.views import Envelope, Metadata, Reading, Unreadable, V, envelope, garbled, position
from governor.process.telemetry import logging

_ADDED: Final = "ADDED"
_PRESENT: Final = frozenset({_ADDED, "MODIFIED"})
_DELETED: Final = "DELETED"
_BOOKMARK: Final = "BOOKMARK"
_ERROR: Final = "ERROR"

_FORGOTTEN: Final = frozenset({Kind.PRECONDITION, Kind.INVALID})
"""410, and what an API server says to a resourceVersion or token that it never gave."""

_log = logging.get_logger(__name__)


class WatchError(ApiError):
    """The server ended a watch with an error: whatever its reason, it cannot go on from there, but a list may."""


class ListWatch(Generic[V]):
    """Where one follower of one kind stands, and what it holds."""

    def __init__(
        self, resource: ApiResource, view: type[V], store: WritableStore[V], deliver: Callable[[Event[V]], None]
    ) -> None:
        self._resource = resource
        self._reading = Reading(view)
        self._store = store
        self._deliver = deliver
        self._resource_version = ""
        self._more = ""
        self._missing: set[ObjectRef] = set()
        self.delivered = 0
        self.relists = 0
        self.unreadable: dict[ObjectRef, Unreadable] = {}
        """Objects whose present state does not fit the view; of these the store has the last that did, or nothing."""

    @property
    def is_listing(self) -> bool:
        """Whether a page of the list must be asked for; otherwise a watch."""
        return not self._resource_version

    def list_query(self) -> dict[str, str]:
        """What to ask for the next page."""
        return {"limit": str(PAGE)} | ({"continue": self._more} if self._more else {})

    def watch_query(self, timeout_s: int) -> dict[str, str]:
        """What to ask to hear everything after what is held."""
        return {
            "watch": "true",
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }

    def take_failure(self, error: GovernorError) -> None:
        """What became of the last request; decides whether the server still knows where we stand."""
        forgotten = isinstance(error, WatchError) or (isinstance(error, ApiError) and error.kind in _FORGOTTEN)
        if forgotten and (self._resource_version or self._more):
            self._begin_again()

    def _begin_again(self) -> None:
        self.relists += 1
        self._resource_version = ""
        self._more = ""
        self._missing = {*self._store, *self.unreadable}

    def take_page(self, body: bytes) -> None:
        """One page of the list."""
        page = self._reading.page(body)
        if self._more and page.position.more == self._more:
            raise garbled("a list", "its next page is the same page")
        for each in page.objects:
            self._missing.discard(self._ref(each.metadata))
            self._take_object(_ADDED, each)
        self._more = page.position.more
        if not self._more:
            self._finish_list()
            self._resource_version = page.position.resource_version

    def take_line(self, line: bytes) -> None:
        """One line of the watch; a ``WatchError`` when the server says that it cannot go on from here."""
        try:
            event = self._reading.event(line)
        except UNDECODABLE:
            self._take_other(envelope(line))
        else:
            self._advance(event.type, event.object)

    def _take_other(self, event: Envelope) -> None:
        """What is no object of the view's shape: the server about itself, or an object that does not fit."""
        if event.type == _BOOKMARK:
            self._resource_version = position(event.object).resource_version
        elif event.type == _ERROR:
            self._refused(bytes(event.object))
        else:
            self._advance(event.type, self._reading.object(event.object))

    def _advance(self, event_type: str, each: V | Unreadable) -> None:
        version = each.metadata.resource_version
        if not version:
            # Without a position a list would follow that does not know what it has to miss.
            raise garbled("an event", "its object has no resourceVersion")
        self._take_object(event_type, each)
        self._resource_version = version

    def _take_object(self, event_type: str, each: V | Unreadable) -> None:
        ref = self._ref(each.metadata)
        if event_type == _DELETED:
            self._remove(ref)
        elif event_type not in _PRESENT:
            raise garbled("an event", f"its type is {event_type}")
        elif isinstance(each, Unreadable):
            self._note(ref, each)
        else:
            self._put(ref, each)

    def _refused(self, body: bytes) -> NoReturn:
        status = status_of(body)
        raise WatchError(f"watch of {self._resource.plural}", status.code, status)

    def _finish_list(self) -> None:
        missing, self._missing = self._missing, set()
        for ref in missing:
            self._remove(ref)

    def _put(self, ref: ObjectRef, view: V) -> None:
        if self.unreadable:
            self.unreadable.pop(ref, None)
        self._emit(self._store.put(ref, view))

    def _remove(self, ref: ObjectRef) -> None:
        self.unreadable.pop(ref, None)
        self._emit(self._store.remove(ref))

    def _note(self, ref: ObjectRef, unreadable: Unreadable) -> None:
        """Keep what is held of the same object: to remove it would tell that it has gone, which is not so."""
        held = self._store.get(ref)
        if held and held.metadata.uid != unreadable.metadata.uid:
            self._emit(self._store.remove(ref))
        if self.unreadable.get(ref) != unreadable:
            _log.error("object does not fit what is read of it", object=str(ref), reason=unreadable.reason)
        self.unreadable[ref] = unreadable

    def _emit(self, events: tuple[Event[V], ...]) -> None:
        for event in events:
            self.delivered += 1
            try:
                self._deliver(event)
            except GovernorError as error:
                # It must not be taken for a failure of the server, which would be tried again without this event.
                raise RuntimeError(f"the handler of {event.ref} failed") from error

    def _ref(self, metadata: Metadata) -> ObjectRef:
        return ObjectRef(self._resource.group, self._resource.kind, metadata.namespace, metadata.name)
