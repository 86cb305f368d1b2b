"""A cache of renderings, bounded by bytes.

The key is the chart's digest, the values, release name and namespace, and of the capabilities only those that the chart
has read: clusters that differ in others share a rendering. What depends on anything else is never cached: generated
values, lookups, and values from Secrets.
"""

import hashlib
from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from governor.reconciler.render.request import Reads, Rendered, Renderer, Request

_MAX_BYTES: Final = 32 * 1024 * 1024
_DECODER: Final = msgspec.msgpack.Decoder(Rendered)


class _Key(NamedTuple):
    chart_digest: str
    values: bytes
    release_name: str
    namespace: str
    is_upgrade: bool


class RenderCache:
    """Renderings in memory; the one that was used least recently is dropped first."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._reads: dict[_Key, Reads] = {}
        """What a chart reads with certain values; it may read more after a condition on a capability."""
        self._entries: OrderedDict[tuple[_Key, Reads, tuple[object, ...]], bytes] = OrderedDict()
        self.bytes = 0

    def get(self, request: Request) -> Rendered | None:
        """Return the rendering that is equal for this request, or None."""
        key = key_of(request)
        reads = self._reads.get(key)
        if reads is None:
            return None
        entry = (key, reads, reads.of(request.capabilities))
        if entry not in self._entries:
            return None
        self._entries.move_to_end(entry)
        return _DECODER.decode(self._entries[entry])

    def put(self, request: Request, rendered: Rendered) -> None:
        """Keep a rendering, unless it depends on more than its key."""
        if not is_cacheable(request, rendered):
            return
        key, content = key_of(request), msgspec.msgpack.encode(rendered)
        if len(content) > self._max_bytes:
            return
        self._reads[key] = rendered.reads
        entry = (key, rendered.reads, rendered.reads.of(request.capabilities))
        self.bytes += len(content) - len(self._entries.pop(entry, b""))
        self._entries[entry] = content
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self._max_bytes:
            (key, reads, _), content = self._entries.popitem(last=False)
            self.bytes -= len(content)
            if self._reads.get(key) == reads:
                del self._reads[key]


def key_of(request: Request) -> _Key:
    """Return the part of the key that is known before the rendering."""
    values = hashlib.sha256()
    for layer in request.values:
        text = layer.text.reveal().encode()
        values.update(f"{len(text)}:".encode() + text)
    return _Key(request.chart_digest, values.digest(), request.release_name, request.namespace, request.is_upgrade)


def is_cacheable(request: Request, rendered: Rendered) -> bool:
    """Return whether a rendering depends on nothing but its key."""
    is_sensitive = any(layer.is_sensitive for layer in request.values)
    return not (is_sensitive or rendered.lookups or rendered.recording or request.recording)


class CachingRenderer:
    """A renderer that renders only what its cache does not have."""

    def __init__(self, renderer: Renderer, cache: RenderCache) -> None:
        self._renderer = renderer
        self._cache = cache

    async def render(self, request: Request) -> Rendered:
        """Return a rendering from the cache, or render the chart."""
        known = self._cache.get(request)
        if known is not None:
            return known
        rendered = await self._renderer.render(request)
        self._cache.put(request, rendered)
        return rendered
