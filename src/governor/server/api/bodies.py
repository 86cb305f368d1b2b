"""Reading the body of a request: within bounds of size, time and depth, as JSON of a known type or as YAML text."""

import asyncio
import json
from typing import Any, Final

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from governor.errors import GovernorError, Kind, invalid
from governor.server.api.endpoints import BODY_BYTES, JSON, YAML, Endpoint

_LARGE_BYTES: Final = 128 * 1024
"""A body beyond this is decoded in a thread, so that nobody else waits for it."""


async def read_body(endpoint: Endpoint, headers: Headers, receive: Receive, timeout_s: float) -> Any:
    """The decoded body, the bytes of YAML text, or None for an endpoint without body."""
    if endpoint.body is None:
        return None
    media_type = headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type not in ((JSON, YAML) if endpoint.yaml else (JSON,)):
        raise invalid("content-type", f"the body must be {JSON}{f' or {YAML}' if endpoint.yaml else ''}")
    try:
        async with asyncio.timeout(timeout_s):
            data = await _read(headers, receive)
    except TimeoutError as error:
        raise GovernorError(Kind.DEADLINE, "body-slow", f"the body did not arrive within {timeout_s:g} s") from error
    if media_type == YAML:
        return data
    if len(data) > _LARGE_BYTES:
        return await asyncio.to_thread(_decode, data, endpoint.body)
    return _decode(data, endpoint.body)


async def _read(headers: Headers, receive: Receive) -> bytes:
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > BODY_BYTES:
        raise _too_large()
    data = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GovernorError(Kind.UNAVAILABLE, "peer-left", "the connection ended before the body was complete")
        data += message.get("body", b"")
        if len(data) > BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(data)


def _too_large() -> GovernorError:
    return invalid("body-large", f"the body is larger than {BODY_BYTES} bytes; split the request")


def _decode(data: bytes, kind: Any) -> Any:
    try:
        decoded = msgspec.json.decode(data, type=kind)
        json.loads(data, object_pairs_hook=_unique)
    except RecursionError as error:
        raise invalid("json-deep", "the JSON is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise invalid("body-invalid", f"the body is not what this endpoint takes: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid("json-syntax", f"the body is not JSON: {error}") from error
    return decoded


def _unique(pairs: list[tuple[str, Any]]) -> None:
    """JSON readers disagree about a key that is there twice; nobody can mean it."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise invalid("json-duplicate-key", f"the key {twice!r} is there twice in one map; remove one of them")
