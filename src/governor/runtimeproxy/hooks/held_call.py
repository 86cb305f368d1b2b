"""A call that is held: its request, the time there is for it, and what became of it so far."""

import asyncio
import datetime
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from governor.runtimeproxy.grpc.deadlines import reserve_s, timeout_s
from governor.runtimeproxy.grpc.unary import Metadata
from governor.runtimeproxy.hooks.calls import Call, CriRequest
from governor.runtimeproxy.hooks.consulting import Consultation
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.ops.control import Asked, Subject, Trail
from governor.wire.hooks.points import Hook

_TRACE: Final = (b"traceparent", b"tracestate", b"baggage")
_SHOWN_LETTERS: Final = 200
_SHOWN_CHANGES: Final = 64


class Held:
    """One held call; whoever works on it fills it in."""

    def __init__(self, call: Call, fields: Fields) -> None:
        self.call = call
        self.request: CriRequest | None = None
        """As far as it can be read."""
        self.body: bytes | None = None
        """What the runtime is to get instead of what came."""
        headers = dict(fields)
        self.encoding = headers.get(b"grpc-encoding", b"").decode(errors="replace")
        # One by one, as a tracestate or a baggage may be spread over several fields.
        self.metadata: Metadata = [field for field in fields if field[0] in _TRACE]
        self.timeout_s = timeout_s(headers.get(b"grpc-timeout", b"").decode(errors="replace"))
        self.subject = Subject()
        self.consultation: Consultation | None = None
        """What the plugins changed, once it is decided that the runtime gets it."""
        self.unasked = ""
        """Why no plugin could be asked."""
        self.refusal = ""
        self.is_done = False
        """The runtime has done it and says so."""
        self.began = time.time()
        self._began_s = asyncio.get_running_loop().time()
        self._asked: list[Asked] = []

    def left_s(self, reserve_wanted_s: float) -> float | None:
        """The time that plugins may take now; None if there is no deadline."""
        if self.timeout_s is None:
            return None
        gone_s = asyncio.get_running_loop().time() - self._began_s
        return self.timeout_s - gone_s - reserve_s(self.timeout_s, reserve_wanted_s)

    def note_asked(self, plugin: str, hook: Hook, seconds: float, error: str) -> None:
        """A plugin was asked."""
        self._asked.append(Asked(plugin, str(hook), seconds, error[:_SHOWN_LETTERS]))

    def note_failed(self, error: str) -> None:
        """What the plugin that was asked last answered, or did not, is a failure."""
        self._asked[-1] = msgspec.structs.replace(self._asked[-1], error=error[:_SHOWN_LETTERS])

    @property
    def concerned_plugins(self) -> bool:
        """Whether a plugin was asked, or should have been."""
        return bool(self._asked or self.unasked or self.refusal)

    def trail(self) -> Trail:
        """What plugins made of it so far."""
        found = self.consultation
        changes = () if found is None else found.changes
        return Trail(
            time=datetime.datetime.fromtimestamp(self.began, datetime.UTC),
            call=str(self.call),
            container=self.subject.container,
            asked=tuple(self._asked),
            changes=tuple(each.shown(_SHOWN_LETTERS) for each in changes[:_SHOWN_CHANGES]),
            conflicts=() if found is None else _remarks(found.conflicts),
            unused=() if found is None else _remarks(found.unused),
            left_out=len(changes[_SHOWN_CHANGES:]),
            unasked=self.unasked[: 2 * _SHOWN_LETTERS],
            refusal=self.refusal[: 2 * _SHOWN_LETTERS],
        )


def _remarks(found: Sequence[object]) -> tuple[str, ...]:
    """In words, bounded as all that is remembered."""
    words = tuple(str(each)[: 2 * _SHOWN_LETTERS] for each in found[:_SHOWN_CHANGES])
    left_out = len(found) - len(words)
    return (*words, f"and {left_out} more") if left_out else words
