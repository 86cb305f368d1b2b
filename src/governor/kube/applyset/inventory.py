"""Storage of a set's inventory: a head ConfigMap, and chunk ConfigMaps for entries that do not fit into it.

The head lists the chunks by name and digest and is replaced only at the resourceVersion that was read. Chunks are
immutable: a write creates new chunks, then replaces the head, then deletes old chunks. A crash therefore leaves the old
state or the new one, and of two concurrent writers one gets CONFLICT. ``entries`` defines the content.
"""

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entries, pack, unpack
from governor.kube.applyset.live import get
from governor.kube.applyset.settings import Owner, Settings
from governor.kube.client import Client, Request
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.values.digest import digest

FORMAT: Final = "v1"
CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)

_BASE: Final = "base"
_READ_ATTEMPTS: Final = 3


class ChunkRef(msgspec.Struct, frozen=True, array_like=True):
    """Name of a chunk ConfigMap and the digest of its entries."""

    name: str
    digest: str


class Snapshot(msgspec.Struct, frozen=True):
    """An inventory as read or written."""

    entries: Entries = {}
    uid: str = ""
    """Uid of the head; empty if there is no inventory."""
    resource_version: str = ""
    chunks: tuple[ChunkRef, ...] = ()


_decode_chunks: Final = msgspec.json.Decoder(tuple[ChunkRef, ...]).decode


class Inventory:
    """The inventory of one set."""

    def __init__(self, client: Client, owner: Owner, settings: Settings) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings

    @property
    def ref(self) -> ObjectRef:
        """Return the reference of the head."""
        return ObjectRef("", "ConfigMap", self._owner.namespace, self._owner.name)

    def reserves(self, ref: ObjectRef) -> bool:
        """Return whether the name is that of the head or a possible chunk."""
        matches = ref.name == self.ref.name or ref.name.startswith(f"{self.ref.name}.")
        return matches and (ref.group, ref.kind, ref.namespace) == ("", "ConfigMap", self.ref.namespace)

    async def read(self) -> Snapshot:
        """Read the inventory; PRECONDITION if it is damaged or belongs to another owner."""
        previous = ""
        for _ in range(_READ_ATTEMPTS):
            head = await get(self._client, CONFIG_MAPS, self.ref)
            if head is None:
                return Snapshot()
            snapshot, texts = self._open(head)
            missing = None
            for chunk in snapshot.chunks:
                text = await self._read_chunk(chunk)
                if text is None:
                    missing = chunk.name
                    break
                texts.append(text)
            if missing is None:
                return msgspec.structs.replace(snapshot, entries=self._unpack(texts))
            if snapshot.resource_version == previous:
                raise self._damaged(f"its chunk {missing} is missing or was changed")
            previous = snapshot.resource_version  # another writer may have replaced the chunks during the read
        raise GovernorError(Kind.CONFLICT, "inventory-conflict", f"{self.ref} changes faster than it can be read")

    async def write(self, snapshot: Snapshot, entries: Entries) -> Snapshot:
        """Replace the snapshot's entries; CONFLICT if the inventory changed since it was read."""
        if entries == snapshot.entries and (snapshot.uid or not entries):
            return snapshot
        texts = pack(entries)
        if not snapshot.uid:
            first = texts if len(texts) == 1 else pack({})
            snapshot = self._written(await self._create_head(first[0]), entries if len(texts) == 1 else {}, ())
            if len(texts) == 1:
                return snapshot
        chunks = tuple([await self._ensure_chunk(text, snapshot) for text in texts[1:]])
        head = self._head(texts[0], chunks)
        head["metadata"] |= {"uid": snapshot.uid, "resourceVersion": snapshot.resource_version}
        written = self._written(await self._replace_head(head), entries, chunks)
        if snapshot.chunks or chunks:
            await self._delete_old_chunks(written)
        return written

    async def delete(self, snapshot: Snapshot) -> None:
        """Delete head and chunks; CONFLICT if the inventory changed since it was read."""
        preconditions = {"uid": snapshot.uid, "resourceVersion": snapshot.resource_version}
        body = msgspec.json.encode({"preconditions": preconditions})
        path = CONFIG_MAPS.path(self.ref.namespace, self.ref.name)
        try:
            await self._client.send(Request("DELETE", path, body=body))
        except GovernorError as error:
            raise self._conflict(error) from error
        for chunk in await self._list_chunks(snapshot.uid):
            await self._delete_chunk(chunk)

    def _open(self, head: Object) -> tuple[Snapshot, list[str]]:
        data = head.get("data") or {}
        if data.get("format") != FORMAT:
            raise self._foreign(
                f"its format is {data.get('format')!r}, not {FORMAT!r}: it is not an inventory, or of a newer version"
            )
        if data.get("owner") != self._owner.id:
            raise self._foreign(f"it is the inventory of {data.get('owner')!r}, not of {self._owner.id!r}")
        if data.get("digest") != checksum(data):
            raise self._damaged("its content does not match its digest")
        try:
            chunks = _decode_chunks(data.get("chunks", ""))
        except msgspec.MsgspecError as error:
            raise self._damaged(f"its list of chunks cannot be decoded: {error}") from error
        if len({chunk.name for chunk in chunks}) != len(chunks):
            raise self._damaged("it lists a chunk twice")
        metadata = head["metadata"]
        return Snapshot({}, metadata["uid"], metadata["resourceVersion"], chunks), [data.get("entries", "")]

    async def _read_chunk(self, chunk: ChunkRef) -> str | None:
        found = await get(self._client, CONFIG_MAPS, ObjectRef("", "ConfigMap", self.ref.namespace, chunk.name))
        text = str(((found or {}).get("data") or {}).get("entries", ""))
        return text if _digest(text) == chunk.digest else None

    def _unpack(self, texts: list[str]) -> Entries:
        try:
            return unpack(texts)
        except GovernorError as error:
            raise self._damaged(error.message) from error

    async def _ensure_chunk(self, text: str, snapshot: Snapshot) -> ChunkRef:
        """Return the chunk with this text; create it under an unused name if the snapshot has none."""
        expected = _digest(text)
        known = next((chunk for chunk in snapshot.chunks if chunk.digest == expected), None)
        if known:
            return known
        name = f"{self.ref.name}.{secrets.token_hex(6)}"
        manifest = self._config_map(name, {"entries": text}) | {"immutable": True}
        manifest["metadata"] |= {
            "annotations": {f"{self._settings.label_prefix}/{_BASE}": snapshot.resource_version},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": self.ref.name, "uid": snapshot.uid}],
        }
        await self._client.create(CONFIG_MAPS, manifest, manager=self._settings.manager)
        return ChunkRef(name, expected)

    async def _create_head(self, text: str) -> Object:
        try:
            return await self._client.create(CONFIG_MAPS, self._head(text, ()), manager=self._settings.manager)
        except GovernorError as error:
            raise self._conflict(error) from error

    async def _replace_head(self, head: Object) -> Object:
        try:
            return await self._client.replace(CONFIG_MAPS, head, manager=self._settings.manager)
        except GovernorError as error:
            raise self._conflict(error) from error

    async def _delete_old_chunks(self, written: Snapshot) -> None:
        """Delete chunks that no head can list any more.

        A chunk names the head's resourceVersion that its writer read. If that is older than the head just written, the
        writer's own head is rejected with CONFLICT.
        """
        current = {chunk.name for chunk in written.chunks}
        for chunk in await self._list_chunks(written.uid):
            base = chunk["metadata"].get("annotations", {}).get(f"{self._settings.label_prefix}/{_BASE}", "")
            if chunk["metadata"]["name"] not in current and _is_older(base, written.resource_version):
                await self._delete_chunk(chunk)

    async def _list_chunks(self, uid: str) -> list[Object]:
        labels = f"{self._settings.inventory_label}={self._owner.id}"
        found = self._client.list(CONFIG_MAPS, self.ref.namespace, labels=labels)
        return [each async for each in found if _is_owned_by(each, uid)]

    async def _delete_chunk(self, chunk: Object) -> None:
        metadata = chunk["metadata"]
        try:
            await self._client.delete(CONFIG_MAPS, metadata["name"], self.ref.namespace, uid=metadata["uid"])
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:  # another writer deleted it
                raise

    def _head(self, text: str, chunks: tuple[ChunkRef, ...]) -> Object:
        listed = msgspec.json.encode(chunks).decode()
        data = {"format": FORMAT, "owner": self._owner.id, "entries": text, "chunks": listed}
        return self._config_map(self.ref.name, data | {"digest": checksum(data)})

    def _config_map(self, name: str, data: dict[str, str]) -> Object:
        labels = {self._settings.inventory_label: self._owner.id}
        metadata = {"name": name, "namespace": self.ref.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def _written(self, head: Object, entries: Entries, chunks: tuple[ChunkRef, ...]) -> Snapshot:
        return Snapshot(entries, head["metadata"]["uid"], head["metadata"]["resourceVersion"], chunks)

    def _conflict(self, error: GovernorError) -> GovernorError:
        if error.kind not in {Kind.CONFLICT, Kind.EXISTS}:
            return error
        message = f"{self.ref}: another writer changed the inventory of {self._owner.id!r} since it was read; retry"
        return GovernorError(Kind.CONFLICT, "inventory-conflict", message)

    def _foreign(self, why: str) -> GovernorError:
        return GovernorError(Kind.PRECONDITION, "inventory-foreign", f"{self.ref}: {why}; use another ConfigMap name")

    def _damaged(self, why: str) -> GovernorError:
        message = (
            f"{self.ref}: the inventory of {self._owner.id!r} is damaged: {why}. Nothing was written or pruned. "
            "Restore it, or delete it: the next apply then starts a new one, which does not list objects that are no "
            "longer desired"
        )
        return GovernorError(Kind.PRECONDITION, "inventory-damaged", message)


def checksum(data: dict[str, str]) -> str:
    """Return the digest of a head's content. It detects accidental damage, not tampering."""
    return digest([data.get(key) for key in ("format", "owner", "entries", "chunks")])


def _is_owned_by(chunk: Object, uid: str) -> bool:
    owners: Iterable[Any] = chunk["metadata"].get("ownerReferences", ())
    return any(owner["uid"] == uid for owner in owners)


def _is_older(version: str, than: str) -> bool:
    return version.isdigit() and than.isdigit() and int(version) < int(than)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
