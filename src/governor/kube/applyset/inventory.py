"""Storage of a set's inventory: one ConfigMap with the entries of the set and the claim of its writer.

It is replaced only at the resourceVersion that was read: a crash leaves the old state or the new one, and of two
concurrent writers one gets CONFLICT. ``entries`` defines the content. An inventory of format v1, whose entries may
continue in further ConfigMaps (chunks), is still read, and converted by the next write.
"""

import hashlib
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind
from governor.kube.applyset.entries import Entries, pack, unpack
from governor.kube.applyset.live import get
from governor.kube.applyset.settings import Claim, Owner, Settings
from governor.kube.client import Client, Request
from governor.kube.objects import ApiResource, Object, ObjectRef
from governor.process.clock import Clock
from governor.values.digest import digest

FORMAT: Final = "v2"
CONFIG_MAPS: Final = ApiResource("", "v1", "ConfigMap", "configmaps", namespaced=True)

CLAIM_LOST: Final = "claim-lost"
CLAIM_TTL_S: Final = 10.0
"""How long a holder may write after it has read the claim."""

_NAMESPACES: Final = ApiResource("", "v1", "Namespace", "namespaces", namespaced=False)
_KUBE_SYSTEM: Final = "kube-system"
_FORMAT_V1: Final = "v1"
_READ_ATTEMPTS: Final = 3


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    name: str
    digest: str


class StoredClaim(msgspec.Struct, frozen=True):
    """A claim in the inventory."""

    claim: Claim
    settled: bool = False
    """Whether its holder has waited until the holder before it can no longer write."""


class Snapshot(msgspec.Struct, frozen=True):
    """An inventory as read or written."""

    entries: Entries = {}
    uid: str = ""
    """Uid of the ConfigMap; empty if there is no inventory."""
    resource_version: str = ""
    claim: StoredClaim | None = None
    is_v1: bool = False


_decode_chunks: Final = msgspec.json.Decoder(tuple[_Chunk, ...]).decode
_decode_claim: Final = msgspec.json.Decoder(StoredClaim | None).decode


class Inventory:
    """The inventory of one set."""

    def __init__(self, client: Client, owner: Owner, settings: Settings) -> None:
        self._client = client
        self._owner = owner
        self._settings = settings

    @property
    def ref(self) -> ObjectRef:
        """Return the reference of the ConfigMap."""
        return ObjectRef("", "ConfigMap", self._owner.namespace, self._owner.name)

    async def read(self) -> Snapshot:
        """Read the inventory; PRECONDITION if it is damaged or belongs to another owner."""
        previous = ""
        for _ in range(_READ_ATTEMPTS):
            head = await get(self._client, CONFIG_MAPS, self.ref)
            if head is None:
                return Snapshot()
            snapshot, texts, chunks = self._open(head)
            missing = None
            for chunk in chunks:
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

    async def write(self, snapshot: Snapshot, entries: Entries, claim: StoredClaim | None = None) -> Snapshot:
        """Replace the entries, and the claim if one is given; CONFLICT if the inventory changed since it was read.

        Nothing is sent if there is no claim and the entries are the same.
        """
        if claim is None and entries == snapshot.entries and (snapshot.uid or not entries):
            return snapshot
        claim = claim or snapshot.claim
        head = self._head(pack(entries), claim)
        try:
            if snapshot.uid:
                head["metadata"] |= {"uid": snapshot.uid, "resourceVersion": snapshot.resource_version}
                written = await self._client.replace(CONFIG_MAPS, head, manager=self._settings.manager)
            else:
                written = await self._client.create(CONFIG_MAPS, head, manager=self._settings.manager)
        except GovernorError as error:
            raise self._conflict(error) from error
        if snapshot.is_v1:
            await self._delete_chunks(snapshot.uid)
        return Snapshot(entries, written["metadata"]["uid"], written["metadata"]["resourceVersion"], claim)

    async def is_at(self, snapshot: Snapshot) -> bool:
        """Return whether the inventory is still the one that was read or written."""
        try:
            found = await self._client.get(CONFIG_MAPS, self.ref.name, self.ref.namespace, metadata_only=True)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return False
        metadata = found["metadata"]
        return (metadata["uid"], metadata["resourceVersion"]) == (snapshot.uid, snapshot.resource_version)

    async def delete(self, snapshot: Snapshot) -> None:
        """Delete the inventory; CONFLICT if it changed since it was read."""
        preconditions = {"uid": snapshot.uid, "resourceVersion": snapshot.resource_version}
        body = msgspec.json.encode({"preconditions": preconditions})
        path = CONFIG_MAPS.path(self.ref.namespace, self.ref.name)
        try:
            await self._client.send(Request("DELETE", path, body=body))
        except GovernorError as error:
            raise self._conflict(error) from error
        if snapshot.is_v1:
            await self._delete_chunks(snapshot.uid)

    def _open(self, head: Object) -> tuple[Snapshot, list[str], tuple[_Chunk, ...]]:
        data = head.get("data") or {}
        if data.get("format") not in {FORMAT, _FORMAT_V1}:
            raise self._foreign(
                f"its format is {data.get('format')!r}, not {FORMAT!r}: it is not an inventory, or of a newer version"
            )
        if data.get("owner") != self._owner.id:
            raise self._foreign(f"it is the inventory of {data.get('owner')!r}, not of {self._owner.id!r}")
        if data.get("digest") != checksum(data):
            raise self._damaged("its content does not match its digest")
        is_v1 = data["format"] == _FORMAT_V1
        try:
            chunks = _decode_chunks(data.get("chunks", "")) if is_v1 else ()
            claim = None if is_v1 else _decode_claim(data.get("claim", ""))
        except msgspec.MsgspecError as error:
            raise self._damaged(f"its claim or list of chunks cannot be decoded: {error}") from error
        if len({chunk.name for chunk in chunks}) != len(chunks):
            raise self._damaged("it lists a chunk twice")
        metadata = head["metadata"]
        snapshot = Snapshot({}, metadata["uid"], metadata["resourceVersion"], claim, is_v1)
        return snapshot, [data.get("entries", "")], chunks

    async def _read_chunk(self, chunk: _Chunk) -> str | None:
        found = await get(self._client, CONFIG_MAPS, ObjectRef("", "ConfigMap", self.ref.namespace, chunk.name))
        text = str(((found or {}).get("data") or {}).get("entries", ""))
        return text if hashlib.sha256(text.encode()).hexdigest() == chunk.digest else None

    def _unpack(self, texts: list[str]) -> Entries:
        try:
            return unpack(texts)
        except GovernorError as error:
            raise self._damaged(error.message) from error

    async def _delete_chunks(self, uid: str) -> None:
        """Delete the chunks of format v1. Those that a crash leaves are deleted with the inventory, which owns them."""
        labels = f"{self._settings.inventory_label}={self._owner.id}"
        found = [each async for each in self._client.list(CONFIG_MAPS, self.ref.namespace, labels=labels)]
        for chunk in found:
            metadata = chunk["metadata"]
            if not any(owner["uid"] == uid for owner in metadata.get("ownerReferences", ())):
                continue
            try:
                await self._client.delete(CONFIG_MAPS, metadata["name"], self.ref.namespace, uid=metadata["uid"])
            except GovernorError as error:
                if error.kind is not Kind.NOT_FOUND:  # another writer deleted it
                    raise

    def _head(self, text: str, claim: StoredClaim | None) -> Object:
        data = {
            "format": FORMAT,
            "owner": self._owner.id,
            "claim": msgspec.json.encode(claim).decode(),
            "entries": text,
        }
        labels = {self._settings.inventory_label: self._owner.id}
        metadata = {"name": self.ref.name, "namespace": self.ref.namespace, "labels": labels}
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": data | {"digest": checksum(data)},
        }

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


class ClaimGuard:
    """Lets a set be written only while its claim is the stored one; without a claim it permits every write.

    The claim is stored before the first stage, read before each later one unless it is fresh, and before a write if
    the last read is ``CLAIM_TTL_S`` old. A new holder waits that long after it has stored its claim: the holder before
    it has then read the new claim, or begins no write any more. A request that it has begun may still arrive, with its
    retries; there are at most ``Settings.concurrency``.
    """

    def __init__(
        self,
        client: Client,
        inventory: Inventory,
        claim: Claim | None,
        clock: Clock,
        *,
        exclusive: bool = False,
        fresh_s: float = 0.0,
    ) -> None:
        self._client = client
        self._inventory = inventory
        self._claim = claim
        self._clock = clock
        self._exclusive = exclusive
        self._fresh_s = min(fresh_s, CLAIM_TTL_S)
        self._snapshot = Snapshot()
        self._read_at: float | None = None
        self._taken_at: float | None = None
        """When the claim was stored; None if that is not known."""

    def verify(self, snapshot: Snapshot) -> None:
        """Raise PRECONDITION with the present holder if the stored claim is newer than this one."""
        mine, stored = self._claim, snapshot.claim.claim if snapshot.claim else None
        if mine is None or stored is None:
            return
        if mine.is_superseded_by(stored) or (self._exclusive and mine.holder != stored.holder):
            raise self._lost(stored)

    async def take(self, snapshot: Snapshot) -> None:
        """Store the claim; CONFLICT if the inventory changed since it was read, PRECONDITION if claimed."""
        if self._claim is None:
            return
        await self.verify_cluster()
        self.verify(snapshot)
        if snapshot.claim is None:
            await self._store(snapshot, snapshot.entries, self._claim, settled=True)
        elif not self._is_settled(snapshot):
            await self._announce(snapshot, self._claim)

    async def begin(self, snapshot: Snapshot, entries: Entries) -> Snapshot:
        """Store claim and entries, after ``verify_cluster``.

        CONFLICT if the inventory changed since it was read, PRECONDITION if claimed.
        """
        if self._claim is None:
            return await self._inventory.write(snapshot, entries)
        self.verify(snapshot)
        if not self._is_settled(snapshot):
            snapshot = await self._announce(snapshot, self._claim)
            await self._wait()
        return await self._store(snapshot, entries, self._claim, settled=True)

    async def permit(self) -> None:
        """Return when something outside the set may be written; PRECONDITION if another holder has claimed the set."""
        if self._claim is not None:
            await self._wait()
            await self.before_write()

    async def before_stage(self) -> None:
        """Read the claim unless it is fresh; PRECONDITION if another holder has claimed the set."""
        if self._claim is not None and self._is_older_than(self._fresh_s):
            await self._read()

    async def before_write(self) -> None:
        """Read the claim until the last read is not too old: the process may be suspended during a read."""
        while self._claim is not None and self._is_older_than(CLAIM_TTL_S):
            await self._read()

    def _is_older_than(self, seconds: float) -> bool:
        return self._read_at is None or self._clock.monotonic() - self._read_at >= seconds

    async def _read(self) -> None:
        read_at = self._clock.monotonic()
        if not await self._inventory.is_at(self._snapshot):
            snapshot = await self._inventory.read()
            if snapshot.claim is None or snapshot.claim.claim != self._claim:
                raise self._lost(snapshot.claim.claim if snapshot.claim else None)
            self._snapshot = snapshot
        self._read_at = read_at

    def _is_settled(self, snapshot: Snapshot) -> bool:
        """Return whether no holder before this one can write: there was none, or this one has waited."""
        return snapshot.claim is None or (self._holds(snapshot) and snapshot.claim.settled)

    def _holds(self, snapshot: Snapshot) -> bool:
        mine, stored = self._claim, snapshot.claim
        return bool(mine and stored and (stored.claim.holder, stored.claim.epoch) == (mine.holder, mine.epoch))

    async def _announce(self, snapshot: Snapshot, claim: Claim) -> Snapshot:
        """Store a claim whose holder has not waited yet, unless it is; return the inventory."""
        if not self._holds(snapshot):
            snapshot = await self._store(snapshot, snapshot.entries, claim, settled=False)
            self._taken_at = self._clock.monotonic()
        elif self._taken_at is None:  # by a process before this one
            self._taken_at = self._clock.monotonic()
        return snapshot

    async def _wait(self) -> None:
        if self._taken_at is not None:
            left_s = self._taken_at + CLAIM_TTL_S - self._clock.monotonic()
            if left_s > 0:
                await self._clock.sleep(left_s)

    async def _store(self, snapshot: Snapshot, entries: Entries, claim: Claim, *, settled: bool) -> Snapshot:
        read_at = self._clock.monotonic()
        stored = await self._inventory.write(snapshot, entries, StoredClaim(claim, settled))
        self._snapshot, self._read_at = stored, read_at
        return stored

    async def verify_cluster(self) -> None:
        """Raise PRECONDITION if this is not the cluster of the claim."""
        claim = self._claim
        if claim is None:
            return
        uid = (await self._client.get(_NAMESPACES, _KUBE_SYSTEM, metadata_only=True))["metadata"]["uid"]
        if uid != claim.cluster_uid:
            message = (
                f"the claim of {claim.holder!r} is for the cluster {claim.cluster_uid!r}, and this is the cluster "
                f"{uid!r}; nothing was written. Check the access to the cluster"
            )
            raise GovernorError(Kind.PRECONDITION, CLAIM_LOST, message)

    def _lost(self, stored: Claim | None) -> GovernorError:
        present = f"is claimed by {stored}" if stored else "is no longer claimed"
        message = f"{self._inventory.ref}: the set {present}; {self._claim} may no longer write"
        return GovernorError(Kind.PRECONDITION, CLAIM_LOST, message)


def checksum(data: dict[str, str]) -> str:
    """Return the digest of an inventory's content. It detects accidental damage, not tampering."""
    keys = ("entries", "chunks") if data.get("format") == _FORMAT_V1 else ("claim", "entries")
    return digest([data.get(key) for key in ("format", "owner", *keys)])
