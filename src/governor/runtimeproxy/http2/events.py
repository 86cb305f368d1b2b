"""What a relay tells its caller."""

from typing import TypeAlias

import msgspec

from governor.runtimeproxy.http2.blocks import Fields
from governor.runtimeproxy.http2.streams import Outcome, Side


class Wanted(msgspec.Struct, frozen=True):
    """The first stream for an upstream came: attach it, or say that it is lost."""

    side: Side


class Opened(msgspec.Struct, frozen=True):
    """The client opened a stream; told by a relay that is watched."""

    stream: int
    path: bytes
    fields: Fields


class Said(msgspec.Struct, frozen=True):
    """A part of a request that is not held; told by a relay that is watched."""

    stream: int
    data: bytes


class Requested(msgspec.Struct, frozen=True):
    """A held request is complete: release or refuse it."""

    stream: int
    path: bytes
    fields: Fields
    body: bytes


class Responded(msgspec.Struct, frozen=True):
    """A held response is complete: release or refuse it. Without a body ``trailers`` are often the only fields."""

    stream: int
    path: bytes
    fields: Fields
    body: bytes
    trailers: Fields


class Ended(msgspec.Struct, frozen=True):
    """A stream is over, at both ends; every stream's last event. A hook that still works for it works in vain."""

    stream: int
    path: bytes
    hooked: bool
    """Whether its request was held, or was to be."""
    outcome: Outcome
    status: bytes
    """The gRPC status that the client was told; empty if none."""


Event: TypeAlias = Wanted | Opened | Said | Requested | Responded | Ended
