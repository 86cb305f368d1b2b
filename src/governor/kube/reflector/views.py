"""Views: small structs with the fields of an object that a caller reads, decoded directly from response bytes.

The decoder skips all other fields, so managedFields and whole specs never become Python objects. Two views of one
object are equal if no field of the view has changed. A mapping of labels or annotations costs a dictionary per object;
a struct with only the needed keys as fields is smaller. Requests and caching are ``reflector`` and ``store``.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.errors import DECODE_ERRORS
from governor.kube.objects import ListMeta, ListPage
from governor.kube.reflector.nesting import cut_below


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Identity and resourceVersion of an object; subclass it to read labels, finalizers and the like.

    Equality ignores the resourceVersion, which changes with every write, even if no field of the view does.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        fields = _compared_fields(type(self))
        return fields(self) == fields(other)

    def __hash__(self) -> int:
        return hash((self.namespace, self.name, self.uid))


@functools.cache
def _compared_fields(metadata: type[Metadata]) -> Callable[[object], object]:
    return operator.attrgetter(*(each for each in metadata.__struct_fields__ if each != "resource_version"))


class View(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of views; subclass it with the fields to read. List items have no kind or apiVersion."""

    metadata: Metadata


V = TypeVar("V", bound=View)
B = TypeVar("B")
T = TypeVar("T")


@final
class Unreadable(msgspec.Struct, Generic[V], frozen=True):
    """An object that exists but cannot be decoded into the view.

    Final, so that ``isinstance`` tells it apart from a view for a type checker.
    """

    metadata: Metadata
    reason: str
    last: V | None = None
    """The view of its last state that could be decoded, if any."""


class Page(msgspec.Struct, Generic[V], frozen=True):
    """One page of a list."""

    metadata: ListMeta
    objects: Sequence[V | Unreadable[V]]


class ViewEvent(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """A watch event whose object fits the view."""

    type: str
    object: V


class RawEvent(msgspec.Struct, frozen=True):
    """A watch event of any type, with its object undecoded."""

    type: str
    object: msgspec.Raw


class _CutEvent(msgspec.Struct, frozen=True):
    type: str
    object: int


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: ListMeta


_decode_raw_event = msgspec.json.Decoder(RawEvent).decode
_decode_identity = msgspec.json.Decoder(View).decode
_decode_bookmark = msgspec.json.Decoder(_Bookmark).decode
_decode_raw_page = msgspec.json.Decoder(ListPage[msgspec.Raw]).decode
_decode_cut_event = msgspec.json.Decoder(_CutEvent).decode
_decode_cut_page = msgspec.json.Decoder(ListPage[int]).decode

_MAX_DEPTH: Final = 100
"""Levels of an object that are decoded if it has too many for the decoder."""
_TOO_DEEP: Final = f"a field of the view is nested deeper than {_MAX_DEPTH} levels"


class ViewDecoder(Generic[V]):
    """Decodes lists and events of one kind into views; an object that does not fit does not affect the others."""

    def __init__(self, view: type[V]) -> None:
        self._decode_view = msgspec.json.Decoder(view).decode
        self._decode_page = msgspec.json.Decoder(ListPage[view]).decode  # type: ignore[valid-type]
        self.decode_event: Callable[[bytes], ViewEvent[V]] = msgspec.json.Decoder(ViewEvent[view]).decode  # type: ignore[valid-type]
        """Decodes a line of a watch in one pass; raises DECODE_ERRORS unless the object fits the view."""

    def decode_page(self, body: bytes) -> Page[V]:
        """Return one page of a list."""
        try:
            page = self._decode_page(body)
        except DECODE_ERRORS:
            raw = _checked("a list", _split_page, body)
            return Page(_require_version(raw.metadata), [self.decode_object(item) for item in raw.items or ()])
        return Page(_require_version(page.metadata), page.items or ())

    def decode_object(self, raw: msgspec.Raw) -> V | Unreadable[V]:
        """Return the view of an object, or why it does not fit."""
        return _checked("an object", self._decode_object, raw)

    def _decode_object(self, raw: msgspec.Raw) -> V | Unreadable[V]:
        try:
            return self._decode_shallow(raw)
        except RecursionError:
            cut = cut_below(bytes(raw), _MAX_DEPTH)
        # If the result does not depend on the values that replace the deep parts, the view does not read them.
        first, second = (self._decode_shallow(cut.fill([value] * len(cut.parts))) for value in (b"null", b"0"))
        return first if first == second else Unreadable(first.metadata, _TOO_DEEP)

    def _decode_shallow(self, data: bytes | msgspec.Raw) -> V | Unreadable[V]:
        try:
            return self._decode_view(data)
        except RecursionError:
            raise
        except DECODE_ERRORS as error:
            return Unreadable(_decode_identity(data).metadata, str(error))


def decode_raw_event(line: bytes) -> RawEvent:
    """Return one watch event with its object undecoded."""
    return _checked("an event", _split_event, line)


def _split_event(line: bytes) -> RawEvent:
    try:
        return _decode_raw_event(line)
    except RecursionError:
        cut = cut_below(line, 1)
        event = _decode_cut_event(cut.number())
        return RawEvent(event.type, msgspec.Raw(cut.part(event.object)))


def _split_page(body: bytes) -> ListPage[msgspec.Raw]:
    try:
        return _decode_raw_page(body)
    except RecursionError:
        cut = cut_below(body, 2)
        page = _decode_cut_page(cut.number())
        return ListPage(page.kind, page.metadata, [msgspec.Raw(cut.part(number)) for number in page.items or ()])


def decode_bookmark(bookmark: msgspec.Raw) -> ListMeta:
    """Return the metadata of a bookmark."""
    return _require_version(_checked("a bookmark", _decode_bookmark, bookmark).metadata)


def _require_version(metadata: ListMeta) -> ListMeta:
    if not metadata.resource_version:
        raise protocol_error("a list or bookmark", "it has no resourceVersion to watch from")
    return metadata


def protocol_error(expected: str, reason: object) -> GovernorError:
    """Return the error for a response that violates the list-watch protocol."""
    message = f"the response is not {expected} of a Kubernetes API: {reason}"
    return GovernorError(Kind.UNAVAILABLE, "kube-garbled", message)


def _checked(expected: str, decode: Callable[[B], T], data: B) -> T:
    try:
        return decode(data)
    except DECODE_ERRORS as error:
        raise protocol_error(expected, error) from error
