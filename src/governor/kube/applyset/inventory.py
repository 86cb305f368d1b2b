"""Where the inventory of a set is kept: one ConfigMap, and further ones for what does not fit into it.

The first, the head, lists the others by name and digest and is replaced only at the version that was read. The others
never change: a new state gets new ones first, then the head, and only then the old ones go. So whoever stops in the
middle leaves the old state or the new one, and of two writers one is told. What the entries mean is not known here.
"""

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entries, pack, unpack
from governor.kube.applyset.get import look
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.values.digest import digest

FORMAT: Final = "v1"
CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)

_BASE: Final = "base"
_READS: Final = 3


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A ConfigMap beside the head, and the digest of the piece in it."""

    name: str
    digest: str


class Stored(msgspec.Struct, frozen=True):
    """An inventory as it was read or written."""

    entries: Entries = {}
    uid: str = ""
    """Of the head; empty while there is none."""
    version: str = ""
    chunks: tuple[Chunk, ...] = ()


_decode_chunks: Final = msgspec.json.Decoder(tuple[Chunk, ...]).decode


class Inventory:
    """The inventory of one set."""

    def __init__(self, client: Client, owner: Owner, settings: Settings) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings

    @property
    def ref(self) -> ObjectRef:
        """The head."""
        return ObjectRef("", "ConfigMap", self._owner.namespace, self._owner.name)

    def holds(self, ref: ObjectRef) -> bool:
        """Whether an object is, or could become, a part of the inventory itself."""
        beside = ref.name == self.ref.name or ref.name.startswith(f"{self.ref.name}.")
        return beside and (ref.group, ref.kind, ref.namespace) == ("", "ConfigMap", self.ref.namespace)

    async def read(self) -> Stored:
        """What it says; PRECONDITION if it is damaged or somebody else's."""
        seen = ""
        for _ in range(_READS):
            head = await look(self._client, CONFIG_MAPS, self.ref)
            if head is None:
                return Stored()
            stored, pieces = self._open(head)
            missing = None
            for chunk in stored.chunks:
                piece = await self._piece(chunk)
                if piece is None:
                    missing = chunk.name
                    break
                pieces.append(piece)
            if missing is None:
                return msgspec.structs.replace(stored, entries=self._unpack(pieces))
            if stored.version == seen:
                raise self._damaged(f"its part {missing} is missing or was changed")
            seen = stored.version  # another writer may have replaced the parts while they were read
        raise GovernorError(Kind.CONFLICT, "inventory-conflict", f"{self.ref} changes faster than it can be read")

    async def write(self, stored: Stored, entries: Entries) -> Stored:
        """Replace what was read; CONFLICT if it is no longer that."""
        if entries == stored.entries and (stored.uid or not entries):
            return stored
        pieces = pack(entries)
        if not stored.uid:
            first = pieces if len(pieces) == 1 else pack({})
            stored = self._written(await self._create_head(first[0]), entries if len(pieces) == 1 else {}, ())
            if len(pieces) == 1:
                return stored
        chunks = tuple([await self._chunk(piece, stored) for piece in pieces[1:]])
        head = self._head(pieces[0], chunks)
        head["metadata"] |= {"uid": stored.uid, "resourceVersion": stored.version}
        written = self._written(await self._replace_head(head), entries, chunks)
        if stored.chunks or chunks:
            await self._sweep(written)
        return written

    async def delete(self, stored: Stored) -> None:
        """Remove it all; CONFLICT if it is no longer what was read."""
        preconditions = {"uid": stored.uid, "resourceVersion": stored.version}
        body = msgspec.json.encode({"preconditions": preconditions})
        path = CONFIG_MAPS.path(self.ref.namespace, self.ref.name)
        try:
            await self._client.send(Request("DELETE", path, body=body))
        except GovernorError as error:
            raise self._raced(error) from error
        for chunk in await self._chunks_of(stored.uid):
            await self._delete_chunk(chunk)

    def _open(self, head: Object) -> tuple[Stored, list[str]]:
        data = head.get("data") or {}
        if data.get("format") != FORMAT:
            why = f"its format is {data.get('format')!r}, not {FORMAT!r}: it is no inventory, or a newer program's"
            raise GovernorError(Kind.PRECONDITION, "inventory-foreign", f"{self.ref}: {why}; name another ConfigMap")
        if data.get("owner") != self._owner.id:
            why = f"it is the inventory of {data.get('owner')!r}, not of {self._owner.id!r}"
            raise GovernorError(Kind.PRECONDITION, "inventory-foreign", f"{self.ref}: {why}; name another ConfigMap")
        if data.get("digest") != seal(data):
            raise self._damaged("its content does not have the digest that it names")
        try:
            chunks = _decode_chunks(data.get("chunks", ""))
        except msgspec.MsgspecError as error:
            raise self._damaged(f"its list of parts cannot be read: {error}") from error
        if len({chunk.name for chunk in chunks}) != len(chunks):
            raise self._damaged("it lists a part twice")
        metadata = head["metadata"]
        return Stored({}, metadata["uid"], metadata["resourceVersion"], chunks), [data.get("entries", "")]

    async def _piece(self, chunk: Chunk) -> str | None:
        found = await look(self._client, CONFIG_MAPS, ObjectRef("", "ConfigMap", self.ref.namespace, chunk.name))
        piece = str(((found or {}).get("data") or {}).get("entries", ""))
        return piece if _digest(piece) == chunk.digest else None

    def _unpack(self, pieces: list[str]) -> Entries:
        try:
            return unpack(pieces)
        except GovernorError as error:
            raise self._damaged(error.message) from error

    async def _chunk(self, piece: str, stored: Stored) -> Chunk:
        """The part with this piece: the one that is there, or a new one under a name that nobody else can take."""
        wanted = _digest(piece)
        known = next((chunk for chunk in stored.chunks if chunk.digest == wanted), None)
        if known:
            return known
        name = f"{self.ref.name}.{secrets.token_hex(6)}"
        manifest = self._config_map(name, {"entries": piece}) | {"immutable": True}
        manifest["metadata"] |= {
            "annotations": {f"{self._settings.prefix}/{_BASE}": stored.version},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": self.ref.name, "uid": stored.uid}],
        }
        await self._client.create(CONFIG_MAPS, manifest, manager=self._settings.manager)
        return Chunk(name, wanted)

    async def _create_head(self, piece: str) -> Object:
        try:
            return await self._client.create(CONFIG_MAPS, self._head(piece, ()), manager=self._settings.manager)
        except GovernorError as error:
            raise self._raced(error) from error

    async def _replace_head(self, head: Object) -> Object:
        try:
            return await self._client.replace(CONFIG_MAPS, head, manager=self._settings.manager)
        except GovernorError as error:
            raise self._raced(error) from error

    async def _sweep(self, written: Stored) -> None:
        """Remove parts that no head can name any more: a head that would was to replace one older than the written."""
        current = {chunk.name for chunk in written.chunks}
        for chunk in await self._chunks_of(written.uid):
            base = chunk["metadata"].get("annotations", {}).get(f"{self._settings.prefix}/{_BASE}", "")
            if chunk["metadata"]["name"] not in current and _is_older(base, written.version):
                await self._delete_chunk(chunk)

    async def _chunks_of(self, uid: str) -> list[Object]:
        labels = f"{self._settings.inventory_label}={self._owner.id}"
        found = self._client.list(CONFIG_MAPS, self.ref.namespace, labels=labels)
        return [each async for each in found if _owned_by(each, uid)]

    async def _delete_chunk(self, chunk: Object) -> None:
        metadata = chunk["metadata"]
        try:
            await self._client.delete(CONFIG_MAPS, metadata["name"], self.ref.namespace, uid=metadata["uid"])
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:  # another writer swept it
                raise

    def _head(self, piece: str, chunks: tuple[Chunk, ...]) -> Object:
        listed = msgspec.json.encode(chunks).decode()
        data = {"format": FORMAT, "owner": self._owner.id, "entries": piece, "chunks": listed}
        return self._config_map(self.ref.name, data | {"digest": seal(data)})

    def _config_map(self, name: str, data: dict[str, str]) -> Object:
        labels = {self._settings.inventory_label: self._owner.id}
        metadata = {"name": name, "namespace": self.ref.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def _written(self, head: Object, entries: Entries, chunks: tuple[Chunk, ...]) -> Stored:
        return Stored(entries, head["metadata"]["uid"], head["metadata"]["resourceVersion"], chunks)

    def _raced(self, error: GovernorError) -> GovernorError:
        if error.kind not in {Kind.CONFLICT, Kind.EXISTS}:
            return error
        message = (
            f"{self.ref}: another writer changed the inventory of {self._owner.id!r} since it was read; read again"
        )
        return GovernorError(Kind.CONFLICT, "inventory-conflict", message)

    def _damaged(self, why: str) -> GovernorError:
        message = (
            f"{self.ref}: the inventory of {self._owner.id!r} is damaged: {why}. Nothing is written or removed. "
            "Restore it; or delete it, then the next apply begins a new one, without what is no longer wanted"
        )
        return GovernorError(Kind.PRECONDITION, "inventory-damaged", message)


def _owned_by(chunk: Object, uid: str) -> bool:
    owners: Iterable[Any] = chunk["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == uid for owner in owners)


def _is_older(version: str, than: str) -> bool:
    return version.isdigit() and than.isdigit() and int(version) < int(than)


def seal(data: dict[str, str]) -> str:
    """The digest of a head's content: it finds accidents, not intruders, who can compute it as well."""
    return digest([data.get(key) for key in ("format", "owner", "entries", "chunks")])


def _digest(piece: str) -> str:
    return hashlib.sha256(piece.encode()).hexdigest()
