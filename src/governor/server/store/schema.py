"""The current tables. Every change needs a migration; a test proves that both produce the same schema."""

from typing import Final

import sqlalchemy as sa

from governor.domain.bundles import Delivery
from governor.domain.changes import Change
from governor.domain.conditions import Condition
from governor.domain.documents import ApplyPolicy, ResourceRef
from governor.domain.inventories import Inventory
from governor.domain.reports import Report
from governor.domain.windows import Hold, Restraint, Window
from governor.server.store.columns import Json, SealedTree, Timestamp

HEAD: Final = "0008"
"""The newest migration, which produces these tables."""

METADATA: Final = sa.MetaData()

revisions: Final = sa.Table(
    "revisions",
    METADATA,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("parent", sa.Integer, sa.ForeignKey("revisions.number")),
    sa.Column("author", sa.String, nullable=False),
    sa.Column("message", sa.String, nullable=False),
    sa.Column("time", Timestamp, nullable=False),
)

document_versions: Final = sa.Table(
    "document_versions",
    METADATA,
    sa.Column("kind", sa.String, primary_key=True),
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False, index=True),
    sa.Column("digest", sa.String, nullable=False),  # empty when the document was deleted
    sa.Column("tree", SealedTree),  # null when the document was deleted
)

changes: Final = sa.Table(
    "changes",
    METADATA,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False),
    sa.Column("body", Json(Change), nullable=False),
)

bundles: Final = sa.Table(
    "bundles",
    METADATA,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("resources", SealedTree, nullable=False),
)

drafts: Final = sa.Table(
    "drafts",  # what an accepted change delivers to a class of runtimes, until all its deliveries are issued
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),  # the order in which they are issued
    sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("apply", Json(ApplyPolicy, shared=True), nullable=False),
    sa.Column("profiles", Json(dict[str, int], shared=True), nullable=False),
    sa.Column("windows", Json(tuple[Window, ...], shared=True), nullable=False),
    sa.Column("hold", Json(Hold, shared=True)),
    sa.Column("time", Timestamp, nullable=False),
    sa.Column("members", Json(tuple[tuple[str, int], ...]), nullable=False),  # runtime, version of its document
    sa.Column("issued", sa.Integer, nullable=False),  # how many of the members, from the first on, have their delivery
)

deliveries: Final = sa.Table(
    "deliveries",
    METADATA,
    sa.Column("runtime", sa.String, primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False),
    sa.Column("digest", sa.String, nullable=False, index=True),  # of a bundle
    sa.Column("removals", Json(tuple[ResourceRef, ...], shared=True), nullable=False),
    sa.Column("apply", Json(ApplyPolicy, shared=True), nullable=False),
    sa.Column("time", Timestamp, nullable=False),
    sa.Column("incarnation", sa.String, nullable=False, server_default=""),  # empty if issued by version 0.1
    sa.Column("id", sa.String, nullable=False, server_default=""),  # empty if issued by version 0.1
    sa.Column("profiles", Json(dict[str, int], shared=True)),  # versions; null if issued by version 0.1
    sa.Column("runtime_version", sa.Integer),  # of the Runtime document; null if issued by version 0.1
    sa.Column("windows", Json(tuple[Window, ...], shared=True)),  # null if issued before migration 0004
    sa.Column("hold", Json(Hold, shared=True)),
    sa.Index("ix_deliveries_revision_runtime", "revision", "runtime", "sequence"),
)

reports: Final = sa.Table(
    "reports",
    METADATA,
    sa.Column("runtime", sa.String, primary_key=True),
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("received", Timestamp, nullable=False),
    sa.Column("acknowledged", sa.Boolean, nullable=False),  # by the newest report
    sa.Column("verified", Timestamp),  # time of the first acknowledgement
    sa.Column("body", Json(Report), nullable=False),
    sa.Column("attempt", sa.Integer),
    sa.Column("session", sa.Integer),  # with n: the order of reports
    sa.Column("n", sa.Integer),
    sa.Column("fingerprint", sa.String),  # of the report without its session; null before migration 0007
    sa.ForeignKeyConstraint(["runtime", "sequence"], ["deliveries.runtime", "deliveries.sequence"]),
)

runtime_states: Final = sa.Table(
    "runtime_states",  # one row for each runtime that has a delivery: the newest one, and a summary of the reports
    METADATA,
    sa.Column("runtime", sa.String, primary_key=True),
    sa.Column("sequence", sa.Integer, nullable=False),
    sa.Column("id", sa.String, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("digest", sa.String, nullable=False),
    sa.Column("apply", Json(ApplyPolicy, shared=True), nullable=False),
    sa.Column("windows", Json(tuple[Window, ...], shared=True)),
    sa.Column("hold", Json(Hold, shared=True)),
    sa.Column("time", Timestamp, nullable=False),
    sa.Column(
        "present", Json(tuple[ResourceRef, ...], shared=True), nullable=False
    ),  # resources that may exist in the runtime
    sa.Column("attempts", Json(dict[str, int], shared=True), nullable=False),  # of digests retried or rejected
    sa.Column("verified", sa.Integer, nullable=False),  # newest sequence that was ever acknowledged, or 0
    sa.Column("reported", sa.Integer),  # newest sequence with a report, or 0; null: to be derived
    sa.Column("report_attempt", sa.Integer, nullable=False, server_default="0"),
    sa.Column("report_n", sa.Integer, nullable=False, server_default="0"),
    sa.Column("condition", Json(Condition)),  # of the newest report, without evidence
    sa.Column("restraint", Json(Restraint)),
    sa.Column("reason", sa.String, nullable=False, server_default=""),  # of the condition
    sa.Column("until", Timestamp),  # of the condition
    sa.Column("acknowledged", sa.Integer, nullable=False, server_default="0"),  # newest sequence acknowledged now, or 0
    sa.Column("acknowledged_revision", sa.Integer, nullable=False, server_default="0"),
    sa.Column("acknowledged_profiles", Json(dict[str, int], shared=True)),
    sa.Column("acknowledged_version", sa.Integer),  # of the Runtime document
    sa.Column("acknowledged_time", Timestamp),
    sa.Column("pruned", sa.Integer, nullable=False, server_default="0"),  # newest sequence that was pruned, or 0
)

inventories: Final = sa.Table(
    "inventories",
    METADATA,
    sa.Column("runtime", sa.String, primary_key=True),
    sa.Column("received", Timestamp, nullable=False),  # when it last changed
    sa.Column("body", Json(Inventory), nullable=False),  # without sensitive values
)

tokens: Final = sa.Table(
    "tokens",
    METADATA,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("role", sa.String),  # null for a join token
    sa.Column("runtime", sa.String),  # of a join token; null otherwise
    sa.Column("secret_hash", sa.String, nullable=False),
    sa.Column("created", Timestamp, nullable=False),
    sa.Column("expires", Timestamp),
    sa.Column("used", Timestamp),  # when a join token was used; it works once
    sa.Column("revoked", Timestamp),
)

runtime_keys: Final = sa.Table(
    "runtime_keys",
    METADATA,
    sa.Column("runtime", sa.String, primary_key=True),
    sa.Column("key_id", sa.String, nullable=False),
    sa.Column("public_key", sa.String, nullable=False),
    sa.Column("enrolled", Timestamp, nullable=False),
)

revoked_keys: Final = sa.Table(
    "revoked_keys",
    METADATA,
    sa.Column("key_id", sa.String, primary_key=True),  # rejected for every runtime
    sa.Column("runtime", sa.String, nullable=False),
    sa.Column("revoked", Timestamp, nullable=False),
)

server_keys: Final = sa.Table(
    "server_keys",
    METADATA,
    sa.Column("purpose", sa.String, primary_key=True),
    sa.Column("key_id", sa.String, nullable=False),  # detects a different key file
    sa.Column("created", Timestamp, nullable=False),
)

store_identity: Final = sa.Table(
    "store_identity",
    METADATA,
    sa.Column("incarnation", sa.String, primary_key=True),  # one row
    sa.Column("starts", sa.Integer, nullable=False),  # number of server starts
)

schema_version: Final = sa.Table(
    "alembic_version",
    METADATA,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)

DELIVERY_COLUMNS: Final = tuple(deliveries.c[name] for name in Delivery.__struct_fields__ if name in deliveries.c)
"""The columns of a Delivery; its resources are those of its bundle, its documents are in two columns."""
