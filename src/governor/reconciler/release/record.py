"""The record of a module in the cluster itself: what its chart has generated and rendered, and its delete hooks.

With it a module is rendered again with the same generated values, and removed without its chart. It contains secrets,
and is therefore a Secret, beside the inventory. It is replaced only at the resourceVersion that was read.
"""

import base64
import zlib
from typing import Final

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client import Client
from governor.kube.objects import Object
from governor.reconciler.core_kinds import SECRETS
from governor.reconciler.render.request import Hook
from governor.values.secret import Secret

FORMAT: Final = 1
PREFIX: Final = "release-"
"""Of the names of records."""
MAX_BYTES: Final = 1_000_000
"""A Secret may hold 1,048,576 bytes."""
_TYPE: Final = "runtime-governor.dev/release"
_KEY: Final = "release"
_MAX_TEXT_BYTES: Final = 64 * 1024 * 1024


class _Stored(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    format: int
    recording: str = ""
    hooks: tuple[Hook, ...] = ()
    reference: str = ""
    objects: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """What is stored."""

    recording: Secret | None = None
    """What the chart has generated; for the next rendering."""
    hooks: tuple[Hook, ...] = ()
    """The hooks of the deletion, rendered with what was applied last."""
    reference: str = ""
    """The reference that ``objects`` were rendered for."""
    objects: tuple[str, ...] = ()
    """All objects that were rendered for it so far, if the chart asks the cluster for objects: a chart may render less
    when it finds what it has created itself."""

    def __repr__(self) -> str:
        return f"Record({len(self.hooks)} hooks)"


EMPTY: Final = Record()


class StoredRecord(msgspec.Struct, frozen=True):
    """A record as read or written."""

    record: Record = EMPTY
    uid: str = ""
    """Uid of the Secret; empty if there is none."""
    resource_version: str = ""


class Records:
    """The record of one module in one cluster."""

    def __init__(self, client: Client, namespace: str, module: str, manager: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = f"{PREFIX}{module}"
        self._manager = manager

    async def read(self) -> StoredRecord:
        """Return the record; an empty one if there is none. PRECONDITION if it cannot be read."""
        try:
            found = await self._client.get(SECRETS, self._name, self._namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise
            return StoredRecord()
        return StoredRecord(self._decode(found), *_identity(found))

    async def write(self, stored: StoredRecord, record: Record) -> StoredRecord:
        """Replace the record unless it is the same; CONFLICT if it changed since it was read."""
        if record == stored.record:
            return stored
        manifest = self._manifest(record)
        if stored.uid:
            manifest["metadata"] |= {"uid": stored.uid, "resourceVersion": stored.resource_version}
            written = await self._client.replace(SECRETS, manifest, manager=self._manager)
        else:
            written = await self._client.create(SECRETS, manifest, manager=self._manager)
        return StoredRecord(record, *_identity(written))

    async def delete(self) -> None:
        """Delete the record, if there is one."""
        try:
            await self._client.delete(SECRETS, self._name, self._namespace)
        except GovernorError as error:
            if error.kind is not Kind.NOT_FOUND:
                raise

    def _manifest(self, record: Record) -> Object:
        data = base64.b64encode(encode(record)).decode()
        metadata = {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": "v1", "kind": "Secret", "type": _TYPE, "metadata": metadata, "data": {_KEY: data}}

    def _decode(self, found: Object) -> Record:
        try:
            return decode(base64.b64decode((found.get("data") or {})[_KEY]))
        except (KeyError, ValueError, zlib.error, msgspec.DecodeError) as error:
            message = (
                f"the Secret {self._namespace}/{self._name} with what the chart has generated cannot be read: restore "
                "it, or delete it, and the chart generates new values"
            )
            raise GovernorError(Kind.PRECONDITION, "release-damaged", message) from error


def _identity(found: Object) -> tuple[str, str]:
    return str(found["metadata"]["uid"]), str(found["metadata"]["resourceVersion"])


def encode(record: Record) -> bytes:
    """Return a record as compressed JSON; INVALID if it does not fit into a Secret."""
    recording = record.recording.reveal() if record.recording else ""
    stored = _Stored(FORMAT, recording, record.hooks, record.reference, record.objects)
    packed = zlib.compress(msgspec.json.encode(stored))
    if len(packed) > MAX_BYTES:
        message = f"generated values and delete hooks take {len(packed)} bytes, and a Secret holds {MAX_BYTES}"
        raise invalid("release-too-large", f"{message}: make the hooks of the chart smaller")
    return packed


def decode(packed: bytes) -> Record:
    """Return a record; ValueError or DecodeError for anything else."""
    decompressor = zlib.decompressobj()
    text = decompressor.decompress(packed, _MAX_TEXT_BYTES)
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise ValueError("the record is not complete, or too large")
    stored = msgspec.json.decode(text, type=_Stored)
    if stored.format > FORMAT:
        message = f"the record of the module has format {stored.format}: use the version that wrote it"
        raise GovernorError(Kind.UNIMPLEMENTED, "release-format", message)
    recording = Secret(stored.recording) if stored.recording else None
    return Record(recording, stored.hooks, stored.reference, stored.objects)
