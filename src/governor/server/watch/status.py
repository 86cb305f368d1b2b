"""The states of runtimes and the progress of revisions, made from what is stored and from who watches.

Reading gives facts, and a pure function makes of them what people see.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

import msgspec
import sqlalchemy as sa

from governor.domain.conditions import Condition, Progress, connected, summarise, verified
from governor.domain.documents import DocumentRef, Runtime, read_document
from governor.server.store.deliveries import (
    Heard,
    Issued,
    acknowledged_since,
    issued_in,
    newest_heard,
    newest_issued,
)
from governor.server.store.documents import document_version, newest_versions
from governor.server.store.identities import enrolled_runtimes, find_runtime_key, revocations
from governor.server.watch.hub import Presence
from governor.values.trees import Manifest
from governor.wire.rest import RevisionProgress, RuntimeProgress, RuntimeView

PresenceOf: TypeAlias = Callable[[str], Presence]


class Facts(msgspec.Struct, frozen=True):
    """What is stored about one runtime: its document, its newest delivery and the newest report."""

    tree: Manifest
    enrolled: bool
    issued: Issued | None
    heard: Heard | None
    revoked: datetime | None = None


class ProgressFacts(msgspec.Struct, frozen=True):
    """What is stored about one runtime and one revision: what it was sent then, what is newest, what it verified."""

    first: Issued
    enrolled: bool
    newest: Issued
    heard: Heard | None
    acknowledged: tuple[Issued, Heard] | None
    revoked: datetime | None = None


def read_runtimes(connection: sa.Connection) -> list[Facts]:
    """The facts of all runtimes, by name."""
    issued, heard, enrolled = newest_issued(connection), newest_heard(connection), enrolled_runtimes(connection)
    revoked = revocations(connection)
    return [
        Facts(
            version.tree,
            version.name in enrolled,
            issued.get(version.name),
            heard.get(version.name),
            revoked.get(version.name),
        )
        for version in newest_versions(connection, "Runtime").values()
        if version.tree is not None
    ]


def read_runtime(connection: sa.Connection, name: str) -> Facts | None:
    """The facts of one runtime."""
    version = document_version(connection, DocumentRef("Runtime", name))
    if version is None or version.tree is None:
        return None
    is_enrolled = find_runtime_key(connection, name) is not None
    issued, heard = newest_issued(connection, name), newest_heard(connection, name)
    revoked = revocations(connection, name).get(name)
    return Facts(version.tree, is_enrolled, issued.get(name), heard.get(name), revoked)


def runtime_view(facts: Facts, presence_of: PresenceOf) -> RuntimeView:
    """A runtime for people."""
    runtime = read_document(facts.tree)
    assert isinstance(runtime, Runtime)  # noqa: S101 - read under this kind
    name, issued = runtime.metadata.name, facts.issued
    conditions = _conditions(name, facts, issued, facts.heard, presence_of)
    return RuntimeView(
        name=name,
        platform=runtime.spec.platform,
        labels=runtime.metadata.labels,
        sequence=issued.sequence if issued else 0,
        attempt=issued.attempt if issued else 0,
        revision=issued.revision if issued else 0,
        digest=issued.digest if issued else "",
        summary=summarise(conditions),
        conditions=conditions,
        report=facts.heard.report if facts.heard else None,
    )


def read_progress(connection: sa.Connection, revision: int) -> list[ProgressFacts]:
    """The facts of all runtimes that a revision concerned and that still exist."""
    first = {issued.runtime: issued for issued in issued_in(connection, revision)}
    if not first:
        return []
    existing = {ref.name for ref, version in newest_versions(connection, "Runtime").items() if version.tree is not None}
    newest, heard = newest_issued(connection), newest_heard(connection)
    enrolled, verified_by = enrolled_runtimes(connection), acknowledged_since(connection, revision)
    revoked = revocations(connection)
    return [
        ProgressFacts(issued, name in enrolled, newest[name], heard.get(name), verified_by.get(name), revoked.get(name))
        for name, issued in first.items()
        if name in existing
    ]


def revision_progress(
    revision: int, facts: list[ProgressFacts], presence_of: PresenceOf, now: datetime
) -> RevisionProgress:
    """How far a revision is out."""
    runtimes = tuple(_runtime_progress(each, presence_of, now) for each in facts)
    return RevisionProgress(revision, all(each.done for each in runtimes), runtimes)


def _runtime_progress(facts: ProgressFacts, presence_of: PresenceOf, now: datetime) -> RuntimeProgress:
    name = facts.first.runtime
    issued, heard = facts.acknowledged or (facts.newest, facts.heard)
    moment = heard.verified if facts.acknowledged and heard and heard.verified else now
    return RuntimeProgress(
        runtime=name,
        sequence=issued.sequence,
        summary=summarise(_conditions(name, facts, issued, heard, presence_of)),
        done=facts.acknowledged is not None,
        # The clock may have been set back in between.
        seconds=max(0.0, (moment - facts.first.time).total_seconds()),
    )


def _conditions(
    runtime: str, facts: Facts | ProgressFacts, issued: Issued | None, heard: Heard | None, presence_of: PresenceOf
) -> tuple[Condition, ...]:
    progress = Progress(issued.sequence, issued.digest, issued.time) if issued else None
    presence = presence_of(runtime)
    return (
        verified(progress, heard.report if heard else None),
        connected(enrolled=facts.enrolled, watching=presence.watching, since=presence.since, revoked=facts.revoked),
    )
