"""The first schema: documents with revisions, deliveries with reports, tokens and keys."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    _create_documents()
    _create_deliveries()
    _create_identity()


def _create_documents() -> None:
    op.create_table(
        "revisions",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("parent", sa.Integer, sa.ForeignKey("revisions.number")),
        sa.Column("author", sa.String, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "document_versions",
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False, index=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("tree", sa.LargeBinary),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )


def _create_deliveries() -> None:
    op.create_table(
        "deliveries",
        sa.Column("runtime", sa.String, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, sa.ForeignKey("revisions.number"), nullable=False, index=True),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("resources", sa.LargeBinary, nullable=False),
        sa.Column("removals", sa.LargeBinary, nullable=False),
        sa.Column("apply", sa.LargeBinary, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "reports",
        sa.Column("runtime", sa.String, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("received", sa.BigInteger, nullable=False),
        sa.Column("acknowledged", sa.Boolean, nullable=False),
        sa.Column("verified", sa.BigInteger),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.ForeignKeyConstraint(["runtime", "sequence"], ["deliveries.runtime", "deliveries.sequence"]),
    )


def _create_identity() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("role", sa.String),
        sa.Column("runtime", sa.String),
        sa.Column("secret_hash", sa.String, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("used", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
    )
    op.create_table(
        "runtime_keys",
        sa.Column("runtime", sa.String, primary_key=True),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("public_key", sa.String, nullable=False),
        sa.Column("enrolled", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "server_keys",
        sa.Column("purpose", sa.String, primary_key=True),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
    )
