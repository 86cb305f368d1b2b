"""REST bodies as tables for users. Pure; the current time is a parameter."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from governor.domain.changes import Revision
from governor.values.printing import NONE, age, table, timestamp
from governor.wire.rest import DocumentView, RuntimeView, TokenView


def runtimes_table(runtimes: Iterable[RuntimeView], now: datetime) -> str:
    """Return one line per runtime, with its state and since when."""
    rows = [
        (each.name, each.platform, each.summary.state, each.revision or NONE, _since(each, now), each.summary.message)
        for each in runtimes
    ]
    return table(("NAME", "PLATFORM", "STATE", "REVISION", "FOR", "MESSAGE"), rows)


def profiles_table(profiles: Iterable[DocumentView]) -> str:
    """Return one line per profile, with its selector and the number of its resources."""
    rows = [(each.name, each.version, each.revision, *_profile_cells(each.document or {})) for each in profiles]
    return table(("NAME", "VERSION", "REVISION", "PRIORITY", "RESOURCES", "SELECTOR"), rows)


def revisions_table(revisions: Iterable[Revision], now: datetime) -> str:
    """Return one line per revision, with author, age, documents and message."""
    rows = [
        (each.number, age(each.time, now), each.author, ", ".join(map(str, each.documents)), each.message)
        for each in revisions
    ]
    return table(("REVISION", "AGE", "AUTHOR", "DOCUMENTS", "MESSAGE"), rows)


def tokens_table(tokens: Iterable[TokenView], now: datetime) -> str:
    """Return one line per token, without its secret."""
    rows = [
        (
            each.id,
            each.name,
            _role(each),
            _token_state(each, now),
            age(each.created, now),
            timestamp(each.expires),
        )
        for each in tokens
    ]
    return table(("ID", "NAME", "ROLE", "STATE", "AGE", "EXPIRES"), rows)


def _since(runtime: RuntimeView, now: datetime) -> str:
    deciding = next((each for each in runtime.conditions if each.reason == runtime.summary.reason), None)
    return age(deciding.since if deciding else None, now)


def _profile_cells(document: dict[str, Any]) -> tuple[object, ...]:
    spec = document.get("spec", {})
    selector = spec.get("selector")
    selected = msgspec.json.encode(selector).decode() if selector else "all runtimes"
    return spec.get("priority", 0), len(spec.get("resources", ())), selected


def _role(token: TokenView) -> str:
    return f"join {token.runtime}" if token.runtime else str(token.role or NONE)


def _token_state(token: TokenView, now: datetime) -> str:
    if token.used:
        return "used"
    if token.revoked:
        return "revoked"
    return "expired" if token.expires and token.expires <= now else "valid"
