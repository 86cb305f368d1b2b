"""The list-and-watch protocol without I/O: response bytes in; the next query, an up-to-date store and events out.

Each page of a list goes straight into the store, so at most one page is held in addition. Objects in the store that are
on no page were deleted. If the continue token expires, the list starts over, because the watch that follows must start
from one snapshot. Every list reads the latest state (no resourceVersion), so the store never moves back in time.
Streaming lists are not used: servers without them need this path anyway.
"""

from collections.abc import Callable
from typing import Final, Generic, NoReturn

from governor.errors import GovernorError, Kind
from governor.kube.client.paging import PageSize
from governor.kube.errors import DECODE_ERRORS, ApiError, parse_status
from governor.kube.objects import ApiResource, ObjectRef
from governor.kube.reflector.store import Entry, Event, Removed, WritableStore
from governor.kube.reflector.views import (
    Metadata,
    RawEvent,
    Unreadable,
    V,
    ViewDecoder,
    decode_bookmark,
    decode_raw_event,
    protocol_error,
)
from governor.process.telemetry import logging

_ADDED: Final = "ADDED"
_PRESENT: Final = frozenset({_ADDED, "MODIFIED"})
_DELETED: Final = "DELETED"
_BOOKMARK: Final = "BOOKMARK"
_ERROR: Final = "ERROR"

_EXPIRED: Final = frozenset({Kind.PRECONDITION, Kind.INVALID})
"""410 Gone, and the response to a resourceVersion or continue token that the server never issued."""

_log = logging.get_logger(__name__)


class WatchError(ApiError):
    """An ERROR event. Whatever its reason, the watch cannot continue from its resourceVersion; a list may succeed."""


class ListWatch(Generic[V]):
    """State of one list-watch: resourceVersion and the cached objects."""

    def __init__(
        self,
        resource: ApiResource,
        view: type[V],
        store: WritableStore[V],
        on_event: Callable[[Event[V]], None],
        keep: Callable[[V], bool] | None = None,
    ) -> None:
        self._resource = resource
        self._decoder = ViewDecoder(view)
        self._store = store
        self._on_event = on_event
        self._keep = keep
        self._resource_version = ""
        self._continue_token = ""
        self._page_size = PageSize()
        self._unlisted: set[ObjectRef] = set()
        self.delivered = 0
        self.relists = 0

    @property
    def is_listing(self) -> bool:
        """Whether the next request is a list page; otherwise it is a watch."""
        return not self._resource_version

    def list_query(self) -> dict[str, str]:
        """Return the query of the next list page."""
        return {"limit": str(self._page_size.limit)} | (
            {"continue": self._continue_token} if self._continue_token else {}
        )

    def watch_query(self, timeout_s: int) -> dict[str, str]:
        """Return the query of a watch that starts after the cached state."""
        return {
            "watch": "true",
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
        }

    def receive_error(self, error: GovernorError) -> None:
        """Process the failure of the last request.

        Relist if the resourceVersion or continue token has expired; request less if a page was too large or slow.
        """
        expired = isinstance(error, WatchError) or (isinstance(error, ApiError) and error.kind in _EXPIRED)
        if expired and (self._resource_version or self._continue_token):
            self._relist()
        elif self.is_listing:
            self._page_size.shrink(error)

    def _relist(self) -> None:
        self.relists += 1
        self._resource_version = ""
        self._continue_token = ""
        self._unlisted = set(self._store)

    def receive_page(self, body: bytes) -> None:
        """Process one page of the list."""
        page = self._decoder.decode_page(body)
        if self._continue_token and page.metadata.continue_token == self._continue_token:
            raise protocol_error("a list", "its continue token repeats")
        self._page_size.observed(len(page.objects), len(body))
        for each in page.objects:
            self._unlisted.discard(self._ref(each.metadata))
            self._receive_object(_ADDED, each)
        self._continue_token = page.metadata.continue_token
        if not self._continue_token:
            self._remove_unlisted()
            self._resource_version = page.metadata.resource_version

    def receive_line(self, line: bytes) -> None:
        """Process one line of the watch; an ERROR event raises ``WatchError``."""
        try:
            event = self._decoder.decode_event(line)
        except DECODE_ERRORS:
            self._receive_raw(decode_raw_event(line))
        else:
            self._advance(event.type, event.object)

    def _receive_raw(self, event: RawEvent) -> None:
        """Process a bookmark, an error, or an object that does not fit the view."""
        if event.type == _BOOKMARK:
            self._resource_version = decode_bookmark(event.object).resource_version
        elif event.type == _ERROR:
            self._raise_watch_error(bytes(event.object))
        else:
            self._advance(event.type, self._decoder.decode_object(event.object))

    def _advance(self, event_type: str, each: Entry[V]) -> None:
        version = each.metadata.resource_version
        if not version:
            # An empty resourceVersion would start a list that detects no deletions.
            raise protocol_error("an event", "its object has no resourceVersion")
        self._receive_object(event_type, each)
        self._resource_version = version

    def _receive_object(self, event_type: str, each: Entry[V]) -> None:
        ref = self._ref(each.metadata)
        if event_type == _DELETED:
            self._emit(self._store.remove(ref))
        elif event_type in _PRESENT:
            self._emit(self._store.put(ref, each) if self._is_kept(each) else self._store.remove(ref))
        else:
            raise protocol_error("an event", f"its type is {event_type}")

    def _is_kept(self, each: Entry[V]) -> bool:
        """Return whether the store holds the object, even an unreadable one, because it may be one to keep."""
        return self._keep is None or isinstance(each, Unreadable) or self._keep(each)

    def _raise_watch_error(self, body: bytes) -> NoReturn:
        status = parse_status(body)
        raise WatchError(f"watch of {self._resource.plural}", status.code, status)

    def _remove_unlisted(self) -> None:
        unlisted, self._unlisted = self._unlisted, set()
        for ref in unlisted:
            self._emit(self._store.remove(ref))

    def _emit(self, events: tuple[Event[V], ...]) -> None:
        for event in events:
            self.delivered += 1
            if not isinstance(event, Removed) and isinstance(event.new, Unreadable):
                _log.error("object does not fit its view", object=str(event.ref), reason=event.new.reason)
            try:
                self._on_event(event)
            except GovernorError as error:
                # As a GovernorError it would count as a server failure and be retried without this event.
                raise RuntimeError(f"the handler of {event.ref} failed") from error

    def _ref(self, metadata: Metadata) -> ObjectRef:
        return ObjectRef(self._resource.group, self._resource.kind, metadata.namespace, metadata.name)
