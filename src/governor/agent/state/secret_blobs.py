"""State in Secrets of the agent's namespace, for one writer at a time.

A write creates the chunks of the new value, unless it is small enough for the index, and then replaces the index, so
that a reader finds the old value or the new one. The index is replaced only in the version that this process has read
or written last. Opening the state changes the index: from then on no process that opened it earlier can write, and
chunks that the index does not name are removed.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import msgspec

from governor.agent.state import chunks
from governor.agent.state.chunks import SECRETS, Index, Place, Value
from governor.errors import GovernorError, Kind
from governor.kube.client import Client
from governor.kube.errors import ApiError
from governor.kube.objects import Object
from governor.process.telemetry import logging

_MANAGER: Final = "governor-agent-state"
_ATTEMPTS: Final = 5
_NOT_EXECUTED: Final = frozenset({Kind.CONFLICT, Kind.DENIED, Kind.INVALID, Kind.NOT_FOUND, Kind.PRECONDITION})
"""Errors after which a write has certainly not taken effect."""

_log = logging.get_logger(__name__)


class _Loaded(NamedTuple):
    content: Index
    manifest: Object


class SecretBlobs:
    """The values of one agent in Secrets; create it by ``open``."""

    def __init__(self, client: Client, place: Place, holder: str) -> None:
        self._client = client
        self._place = place
        self.holder = holder
        """The name of this process, for messages."""
        self._writer = secrets.token_hex(8)
        self._index = Index(self._writer, holder=holder)
        self._manifest = place.index_manifest(self._index)
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, client: Client, namespace: str, agent: str) -> Self:
        """Take over the state of an agent, or create it, and remove what interrupted writes have left.

        ``agent`` names the agent in its namespace. A process that opened the state earlier cannot write any more.
        """
        blobs = cls(client, Place(namespace, agent), f"{agent} on {socket.gethostname()}")
        with blobs._explained():
            await blobs._take_over()
            await blobs._sweep()
        return blobs

    @property
    def epoch(self) -> int:
        """The epoch of this process: higher than that of each process that opened the state earlier."""
        return self._index.epoch

    def location(self, name: str) -> str:
        """Return where a value is stored, for messages."""
        return f"{name} in the Secrets of {self._place.namespace} with the label {self._place.selector}"

    async def read(self, name: str) -> bytes | None:
        """Return a value, or None if there is none; PRECONDITION if it is damaged."""
        async with self._lock:
            value = self._index.values.get(name)
            if value is None:
                return None
            with self._explained():
                try:
                    names = self._place.chunk_names(value)
                    packed = [await self._chunk(each) for each in names] if names else [value.inline]
                    return await asyncio.to_thread(chunks.unpack, packed, value)
                except ValueError as error:
                    await self._reload()
                    raise self._place.damaged(f"state {name!r}", str(error)) from error

    async def write(self, name: str, data: bytes) -> None:
        """Store a value; CONFLICT if another process has opened the state since."""
        packed = await asyncio.to_thread(chunks.pack, data)
        async with self._lock:
            value = Value.of(data, packed, inline=self._index.takes_inline(name, packed))
            with self._explained():
                if value.chunks:
                    await self._create_chunks(name, value, packed)
                await self._commit(name, value)

    async def remove(self, name: str) -> None:
        """Remove a value if there is one; CONFLICT if another process has opened the state since."""
        async with self._lock:
            with self._explained():
                if name in self._index.values:
                    await self._commit(name, None)

    async def raise_epoch(self, above: int) -> int:
        """Return the epoch of this process, raised above another one; CONFLICT if another process has opened the state.

        A later process has a higher one, even if the state was lost meanwhile and something else remembers an epoch.
        """
        async with self._lock:
            with self._explained():
                if self._index.epoch <= above:
                    await self._change(lambda index: msgspec.structs.replace(index, epoch=max(index.epoch, above + 1)))
            return self._index.epoch

    async def _take_over(self) -> None:
        for _ in range(_ATTEMPTS):
            stored = await self._load() or await self._load_without_chunks()
            try:
                if stored is None:
                    self._manifest = await self._client.create(SECRETS, self._manifest, manager=_MANAGER)
                else:
                    self._manifest, index = stored.manifest, stored.content
                    index = msgspec.structs.replace(
                        index, writer=self._writer, holder=self.holder, epoch=index.epoch + 1
                    )
                    await self._replace(index)
            except ApiError as error:
                if error.kind not in (Kind.CONFLICT, Kind.EXISTS):
                    raise
            else:
                return
        raise self._taken_over("several processes at once")

    async def _load_without_chunks(self) -> _Loaded | None:
        """Load the index again if there are chunks: it is created before them, so it exists or was deleted."""
        if not await self._names():
            return None
        stored = await self._load()
        if stored is None:
            raise self._place.damaged("state", f"the Secret {self._place.index_name} is missing")
        return stored

    async def _sweep(self) -> None:
        """Remove chunks that the index does not name: no other process can add them to it any more."""
        used = {each for value in self._index.values.values() for each in self._place.chunk_names(value)}
        await self._delete(set(await self._names()) - used - {self._place.index_name})

    async def _names(self) -> list[str]:
        found = self._client.list(
            SECRETS,
            self._place.namespace,
            labels=self._place.selector,
            fields=f"type={chunks.STATE_TYPE}",
            metadata_only=True,
        )
        return [each["metadata"]["name"] async for each in found]

    async def _chunk(self, name: str) -> bytes:
        """Return a chunk; ValueError if it is missing or unreadable."""
        try:
            return chunks.read_chunk(await self._client.get(SECRETS, name, self._place.namespace))
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            raise ValueError(f"the Secret {name} is missing") from error
        except ValueError as error:
            raise ValueError(f"the Secret {name} is unreadable: {error}") from error

    async def _create_chunks(self, name: str, value: Value, packed: Sequence[bytes]) -> None:
        try:
            for chunk_name, chunk in zip(self._place.chunk_names(value), packed, strict=True):
                manifest = self._place.chunk_manifest(chunk_name, name, chunk)
                await self._client.create(SECRETS, manifest, manager=_MANAGER)
        except GovernorError:
            await self._discard(value)
            raise

    async def _commit(self, name: str, value: Value | None) -> None:
        """Set or remove a value in the index, then remove the chunks of those that it replaces."""
        replaced = set[Value]()
        try:
            await self._update(name, value, replaced)
        except GovernorError as error:
            # After any other error the index may name the new value, or may do so in a moment.
            if value is not None and error.kind in _NOT_EXECUTED:
                await self._discard_unless_stored(value)
            raise
        for each in replaced - {value}:
            await self._discard(each)

    async def _update(self, name: str, value: Value | None, replaced: set[Value]) -> None:
        """Set or remove a value in the index, and add those that it replaces to ``replaced``."""

        def change(index: Index) -> Index:
            replaced.update({index.values[name]} if name in index.values else ())
            return index.with_value(name, value)

        await self._change(change)

    async def _change(self, change: Callable[[Index], Index]) -> None:
        """Replace the index; if it changed, load it and try again as long as no other process has taken over.

        It changes if a user edits its metadata, or by a write of this process whose response was lost.
        """
        for attempt in range(_ATTEMPTS):
            try:
                await self._replace(change(self._index))
            except ApiError as error:
                if error.kind not in (Kind.CONFLICT, Kind.NOT_FOUND) or attempt == _ATTEMPTS - 1:
                    raise
                await self._reload()
            else:
                return

    async def _replace(self, index: Index) -> None:
        manifest = {**self._manifest, "data": self._place.index_manifest(index)["data"]}
        self._manifest = await self._client.replace(SECRETS, manifest, manager=_MANAGER)
        self._index = index

    async def _reload(self) -> None:
        """Load the index again; CONFLICT if another process has taken over."""
        stored = await self._load()
        if stored is None:
            raise self._place.damaged("state", f"the Secret {self._place.index_name} was deleted while the agent ran")
        if stored.content.writer != self._writer:
            raise self._taken_over(stored.content.holder)
        self._index, self._manifest = stored

    async def _load(self) -> _Loaded | None:
        name = self._place.index_name
        try:
            manifest = await self._client.get(SECRETS, name, self._place.namespace)
            return _Loaded(chunks.read_index(manifest), manifest)
        except ApiError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return None
        except ValueError as error:
            raise self._place.damaged(f"Secret {name}", str(error)) from error

    async def _discard_unless_stored(self, value: Value) -> None:
        """Remove the chunks of a value that was not stored; a retried request may have stored it all the same."""
        with contextlib.suppress(GovernorError):
            stored = await self._load()
            if stored is not None and value not in stored.content.values.values():
                await self._discard(value)

    async def _discard(self, value: Value) -> None:
        """Remove the chunks of a value that no index names; what remains is removed at the next start."""
        try:
            await self._delete(self._place.chunk_names(value))
        except GovernorError as error:
            _log.warning("cannot remove chunks of old state", generation=value.generation, error=str(error))

    async def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                await self._client.delete(SECRETS, name, self._place.namespace)
            except ApiError as error:
                if error.kind is not Kind.NOT_FOUND:
                    raise

    def _taken_over(self, holder: str) -> GovernorError:
        message = (
            f"the agent's state in Secret {self._place.namespace}/{self._place.index_name} was opened by {holder}, "
            f"so {self.holder} does not change it any more; run one agent for each runtime"
        )
        return GovernorError(Kind.CONFLICT, "state-taken-over", message)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say which permissions are needed if the API server denies a request."""
        try:
            yield
        except ApiError as error:
            if error.kind is not Kind.DENIED:
                raise
            message = (
                f"the agent cannot keep its state in namespace {self._place.namespace}: {error.message}; allow its "
                "ServiceAccount to get, list, create, update and delete Secrets there"
            )
            raise GovernorError(Kind.DENIED, "state-denied", message) from error
