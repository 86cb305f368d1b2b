"""The protocol of the linked renderer: frames of four bytes of length and JSON. Pure, without I/O."""

from typing import Any, Final, Literal, TypeAlias

import msgspec

from governor.errors import GovernorError, Kind
from governor.reconciler.render.request import (
    Document,
    Hook,
    LookupCall,
    Reads,
    Rendered,
    Request,
    UnknownHook,
)
from governor.values.secret import Secret

PROTOCOL: Final = 1
HEAD_BYTES: Final = 4
MAX_BYTES: Final = 64 * 1024 * 1024
_LOOKUP_PREFIX: Final = b'{"type":"lookup"'
_ENCODER: Final = msgspec.json.Encoder()


class _Ready(msgspec.Struct, frozen=True, tag="ready"):
    protocol: int = 0
    helm: str = ""


class _Lookup(msgspec.Struct, frozen=True, tag="lookup"):
    lookup: LookupCall


class _Result(msgspec.Struct, frozen=True, rename="camel"):
    crds: tuple[Document, ...]
    objects: tuple[Document, ...]
    hooks: tuple[Hook, ...]
    unknown_hooks: tuple[UnknownHook, ...]
    reads: Reads
    lookups: tuple[LookupCall, ...]
    recording: msgspec.Raw


class _Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    rendered: _Result


class _Failed(msgspec.Struct, frozen=True, tag="failed"):
    kind: Literal["invalid", "exhausted"]
    message: str


_Frame: TypeAlias = _Ready | _Lookup | _Rendered | _Failed
_DECODER: Final[msgspec.json.Decoder[_Frame]] = msgspec.json.Decoder(_Frame)


def encode_request(request: Request) -> bytes:
    """Return the frame that asks for a rendering."""
    capabilities = request.capabilities
    body = {
        "chart": str(request.chart),
        "release": request.release_name,
        "namespace": request.namespace,
        "isUpgrade": request.is_upgrade,
        "values": [{"text": each.text.reveal(), "sensitive": each.is_sensitive} for each in request.values],
        "kubeVersion": capabilities.kube_version,
        "apiVersions": capabilities.api_versions,
        "recording": msgspec.Raw(request.recording.reveal().encode()) if request.recording else None,
        "lookup": request.lookup is not None,
    }
    return _frame({"type": "render", "request": body})


def encode_answer(found: Any, error: str = "") -> bytes:
    """Return the frame that answers a lookup: an object, None if there is none, or an error."""
    return _frame({"type": "answer", "object": found, "error": error} if found else {"type": "answer", "error": error})


def _frame(message: dict[str, Any]) -> bytes:
    body = _ENCODER.encode(message)
    if len(body) > MAX_BYTES:
        text = f"a message to the renderer has {len(body)} bytes; {MAX_BYTES} are allowed: make the values smaller"
        raise GovernorError(Kind.EXHAUSTED, "render-too-large", text)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def body_length(head: bytes) -> int:
    """Return the length that the head of a frame announces; raise if it is not allowed."""
    length = int.from_bytes(head, "big")
    if length > MAX_BYTES:
        raise GovernorError(Kind.INTERNAL, "renderer-protocol", f"the renderer announces a frame of {length} bytes")
    return length


def check_ready(body: bytes) -> None:
    """Raise unless a frame says that a renderer of this protocol is ready."""
    frame = _decode(body)
    if not isinstance(frame, _Ready) or frame.protocol != PROTOCOL:
        message = f"the renderer does not speak protocol {PROTOCOL}: install the one of this version"
        raise GovernorError(Kind.PRECONDITION, "renderer-protocol", message)


def decode_call(body: bytes) -> LookupCall | None:
    """Return the lookup that a frame asks for, or None if it is the result of the rendering."""
    # Results are large: do not decode them twice.
    if not body.startswith(_LOOKUP_PREFIX):
        return None
    frame = _decode(body)
    return frame.lookup if isinstance(frame, _Lookup) else None


def decode_result(body: bytes) -> Rendered:
    """Return the result of a rendering; raise if it failed."""
    frame = _decode(body)
    if isinstance(frame, _Failed):
        kind = Kind.INVALID if frame.kind == "invalid" else Kind.EXHAUSTED
        raise GovernorError(kind, "render-failed", frame.message)
    if not isinstance(frame, _Rendered):
        raise GovernorError(Kind.INTERNAL, "renderer-protocol", "the renderer sent an unexpected frame")
    found = frame.rendered
    recording = bytes(found.recording)
    return Rendered(
        crds=found.crds,
        objects=found.objects,
        hooks=found.hooks,
        unknown_hooks=found.unknown_hooks,
        reads=found.reads,
        lookups=found.lookups,
        recording=None if recording == b"null" else Secret(recording.decode()),
    )


def _decode(body: bytes) -> _Frame:
    try:
        return _DECODER.decode(body)
    except msgspec.DecodeError as error:
        message = "the renderer sent a frame that cannot be read"
        raise GovernorError(Kind.INTERNAL, "renderer-protocol", message) from error
