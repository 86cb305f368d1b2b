"""What a caller reads of an object: its own small struct, decoded straight from the server's bytes.

A view names only the fields that its caller decides by. The decoder skips the rest, so managedFields and whole specs
never become Python objects. Two views of one object are equal when nothing the caller reads has changed. A map of
labels or annotations costs a dictionary per object; a struct with the one wanted key as a field is smaller. Asking the
server and keeping views is not done here.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.errors import UNDECODABLE
from governor.kube.pages import ListPage, Position


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Which object, and which version of it; subclass it to read labels, finalizers and the like.

    The version is left out of equality: it changes with every write, whether or not a field that is read did.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        fields = _compared(type(self))
        return fields(self) == fields(other)

    def __hash__(self) -> int:
        return hash((self.namespace, self.name, self.uid))


@functools.cache
def _compared(metadata: type[Metadata]) -> Callable[[object], object]:
    return operator.attrgetter(*(each for each in metadata.__struct_fields__ if each != "resource_version"))


class View(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What every view has; subclass it with the fields that are read. Items of a list carry no kind or apiVersion."""

    metadata: Metadata


V = TypeVar("V", bound=View)
B = TypeVar("B")
T = TypeVar("T")


class Unreadable(msgspec.Struct, frozen=True):
    """An object that does not fit the view, and why."""

    metadata: Metadata
    reason: str


class Page(msgspec.Struct, Generic[V], frozen=True):
    """One page of a list."""

    position: Position
    objects: Sequence[V | Unreadable]


class ViewEvent(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """One event of a watch about an object that fits the view."""

    type: str
    object: V


class Envelope(msgspec.Struct, frozen=True):
    """One event of a watch, whatever it is about."""

    type: str
    object: msgspec.Raw


class _Positioned(msgspec.Struct, frozen=True):
    metadata: Position


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_identity = msgspec.json.Decoder(View).decode
_decode_positioned = msgspec.json.Decoder(_Positioned).decode
_decode_raw_page = msgspec.json.Decoder(ListPage[msgspec.Raw]).decode


class Reading(Generic[V]):
    """Decodes lists and events of one kind into views; one object that does not fit spoils no other."""

    def __init__(self, view: type[V]) -> None:
        self._decode_view = msgspec.json.Decoder(view).decode
        self._decode_page = msgspec.json.Decoder(ListPage[view]).decode  # type: ignore[valid-type]
        self.event: Callable[[bytes], ViewEvent[V]] = msgspec.json.Decoder(ViewEvent[view]).decode  # type: ignore[valid-type]
        """A line of a watch as ``type`` and ``object``, in one pass; UNDECODABLE unless the object fits the view."""

    def page(self, body: bytes) -> Page[V]:
        """One page of a list."""
        try:
            page = self._decode_page(body)
        except UNDECODABLE:
            raw = _checked("a list", _decode_raw_page, body)
            return Page(_followable(raw.metadata), [self.object(item) for item in raw.items or ()])
        return Page(_followable(page.metadata), page.items or ())

    def object(self, raw: msgspec.Raw) -> V | Unreadable:
        """One object."""
        try:
            return self._decode_view(raw)
        except UNDECODABLE as error:
            return Unreadable(_checked("an object", _decode_identity, raw).metadata, str(error))


def envelope(line: bytes) -> Envelope:
    """The outside of one event of a watch."""
    return _checked("an event", _decode_envelope, line)


def position(bookmark: msgspec.Raw) -> Position:
    """Where a bookmark is."""
    return _followable(_checked("a bookmark", _decode_positioned, bookmark).metadata)


def _followable(position: Position) -> Position:
    if not position.resource_version:
        raise garbled("a list or bookmark", "it has no resourceVersion, so what comes after it cannot be asked for")
    return position


def garbled(what: str, why: object) -> GovernorError:
    """What the server sent is no part of the protocol."""
    return GovernorError(Kind.UNAVAILABLE, "kube-garbled", f"the answer is not {what} of an API server: {why}")


def _checked(what: str, decode: Callable[[B], T], data: B) -> T:
    try:
        return decode(data)
    except UNDECODABLE as error:
        raise garbled(what, error) from error
