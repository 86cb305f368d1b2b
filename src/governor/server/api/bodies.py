"""Request bodies: read within limits of size, time and depth, as JSON of a known type or as YAML text.

What the bodies of all requests together hold in memory is limited too; small JSON bodies are always admitted.
"""

import asyncio
import json
from functools import partial
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from governor.errors import GovernorError, Kind, invalid
from governor.process.flowcontrol.byte_budget import Reservation
from governor.process.flowcontrol.worker import Worker
from governor.server.api.endpoints import JSON, YAML, Endpoint
from governor.values import structs
from governor.values.paths import render

_COMPARED_BYTES: Final = 4096
"""Up to this size a body is compared with the encoding of its value, before its keys are searched for repeated ones."""
_INLINE_BYTES: Final = 128 * 1024
"""A larger body is decoded by the worker, so that it does not block the event loop, and counts in the budget."""


async def read_body(
    endpoint: Endpoint, headers: Headers, receive: Receive, timeout_s: float, worker: Worker, reserved: Reservation
) -> Any:
    """Return the decoded body, the bytes of YAML text, or None if the endpoint has no body.

    ``reserved`` grows with the body; the caller frees it after the request.
    """
    if endpoint.body is None:
        return None
    media_type = _media_type(endpoint, headers)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise invalid(
            "content-encoding", "the body must not be compressed; send it without the header Content-Encoding"
        )
    try:
        async with asyncio.timeout(timeout_s):
            free_bytes = 0 if media_type == YAML else _INLINE_BYTES
            data = await _read(headers, receive, endpoint.max_body_bytes, reserved, free_bytes)
    except TimeoutError as error:
        raise GovernorError(Kind.DEADLINE, "body-slow", f"the body did not arrive within {timeout_s:g} s") from error
    if media_type == YAML:
        return data
    if len(data) > _INLINE_BYTES:
        return await worker.run(partial(_decode, data, endpoint.body))
    return _decode(data, endpoint.body)


def decode_small(endpoint: Endpoint, headers: Headers, data: bytes) -> Any:
    """Return a body that was received already, decoded; raise if it is too large to be decoded on the event loop."""
    _media_type(endpoint, headers)
    max_bytes = min(endpoint.max_body_bytes, _INLINE_BYTES)
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return _decode(data, endpoint.body)


def _media_type(endpoint: Endpoint, headers: Headers) -> str:
    """Return the media type of the body; raise if the endpoint does not accept it."""
    found = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if found not in ((JSON, YAML) if endpoint.yaml else (JSON,)):
        raise invalid("content-type", f"the body must be {JSON}{f' or {YAML}' if endpoint.yaml else ''}")
    return found


async def _read(headers: Headers, receive: Receive, max_bytes: int, reserved: Reservation, free_bytes: int) -> bytes:
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GovernorError(Kind.UNAVAILABLE, "peer-left", "the connection was closed before the body was complete")
        data += message.get("body", b"")
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        if len(data) > free_bytes:
            reserved.resize(len(data))
        if not message.get("more_body", False):
            return bytes(data)


def _too_large(max_bytes: int) -> GovernorError:
    return invalid("body-large", f"the body is larger than {max_bytes} bytes; split the request")


def _decode(data: bytes, kind: Any) -> Any:
    try:
        decoded = _decode_as(kind, data)
        # What is encoded exactly as its value has no key twice, as the small bodies of agents.
        if len(data) > _COMPARED_BYTES or msgspec.json.encode(decoded) != data:
            _UNIQUE.decode(data.decode())
    except RecursionError as error:
        raise invalid("json-deep", "the JSON is nested too deeply") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid("json-syntax", f"the body is not JSON: {error}") from error
    return decoded


def _decode_as(kind: Any, data: bytes) -> Any:
    """Return a value of a type; malformed JSON behind a value of a wrong type is malformed, not mismatched."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        path, reason = structs.explain(error, kind, _ANY_NUMBER.decode(data.decode()))
        place = f"{render(path)}: " if path else ""
        raise invalid("body-invalid", f"the body does not match this endpoint: {place}{reason}") from error


def _check_unique(pairs: list[tuple[str, Any]]) -> None:
    """Raise if a key occurs twice: JSON parsers disagree about which value counts."""
    keys: set[str] = set()
    if len(dict(pairs)) == len(pairs):
        return
    for key, _ in pairs:
        if key in keys:
            raise invalid("json-duplicate-key", f"the key {key!r} occurs twice in one object; remove one of them")
        keys.add(key)


_UNIQUE: Final = json.JSONDecoder(object_pairs_hook=_check_unique)
_ANY_NUMBER: Final = json.JSONDecoder(parse_int=float)
"""Also reads integers with more digits than Python's ``int`` does."""
