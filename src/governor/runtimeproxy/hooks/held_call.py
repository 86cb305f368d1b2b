"""One call while it is held: its request, its deadline, and the results of its hooks."""

import asyncio
import datetime
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from governor.runtimeproxy.grpc.deadlines import reserve_s, timeout_s
from governor.runtimeproxy.grpc.unary import Metadata
from governor.runtimeproxy.hooks.calls import Call, CriRequest
from governor.runtimeproxy.hooks.merge import MergedRequest
from governor.runtimeproxy.http2.header_blocks import Fields
from governor.runtimeproxy.ops.control import PluginCall, Subject, Trail
from governor.wire.hooks.points import Hook

_TRACE_HEADERS: Final = (b"traceparent", b"tracestate", b"baggage")
_TRAIL_CHARS: Final = 200
_TRAIL_CHANGES: Final = 64


class Held:
    """State of one held call; the dispatcher fills it in."""

    def __init__(self, call: Call, fields: Fields) -> None:
        self.call = call
        self.request: CriRequest | None = None
        """None until the body is decoded."""
        self.body: bytes | None = None
        """Replaces the body for the runtime, if set."""
        headers = dict(fields)
        self.encoding = headers.get(b"grpc-encoding", b"").decode(errors="replace")
        # Not from the dictionary: tracestate and baggage may span several fields.
        self.metadata: Metadata = [field for field in fields if field[0] in _TRACE_HEADERS]
        self.timeout_s = timeout_s(headers.get(b"grpc-timeout", b"").decode(errors="replace"))
        self.subject = Subject()
        self.merged: MergedRequest | None = None
        """The plugins' changes, set once the call is certain to continue."""
        self.not_called = ""
        """Why no plugin could be called."""
        self.rejection = ""
        self.is_response_read = False
        self.succeeded = False
        """Whether the runtime responded with OK."""
        self.started = time.time()
        self._started_s = asyncio.get_running_loop().time()
        self._plugin_calls: list[PluginCall] = []

    def left_s(self, max_reserve_s: float) -> float | None:
        """Return the time left for plugins, or None without a deadline."""
        if self.timeout_s is None:
            return None
        elapsed_s = asyncio.get_running_loop().time() - self._started_s
        return self.timeout_s - elapsed_s - reserve_s(self.timeout_s, max_reserve_s)

    def add_plugin_call(self, plugin: str, hook: Hook, seconds: float, error: str) -> None:
        """Add a finished plugin call to the trail."""
        self._plugin_calls.append(PluginCall(plugin, str(hook), seconds, error[:_TRAIL_CHARS]))

    def mark_plugin_failed(self, error: str) -> None:
        """Mark the last plugin call as failed."""
        self._plugin_calls[-1] = msgspec.structs.replace(self._plugin_calls[-1], error=error[:_TRAIL_CHARS])

    @property
    def involved_plugins(self) -> bool:
        """Return whether a plugin was called, or should have been."""
        return bool(self._plugin_calls or self.not_called or self.rejection)

    def trail(self) -> Trail:
        """Return the plugins' part in this call so far, bounded in size."""
        merged = self.merged
        changes = () if merged is None else merged.changes
        return Trail(
            time=datetime.datetime.fromtimestamp(self.started, datetime.UTC),
            call=str(self.call),
            container=self.subject.container,
            asked=tuple(self._plugin_calls),
            changes=tuple(each.masked(_TRAIL_CHARS) for each in changes[:_TRAIL_CHANGES]),
            conflicts=() if merged is None else _texts(merged.conflicts),
            unused=() if merged is None else _texts(merged.unused),
            left_out=len(changes[_TRAIL_CHANGES:]),
            unasked=self.not_called[: 2 * _TRAIL_CHARS],
            refusal=self.rejection[: 2 * _TRAIL_CHARS],
        )


def _texts(items: Sequence[object]) -> tuple[str, ...]:
    texts = tuple(str(each)[: 2 * _TRAIL_CHARS] for each in items[:_TRAIL_CHANGES])
    left_out = len(items) - len(texts)
    return (*texts, f"and {left_out} more") if left_out else texts
