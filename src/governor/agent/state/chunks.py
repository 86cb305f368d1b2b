"""State in the form of Secrets: values, compressed and split into chunks, and the index that names them. Pure.

The index is one Secret. A value is one or more immutable Secrets; their names contain its generation, which is unique.
A small value is in the index itself, so that it is stored by one request.
"""

import hashlib
import re
import secrets
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, Self

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.kube.objects import ApiResource, Object

SECRETS: Final = ApiResource("", "v1", "Secret", "secrets", namespaced=True)
STATE_TYPE: Final = "runtime-governor.dev/agent-state"
AGENT_LABEL: Final = "runtime-governor.dev/agent"
VALUE_LABEL: Final = "runtime-governor.dev/value"
CHUNK_BYTES: Final = 768 * 1024
"""Below the API server's limit of 1 MiB for the data of a Secret."""
INLINE_BYTES: Final = 256 * 1024
"""The largest size of all compressed values in the index together: those of a thousand sidecars have 80 KiB."""

_FORMAT: Final = 2
_FORMATS: Final = frozenset({1, _FORMAT})
"""Format 1 has all values in chunks."""
_INDEX_KEY: Final = "index"
_CHUNK_KEY: Final = "chunk"
_AGENT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Value(msgspec.Struct, frozen=True):
    """One stored value: its generation and number of chunks, and the size and digest of its content.

    ``inline`` is the compressed content of a value without chunks.
    """

    generation: str
    chunks: int
    size: int
    digest: str
    inline: bytes = b""

    @classmethod
    def of(cls, data: bytes, chunks: Sequence[bytes], *, inline: bool = False) -> Self:
        """Return a new generation, in chunks or ``inline``."""
        content = b"".join(chunks) if inline else b""
        return cls(secrets.token_hex(8), 0 if inline else len(chunks), len(data), _digest(data), content)


class Index(msgspec.Struct, frozen=True):
    """The stored values by name, and the process that may change them: the last one that opened the state.

    ``holder`` is the name of that process, for messages. ``epoch`` rises each time that another one opens the state.
    """

    writer: str
    values: Mapping[str, Value] = {}
    format: int = _FORMAT
    holder: str = ""
    epoch: int = 1

    def with_value(self, name: str, value: Value | None) -> "Index":
        """Return the index with another value of this name, or without one."""
        others = {key: each for key, each in self.values.items() if key != name}
        return msgspec.structs.replace(self, values=others if value is None else {**others, name: value})

    def takes_inline(self, name: str, packed: Sequence[bytes]) -> bool:
        """Return whether a value is stored in the index: a small one, if another value is in chunks.

        Chunks without an index show that the index was deleted, so at least one value is stored in chunks.
        """
        others = [each for other, each in self.values.items() if other != name]
        size = sum(map(len, (*packed, *(each.inline for each in others))))
        return size <= INLINE_BYTES and any(each.chunks for each in others)


class Place(msgspec.Struct, frozen=True):
    """The Secrets of one agent."""

    namespace: str
    agent: str

    def __post_init__(self) -> None:
        if not _AGENT_NAME.fullmatch(self.agent):
            message = (
                f"the agent name {self.agent!r} must be a DNS label: at most 63 lower-case letters, digits, hyphens"
            )
            raise invalid("agent-name", message)

    @property
    def index_name(self) -> str:
        """The name of the index."""
        return f"governor-state.{self.agent}"

    @property
    def selector(self) -> str:
        """The label selector of the index and all chunks."""
        return f"{AGENT_LABEL}={self.agent}"

    def chunk_names(self, value: Value) -> list[str]:
        """Return the names of a value's chunks, in order."""
        return [f"{self.index_name}.{value.generation}.{number}" for number in range(value.chunks)]

    def index_manifest(self, index: Index) -> Object:
        """Return a Secret with the index."""
        return self._manifest(self.index_name, {_INDEX_KEY: msgspec.json.encode(index)})

    def chunk_manifest(self, name: str, value_name: str, chunk: bytes) -> Object:
        """Return an immutable Secret with one chunk of the value ``value_name``."""
        manifest = self._manifest(name, {_CHUNK_KEY: chunk}, {VALUE_LABEL: value_name})
        return {**manifest, "immutable": True}

    def _manifest(self, name: str, data: Mapping[str, bytes], labels: Mapping[str, str] | None = None) -> Object:
        described = {AGENT_LABEL: self.agent, **(labels or {})}
        return {
            "apiVersion": SECRETS.api_version,
            "kind": SECRETS.kind,
            "metadata": {"namespace": self.namespace, "name": name, "labels": described},
            "type": STATE_TYPE,
            "data": data,
        }

    def damaged(self, what: str, reason: str) -> GovernorError:
        """Return the error for state that cannot be read."""
        message = (
            f"the agent's {what} in namespace {self.namespace} is damaged: {reason}; restore it from a backup, or "
            f"delete the Secrets with the label {self.selector} and join again"
        )
        return GovernorError(Kind.PRECONDITION, "state-damaged", message)


def pack(data: bytes) -> list[bytes]:
    """Compress a value and split it into at least one chunk."""
    packed = zlib.compress(data)
    return [packed[start : start + CHUNK_BYTES] for start in range(0, len(packed), CHUNK_BYTES)]


def unpack(chunks: Sequence[bytes], value: Value) -> bytes:
    """Return the content of a value; ValueError if it is not what was stored."""
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(b"".join(chunks), value.size + 1)
    except zlib.error as error:
        raise ValueError("a chunk is not what was stored") from error
    if decompressor.unused_data or len(data) != value.size or _digest(data) != value.digest:
        raise ValueError("its content differs from what was stored")
    return data


class _Secret(msgspec.Struct, frozen=True):
    type: str = ""
    data: Mapping[str, bytes] = {}


def read_index(manifest: Object) -> Index:
    """Return the index in a Secret; ValueError if there is none that this version reads."""
    try:
        index = msgspec.json.decode(_read(manifest, _INDEX_KEY), type=Index)
    except msgspec.MsgspecError as error:
        raise ValueError("its index is unreadable") from error
    if index.format not in _FORMATS:
        raise ValueError(f"its format {index.format} is of another version of the agent")
    return msgspec.structs.replace(index, format=_FORMAT)


def read_chunk(manifest: Object) -> bytes:
    """Return the chunk in a Secret; ValueError if there is none."""
    return _read(manifest, _CHUNK_KEY)


def _read(manifest: Object, key: str) -> bytes:
    try:
        secret = msgspec.convert(manifest, _Secret)
    except msgspec.ValidationError as error:
        raise ValueError("it is not a Secret") from error
    if secret.type != STATE_TYPE:
        raise ValueError(f"its type is not {STATE_TYPE}")
    if key not in secret.data:
        raise ValueError(f"it has no key {key!r}")
    return secret.data[key]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
